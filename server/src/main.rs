//! The `gradwire-server` binary: settings, listener, run.
#![forbid(unsafe_code)]

use clap::Parser;
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

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    daemon::exit::run_main("gradwire-server", || {
        let env = daemon::process::environment();
        daemon::process::die_with_parent(&env)?;
        let loaded = args.common.load(Role::Server, &env)?;
        let _identity = daemon::logging::init(Role::Server, &loaded.settings.log)?;
        loaded.log();
        let settings = loaded.settings;
        daemon::process::run_to_end(async {
            let shutdown = daemon::shutdown::on_signals()?;
            let http = daemon::http::bind(&settings.node.http).await?;
            let listener = gradwire_server::runtime::listen(&settings).await?;
            gradwire_server::runtime::run(listener, http, settings, shutdown).await
        })?
    })
}
