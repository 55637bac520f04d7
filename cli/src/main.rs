//! `gradwire`: the command line of a cluster. Each subcommand has its module; this file only picks one and
//! turns its result into an exit code.
#![forbid(unsafe_code)]

#[cfg(not(all(feature = "chaos", feature = "top")))]
mod absent;
mod certs;
#[cfg(feature = "chaos")]
mod chaos;
mod checkpoint;
mod common;
mod config;
mod doctor;
mod env;
mod find;
mod launch;
mod manual;
mod plan;
mod save;
mod serve;
mod status;
#[cfg(feature = "top")]
mod top;
mod trace;
mod why;

use clap::{Parser, Subcommand};
use daemon::exit::run_main_with_code;
use std::ffi::OsString;

/// Start, watch and measure a Gradwire cluster.
#[derive(Debug, Parser)]
#[command(name = "gradwire", version, subcommand_required = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a scheduler, servers and workers, and supervise them until the job ends.
    ///
    /// Starts one scheduler, N servers and M workers. Each worker runs PROGRAM. All processes get variables (GRADWIRE_* and
    /// DMLC_*) by which they find each other. Their output goes to stderr, and each line begins with the name of its process.
    /// Only the stdout of worker 0 goes to stdout unchanged. The exit code is that of the process that failed first; a
    /// line on stderr names this process ("worker 1 failed first: ...") and shows its last output. If nobody reads the
    /// launcher's output any more (`| head`), the launcher ends the job and exits with 141.
    ///
    /// --cluster selects where the processes run: on this host, on the hosts of a file through ssh, or in the tasks of Slurm
    /// or MPI. Inside srun or mpirun, each task runs one process; otherwise the launcher calls srun or mpirun itself. If
    /// DMLC_ROLE is set and neither -n nor -s is given, the launcher starts only this machine's part of a job, as bpslaunch
    /// does. Flags of dmlc-submit and launch.py are accepted. A warning names those that have no effect.
    Launch(Box<launch::LaunchArgs>),
    /// Show a job: its members, links, rounds, and waiting operations.
    Status(status::StatusArgs),
    Certs(certs::CertsArgs),
    #[cfg(feature = "top")]
    Top(top::TopArgs),
    #[cfg(not(feature = "top"))]
    Top(absent::AbsentArgs),
    Why(why::WhyArgs),
    Trace(trace::TraceArgs),
    #[cfg(feature = "chaos")]
    Chaos(Box<chaos::ChaosArgs>),
    #[cfg(not(feature = "chaos"))]
    Chaos(absent::AbsentArgs),
    Checkpoint(checkpoint::CheckpointArgs),
    Config(config::ConfigArgs),
    Doctor(doctor::DoctorArgs),
    Plan(plan::PlanArgs),
    /// Run a server that also updates parameters by optimizers of MXNet or torch, which a Python file registers.
    ///
    /// It needs the Python package: it becomes `python3 -m gradwire.serve`, with the python3 beside this program or on PATH.
    Serve(Box<serve::ServeArgs>),
    /// Measure this machine with gradwire-bench, which packages do not contain: `make bench` builds it.
    Bench {
        /// Arguments of gradwire-bench; --help shows them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// List every setting with its environment variable and default, what variables of other systems do, and the
    /// exit codes.
    Env(env::EnvArgs),
    /// Run a program that dies with its parent (used by launch).
    #[command(hide = true)]
    SuperviseChild(launch::SuperviseArgs),
    /// Run what a launcher on another host says (used by launch).
    #[command(hide = true)]
    Attend,
    /// Kill process groups if the launcher is killed (used by launch).
    #[command(hide = true)]
    Guard,
}

fn main() -> std::process::ExitCode {
    let words = launch::with_long_names(std::env::args_os().collect());
    let cli: Cli = match daemon::manual::parse_from(&manual::MANUAL, words) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    run_main_with_code("gradwire", || match cli.command {
        Command::Launch(args) => launch::run(&args),
        Command::Status(args) => status::run(&args).map(|()| 0),
        Command::Certs(args) => certs::run(&args).map(|()| 0),
        #[cfg(feature = "top")]
        Command::Top(args) => top::run(&args).map(|()| 0),
        #[cfg(not(feature = "top"))]
        Command::Top(_) => absent::run("top"),
        Command::Why(args) => why::run(&args).map(|()| 0),
        Command::Trace(args) => trace::run(&args).map(|()| 0),
        #[cfg(feature = "chaos")]
        Command::Chaos(args) => chaos::run(&args),
        #[cfg(not(feature = "chaos"))]
        Command::Chaos(_) => absent::run("chaos"),
        Command::Checkpoint(args) => checkpoint::run(&args).map(|()| 0),
        Command::Config(args) => config::run(&args).map(|()| 0),
        Command::Doctor(args) => doctor::run(&args),
        Command::Plan(args) => plan::run(&args).map(|()| 0),
        Command::Serve(_) => Err(serve::run()),
        Command::Bench { args } => Err(find::exec_bench(&args)),
        Command::Env(args) => env::run(&args).map(|()| 0),
        Command::SuperviseChild(args) => Err(launch::supervise_child(&args)),
        Command::Attend => launch::attend(),
        Command::Guard => launch::guard().map(|()| 0),
    })
}
