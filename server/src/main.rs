//! The `gradwire-server` binary.
#![forbid(unsafe_code)]

use gradwire_server::{Program, ServerCommand};
use std::process::ExitCode;

fn main() -> ExitCode {
    let parsed = ServerCommand::parse(std::env::args_os().collect());
    parsed.map_or_else(|code| code, |command| ExitCode::from(command.run(Program::default(), |_| {})))
}
