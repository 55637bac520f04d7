//! The program `gradwire-worker`: a trainer over the client library.
//!
//! Parses the command line, calls the library, maps its errors to exit codes. Only this file exits.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use daemon::exit::Failure;
use daemon::flight::Flight;
use daemon::logging::Filter;
use daemon::manual::Manual;
use daemon::notify::Notify;
use daemon::reload::Read;
use daemon::settings::{CommonArgs, Loaded};
use daemon::shutdown::{Shutdown, TOGETHER_MS};
use gradwire_trainer::{EvalArgs, TrainArgs};
use proto_common::error::ExitCode;
use proto_common::ids::Role;
use std::time::Duration;

/// Trains on a Gradwire cluster, or alone as a reference.
#[derive(Debug, Parser)]
#[command(name = "gradwire-worker", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Trains a multilayer perceptron by synchronous SGD
    Train {
        #[command(flatten)]
        train: Box<TrainArgs>,
        #[command(flatten)]
        common: CommonArgs,
    },
    /// Prints the accuracy of a saved model
    Eval(EvalArgs),
}

const EXAMPLES: &str = "\
gradwire-worker train:
  gradwire-worker train --scheduler 127.0.0.1:9092 --data digits.csv
      Trains with the others of the job
  gradwire-worker train --reference --workers 2
      The same training in one process, without a cluster
gradwire-worker eval:
  gradwire-worker eval --model model.safetensors
      Says how often a saved model is right";

const MANUAL: Manual = Manual { examples: EXAMPLES, role: Some(Role::Worker), others: Vec::new };

fn main() -> std::process::ExitCode {
    let cli: Cli = match daemon::manual::parse(&MANUAL) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    daemon::exit::run_main_with_code("gradwire-worker", || {
        let (mut asked, mut flight) = (None, None);
        let env = daemon::process::environment();
        daemon::process::die_with_parent(&env)?;
        let out = &mut std::io::stdout();
        let result = match &cli.command {
            Command::Train { train, common } => {
                let settings = || {
                    let loaded = common.load(Role::Worker, &env)?;
                    let (identity, filter) = daemon::logging::init(Role::Worker, &loaded.settings.log)?;
                    loaded.log();
                    let recorder = flight.insert(Flight::new(identity, &loaded.settings)).clone();
                    recorder.on_panic();
                    let (common, env_again) = (common.clone(), env.clone());
                    let again = Box::new(move || common.load(Role::Worker, &env_again));
                    let notify = Notify::from_env(&env);
                    asked = Some(end_on_signals((&notify, &recorder), (&loaded, again, filter))?);
                    Ok((loaded.settings, notify, recorder))
                };
                gradwire_trainer::train(train, settings, out)
            }
            Command::Eval(args) => gradwire_trainer::eval(args, out),
        };
        let Err(error) = result else { return Ok(0) };
        if let Some(reason) = told_to_stop(asked, error.exit_code()) {
            tracing::warn!(reason, %error, "leaving before training is finished");
            return Ok(code_of(&reason));
        }
        let failed = Err(Failure::new(error.exit_code(), error).into());
        flight.iter().for_each(|flight| flight.ended(&failed));
        failed
    })
}

/// The wish to stop, where it has come, or comes yet: a stop of everything reaches the processes in any order, and that of the
/// scheduler may have ended training before.
fn told_to_stop(asked: Option<Shutdown>, code: ExitCode) -> Option<String> {
    let mut asked = asked?;
    let together = Duration::from_millis(if code == ExitCode::Failure { TOGETHER_MS } else { 0 });
    let wait = async { tokio::time::timeout(together, asked.wait()).await.ok() };
    daemon::process::control_runtime().ok()?.block_on(wait)
}

/// What shells expect of a process that a signal has ended.
fn code_of(reason: &str) -> u8 {
    if reason.starts_with("SIGINT") { 130 } else { 143 }
}

/// Told to stop, a trainer lets the scheduler announce the end of the job, which ends training with an error
/// that says so; where no such word comes, the process ends a little later. Either way it ends as the signal would have ended it.
/// SIGHUP reads settings again.
fn end_on_signals(
    (notify, flight): (&Notify, &Flight),
    (loaded, again, filter): (&Loaded, Read, Filter),
) -> std::io::Result<Shutdown> {
    let runtime = daemon::process::control_runtime()?;
    let mut shutdown = runtime.block_on(async {
        daemon::reload::on_hangup(loaded, again, filter)?;
        flight.on_signal()?;
        daemon::shutdown::on_signals()
    })?;
    let (notify, asked) = (notify.clone(), shutdown.clone());
    std::thread::Builder::new().name("gradwire-signals".into()).spawn(move || {
        let reason = runtime.block_on(async move {
            let reason = shutdown.wait().await;
            notify.stopping(&reason);
            tokio::time::sleep(Duration::from_millis(TOGETHER_MS)).await;
            reason
        });
        tracing::warn!(reason, "leaving before training is finished");
        std::process::exit(i32::from(code_of(&reason)));
    })?;
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn examples_are_taken() {
        assert_eq!(daemon::manual::unfit(&Cli::command(), &MANUAL), Vec::<String>::new());
    }
}
