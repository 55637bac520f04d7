//! `gradwire supervise-child`: the first moments of every launched process. It asks the kernel for its death
//! with the launcher, makes sure that the launcher still lives, tells the guard, and becomes the program.

use anyhow::Context as _;
use clap::Args;
use daemon::exit::WithCode as _;
use proto_common::error::ExitCode;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// What to become, and whose child it must be.
#[derive(Args, Debug)]
pub(crate) struct SuperviseArgs {
    /// The launcher's process id.
    #[arg(long)]
    parent: u32,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// Becomes the program; returns only if that fails.
pub(crate) fn supervise_child(args: &SuperviseArgs) -> anyhow::Error {
    match become_program(args) {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

fn become_program(args: &SuperviseArgs) -> Result<std::convert::Infallible, anyhow::Error> {
    daemon::process::watch_parent(Some(args.parent))?;
    let (program, rest) = args.program.split_first().context("no program is given")?;
    super::guard::announce().context("cannot reach the launcher's guard").code(ExitCode::Io)?;
    // The guard must not wait for the program: its line is replaced before the program starts.
    let error = Command::new(program).args(rest).stdin(Stdio::null()).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display())).code(ExitCode::Io)?
}
