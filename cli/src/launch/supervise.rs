//! `gradwire supervise-child`: the start of every launched process. It sets the kernel's parent-death signal, checks that the
//! launcher still runs, registers with the guard, and becomes the program.

use anyhow::Context as _;
use clap::Args;
use daemon::exit::WithCode as _;
use proto_common::error::ExitCode;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// The program to become, and the expected parent.
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
    // The program must not hold the guard's pipe open, so its stdin is replaced first.
    let error = Command::new(program).args(rest).stdin(Stdio::null()).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display())).code(ExitCode::Io)?
}
