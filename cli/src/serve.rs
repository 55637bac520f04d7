//! `gradwire serve`: the server of the Python package. Wrong words and `--help` are answered here; the Python program parses the words again.

use crate::find;
use clap::Args;
use daemon::settings::CommonArgs;
use std::path::PathBuf;

/// Flags of `gradwire serve`. Its description in the help stands at the command, in `main`.
#[derive(Args, Debug)]
#[allow(dead_code, reason = "the Python program gets the words themselves")]
pub(crate) struct ServeArgs {
    /// Python file that calls gradwire.serve.register with optimizer classes. It is executed: only name files that you trust.
    #[arg(long, value_name = "FILE")]
    updates: PathBuf,
    /// Directory to which the server writes its parameters and optimizer states, at the end of the job and every --every
    /// seconds. A job that is started again continues with them.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// How often the state is written.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    every: f64,
    #[command(flatten)]
    common: CommonArgs,
}

/// Becomes the Python program; returns only if that fails.
pub(crate) fn run() -> anyhow::Error {
    // Without the program's name and the command's.
    let words: Vec<_> = std::env::args_os().skip(2).collect();
    find::exec_serve(&words)
}
