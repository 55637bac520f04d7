//! `gradwire launch`: a cluster on this host, on other hosts through ssh, or in the tasks of Slurm and MPI. Starts the processes,
//! forwards their output, and exits with the code of the first failure. Must not leave a process behind, also if it is killed.

mod args;
mod attend;
mod blame;
mod child;
mod dmlc;
mod failed;
mod guard;
mod hosts;
mod kind;
mod lines;
mod nodelist;
mod output;
mod plan;
mod ports;
mod ranks;
mod remote;
mod restart;
mod submit;
mod supervisor;
mod trust;
mod variables;

pub(crate) use args::{LaunchArgs, with_long_names};
pub(crate) use attend::attend;
pub(crate) use guard::{SuperviseArgs, guard, supervise_child};

use daemon::exit::{Failure, WithCode as _};
use kind::Kind;
use proto_common::error::ExitCode;
use remote::Reach;
use restart::Restarts;
use supervisor::Supervisor;

/// Runs a cluster, or this host's part of it; returns the exit code.
pub(crate) fn run(args: &LaunchArgs) -> Result<u8, anyhow::Error> {
    let env = daemon::process::environment();
    daemon::process::die_with_parent(&env)?;
    let kind = Kind::choose(args, &env)?;
    let task = match kind {
        Kind::Slurm => ranks::slurm(&env)?,
        Kind::Mpi => ranks::mpi(&env, std::os::unix::process::parent_id())?,
        _ => None,
    };
    // One thread: the kernel's parent-death signal depends on the thread that started a child.
    let runtime = daemon::process::control_runtime().code(ExitCode::Io)?;
    if matches!(kind, Kind::Slurm | Kind::Mpi) && task.is_none() {
        return runtime.block_on(submit::submit(args, &env, kind));
    }
    let ended = member(args, env, kind, task.as_ref(), &runtime);
    // For whoever has started the tasks: srun itself ends with the highest of their codes, and that may be the code of a task that
    // it killed because of this one.
    if let (Err(error), Some(task)) = (&ended, &task) {
        submit::report(task.rank, daemon::exit::code_of(error));
    }
    ended
}

/// This host's part of the cluster, or all of it.
fn member(
    args: &LaunchArgs,
    env: Vec<(String, String)>,
    kind: Kind,
    task: Option<&ranks::Task>,
    runtime: &tokio::runtime::Runtime,
) -> Result<u8, anyhow::Error> {
    let plan = variables::plan(args, &env, kind, task)?;
    // Task 0 prints the warnings that concern the whole job.
    let is_first = task.is_none_or(|task| task.rank == 0);
    let mut notes = if is_first { args.dmlc.warnings(kind == Kind::Slurm) } else { Vec::new() };
    // Every task prints this: srun may end task 0 because of another task before task 0 has printed anything.
    notes.extend(variables::advice_on_trust(&plan, &env));
    let reach = Reach::new(args)?;
    if let Some(directory) = &args.keep_logs {
        std::fs::create_dir_all(directory).map_err(|error| {
            let text = format!("cannot create the log directory {}: {error}", directory.display());
            Failure::message(ExitCode::Io, text)
        })?;
    }
    runtime.block_on(async {
        reach.sync(&plan).await?;
        let (restarts, of_restarts) = Restarts::new(args, &env, &plan)?;
        let notes = if is_first { [notes, of_restarts].concat() } else { notes };
        let supervisor = Supervisor::new(args, env, reach, restarts)?;
        supervisor.run(&plan, &notes).await
    })
}
