//! `gradwire status`: asks the scheduler and shows the answer. It must not compute anything the scheduler
//! did not say.

mod fetch;
mod table;
mod whom;
pub(crate) mod words;

pub(crate) use fetch::{get, get_status};
pub(crate) use whom::Whom;

use clap::Args;
use daemon::exit::WithCode as _;
use daemon::status::{ClusterStatus, JobPhase};
use proto_common::error::ExitCode;
use std::future::Future;
use std::io::{self, Write as _};
use std::time::Duration;

/// Milliseconds between two looks with --watch.
const WATCH_MS: u64 = 1_000;

/// Shows a job as its scheduler sees it: who is there and who is silent, links with driver and rate, rounds,
/// and the operation that waits longest.
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    whom: Whom,
    /// Print the scheduler's JSON as it is.
    #[arg(long)]
    json: bool,
    /// Show it again every second, until the job ends or Ctrl-C.
    #[arg(long)]
    watch: bool,
}

pub(crate) fn run(args: &StatusArgs) -> Result<(), anyhow::Error> {
    let address = args.whom.address()?;
    // Home, and clear the screen.
    let clear = if args.watch && !args.json { "\x1b[H\x1b[2J" } else { "" };
    run_printing(print_looks(&address, args.watch, |status, body| {
        Ok(match args.json {
            true => String::from_utf8_lossy(body).into_owned(),
            false => format!("{clear}{}", table::render(status)),
        })
    }))
}

/// Runs what prints until it ends, or until its reader is gone, which is no error.
pub(crate) fn run_printing(
    printing: impl Future<Output = Result<(), anyhow::Error>>,
) -> Result<(), anyhow::Error> {
    match daemon::process::run_to_end(printing).code(ExitCode::Io)? {
        Err(error) if is_closed_pipe(&error) => Ok(()),
        other => other,
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Prints what `render` makes of a status and its JSON: once, or every second until the job ends.
pub(crate) async fn print_looks(
    address: &str,
    is_watching: bool,
    render: impl Fn(&ClusterStatus, &[u8]) -> Result<String, anyhow::Error>,
) -> Result<(), anyhow::Error> {
    loop {
        let (status, body) = get_status(address).await?;
        writeln!(io::stdout().lock(), "{}", render(&status, &body)?.trim_end())?;
        if !is_watching || status.phase == JobPhase::Ended {
            return Ok(());
        }
        // Looking again after a while is what watching is.
        tokio::time::sleep(Duration::from_millis(WATCH_MS)).await;
    }
}
