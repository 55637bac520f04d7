//! `gradwire launch`: a cluster on this host. Starts the processes, forwards what they say, and ends with
//! the first failure's code. It must leave no process behind, however it ends itself.

mod child;
mod guard;
mod output;
mod plan;
mod supervise;
mod supervisor;

pub(crate) use guard::guard;
pub(crate) use supervise::{SuperviseArgs, supervise_child};

use clap::Args;
use daemon::exit::{Failure, WithCode as _};
use daemon::settings::{PLACEMENTS, Transport};
use plan::Plan;
use proto_common::error::ExitCode;
use proto_common::limits::{SERVERS_MAX, WORKERS_MAX};
use std::ffi::OsString;
use std::path::PathBuf;
use supervisor::Supervisor;

/// Starts one scheduler, N servers and M copies of PROGRAM, with the variables that tell them about each
/// other (GRADWIRE_* and DMLC_*). What they say goes to stderr, each line with its process in front, apart
/// from the stdout of worker 0, which goes to stdout as it is. Ends with the code of the process that failed
/// first, and says on stderr which one it was.
#[derive(Args, Debug)]
pub(crate) struct LaunchArgs {
    /// How many servers.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(SERVERS_MAX)))]
    servers: u32,
    /// How many workers: copies of PROGRAM.
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(WORKERS_MAX)))]
    workers: u32,
    /// Require this transport and turn the others off. Without it the best one is used.
    #[arg(long, value_name = "NAME")]
    transport: Option<Transport>,
    /// How workers' contributions travel; auto lets a plan choose for each tensor (see gradwire plan).
    #[arg(long, value_name = "NAME", value_parser = PLACEMENTS)]
    placement: Option<String>,
    /// A setting for all processes, by its dotted name, such as cluster.lanes=2. May be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Also write what each process says to a file of its own in this directory.
    #[arg(long, value_name = "DIR")]
    keep_logs: Option<PathBuf>,
    /// Where gradwire-scheduler and gradwire-server are, if not beside this program.
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Let the stdout of worker 0 through to stdout, unprefixed. With false it goes to stderr as all others.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    plain_rank0: bool,
    /// End the job after this many seconds, with exit code 72.
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// How long the other processes may take to end by themselves after the first failure, or after the last
    /// worker is done, before they are told to, and then again before they are killed.
    #[arg(long, value_name = "MS", default_value_t = 5_000)]
    grace_ms: u64,
    /// The program of the workers, and its arguments. A bare name is looked for beside gradwire, then on PATH.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs a cluster; the result is the exit code.
pub(crate) fn run(args: &LaunchArgs) -> Result<u8, anyhow::Error> {
    let env = daemon::process::environment();
    daemon::process::die_with_parent(&env)?;
    let plan = Plan::new(args, &env)?;
    if let Some(directory) = &args.keep_logs {
        std::fs::create_dir_all(directory).map_err(|error| {
            let text = format!("cannot make the log directory {}: {error}", directory.display());
            Failure::message(ExitCode::Io, text)
        })?;
    }
    // One thread, which is also the one that the kernel takes for the children's parent.
    let runtime = daemon::process::control_runtime().code(ExitCode::Io)?;
    runtime.block_on(async {
        let supervisor = Supervisor::new(args)?;
        supervisor.run(&plan).await
    })
}
