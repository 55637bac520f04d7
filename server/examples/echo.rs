//! A server with a handler, in the place of `gradwire-server`: calls to 7 are answered with what they brought. For tests of
//! bindings that make calls and run no server themselves.

use clap::Parser;
use daemon::settings::CommonArgs;
use gradwire_server::{Call, Server};
use proto_common::ids::Role;

const ECHO: u32 = 7;

#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    common: CommonArgs,
}

fn main() -> anyhow::Result<()> {
    let env = daemon::process::environment();
    daemon::process::die_with_parent(&env)?;
    let server = Server::start(Args::parse().common.load(Role::Server, &env)?.settings)?;
    server.register(ECHO, |call: Call| {
        // The worker is gone where nobody hears it.
        let _ = call.reply.send(&call.head, call.body.to_vec());
    })?;
    server.join()
}
