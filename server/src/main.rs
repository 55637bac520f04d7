//! The `gradwire-server` binary: settings, listener, run.
#![forbid(unsafe_code)]

use clap::Parser;
use daemon::flight::Flight;
use daemon::manual::Manual;
use daemon::notify::Notify;
use daemon::settings::CommonArgs;
use proto_common::ids::Role;

/// Keeps shards of the parameters: reduces what workers push, applies the update rule, and writes new
/// weights into the workers' memory.
#[derive(Debug, Parser)]
#[command(name = "gradwire-server", version)]
struct Args {
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

fn main() -> std::process::ExitCode {
    let args: Args = match daemon::manual::parse(&MANUAL) {
        Ok(args) => args,
        Err(code) => return code,
    };
    daemon::exit::run_main("gradwire-server", || {
        let env = daemon::process::environment();
        daemon::process::die_with_parent(&env)?;
        let loaded = args.common.load(Role::Server, &env)?;
        let (identity, filter) = daemon::logging::init(Role::Server, &loaded.settings.log)?;
        loaded.log();
        let flight = Flight::new(identity, &loaded.settings);
        flight.on_panic();
        let common = args.common.clone();
        let env_again = env.clone();
        let again = Box::new(move || common.load(Role::Server, &env_again));
        daemon::process::run_to_end(async {
            daemon::reload::on_hangup(&loaded, again, filter)?;
            flight.on_signal()?;
            let settings = loaded.settings;
            let shutdown = daemon::shutdown::on_signals()?;
            let notify = Notify::from_env(&env);
            notify.follow(&shutdown);
            let http = daemon::http::bind(&settings.node.http).await?;
            let listener = gradwire_server::runtime::listen(&settings).await?;
            let told = (notify, flight.clone());
            let ended = gradwire_server::runtime::run(listener, http, settings, shutdown, told).await;
            flight.ended(&ended);
            ended
        })?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn examples_are_taken() {
        assert_eq!(daemon::manual::unfit(&Args::command(), &MANUAL), Vec::<String>::new());
    }
}
