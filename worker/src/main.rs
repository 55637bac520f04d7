//! The `gradwire-worker` binary: a thin trainer over the client library.
//!
//! Parses the command line, calls the library, maps its errors to exit codes. Only this file exits.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};
use daemon::exit::Failure;
use daemon::settings::CommonArgs;
use daemon::shutdown::TOGETHER_MS;
use gradwire_worker::train::{self, EvalArgs, TrainArgs};
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

fn main() -> std::process::ExitCode {
    let cli = Cli::parse();
    daemon::exit::run_main("gradwire-worker", || {
        let env = daemon::process::environment();
        daemon::process::die_with_parent(&env)?;
        let out = &mut std::io::stdout();
        let result = match &cli.command {
            Command::Train { train, common } => {
                let settings = || {
                    let loaded = common.load(Role::Worker, &env)?;
                    daemon::logging::init(Role::Worker, &loaded.settings.log)?;
                    loaded.log();
                    end_on_signals()?;
                    Ok(loaded.settings)
                };
                train::train(train, settings, out)
            }
            Command::Eval(args) => train::eval(args, out),
        };
        result.map_err(|error| Failure::new(error.exit_code(), error).into())
    })
}

/// Told to stop, a trainer lets the scheduler announce the end of the job, which ends training with an error
/// that says so; where no such word comes, the process ends as the signal would have ended it, a little later.
fn end_on_signals() -> std::io::Result<()> {
    let runtime = daemon::process::control_runtime()?;
    let mut shutdown = runtime.block_on(async { daemon::shutdown::on_signals() })?;
    std::thread::Builder::new().name("gradwire-signals".into()).spawn(move || {
        let reason = runtime.block_on(async move {
            let reason = shutdown.wait().await;
            tokio::time::sleep(Duration::from_millis(TOGETHER_MS)).await;
            reason
        });
        tracing::warn!(reason, "leaving before training is finished");
        std::process::exit(if reason.starts_with("SIGINT") { 130 } else { 143 });
    })?;
    Ok(())
}
