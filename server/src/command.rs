//! The command `gradwire-server`: flags, settings, listeners, run. A program that adds handlers or rules runs it, too. It must not know what
//! the program adds.

use crate::program::Program;
use clap::Parser;
use daemon::flight::Flight;
use daemon::manual::Manual;
use daemon::notify::Notify;
use daemon::settings::CommonArgs;
use proto_common::ids::Role;
use proto_common::message::Welcome;
use std::ffi::OsString;
use std::process::ExitCode;

/// Keeps shards of the parameters: reduces what workers push, applies the update rule, and writes new
/// weights into the workers' memory.
#[derive(Debug, Parser)]
#[command(name = "gradwire-server", version)]
pub struct ServerCommand {
    #[command(flatten)]
    common: CommonArgs,
}

const EXAMPLES: &str = "\
gradwire-server:
  gradwire-server --scheduler 127.0.0.1:9092
      A server of the job whose scheduler is there
  gradwire-server --scheduler 127.0.0.1:9092 --job 7
      One more, while job 7 runs, up to cluster.servers_max";

const MANUAL: Manual = Manual { examples: EXAMPLES, role: Some(Role::Server), others: Vec::new };

impl ServerCommand {
    /// The command of these words, the first of which is the program's name. If it was to write its manual, this has been done, and the
    /// program exits with the code. Wrong words end the process, as `--help` does.
    pub fn parse(words: Vec<OsString>) -> Result<Self, ExitCode> {
        daemon::manual::parse_from(&MANUAL, words)
    }

    /// Runs a server until the job ends, a member fails, or a signal stops it. `tell` gets the scheduler's welcome. Returns the exit code;
    /// what failed is on stderr.
    #[must_use]
    pub fn run(self, program: Program, tell: impl FnOnce(&Welcome) + Send + 'static) -> u8 {
        daemon::exit::run_to_code("gradwire-server", || {
            let env = daemon::process::environment();
            daemon::process::die_with_parent(&env)?;
            let loaded = self.common.load(Role::Server, &env)?;
            let (identity, filter) = daemon::logging::init(Role::Server, &loaded.settings.log)?;
            loaded.log();
            let flight = Flight::new(identity, &loaded.settings);
            flight.on_panic();
            let (common, env_again) = (self.common.clone(), env.clone());
            let again = Box::new(move || common.load(Role::Server, &env_again));
            daemon::process::run_to_end(async {
                daemon::reload::on_hangup(&loaded, again, filter)?;
                flight.on_signal()?;
                let settings = loaded.settings;
                let shutdown = daemon::shutdown::on_signals()?;
                let notify = Notify::from_env(&env);
                notify.follow(&shutdown);
                let http = daemon::http::bind(&settings.node.http).await?;
                let listener = crate::runtime::listen(&settings).await?;
                let (told, apps) = ((notify, flight.clone()), program.apps.clone());
                let ended =
                    crate::runtime::run(listener, http, settings, (program, tell), shutdown, told).await;
                // A server that has ended early has not ended its handlers: one may wait for its journal.
                let _ = apps.end();
                flight.ended(&ended);
                ended.map(|()| 0)
            })?
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn examples_are_taken() {
        assert_eq!(daemon::manual::unfit(&ServerCommand::command(), &MANUAL), Vec::<String>::new());
    }
}
