//! `gradwire status`: asks the scheduler and shows the answer. It must not compute anything the scheduler
//! did not say.

mod fetch;
mod table;

pub(crate) use fetch::get;

use clap::Args;
use daemon::exit::{Failure, WithCode as _};
use daemon::status::{ClusterStatus, JobPhase};
use proto_common::error::ExitCode;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

/// Milliseconds between two looks with --watch.
const WATCH_MS: u64 = 1_000;

/// Shows a job as its scheduler sees it: who is there and who is silent, links with driver and rate, rounds,
/// and the operation that waits longest.
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// The scheduler's HTTP address. It logs it when it starts, and writes it to its --port-file. Without
    /// this flag the setting node.http counts, if it names a port.
    #[arg(long, value_name = "HOST:PORT")]
    scheduler_http: Option<String>,
    /// Read the address from the scheduler's --port-file.
    #[arg(long, value_name = "FILE", conflicts_with = "scheduler_http")]
    port_file: Option<PathBuf>,
    /// Print the scheduler's JSON as it is.
    #[arg(long)]
    json: bool,
    /// Show it again every second, until the job ends or Ctrl-C.
    #[arg(long)]
    watch: bool,
}

pub(crate) fn run(args: &StatusArgs) -> Result<(), anyhow::Error> {
    let address = address(args)?;
    match daemon::process::run_to_end(show(args, &address)).code(ExitCode::Io)? {
        Err(error) if is_closed_pipe(&error) => Ok(()),
        other => other,
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn address(args: &StatusArgs) -> Result<String, Failure> {
    if let Some(address) = &args.scheduler_http {
        return Ok(address.clone());
    }
    let unknown = || {
        let text = "the scheduler's HTTP address is not known; give it with --scheduler-http (the scheduler \
                    logs it when it starts)";
        Failure::message(ExitCode::Usage, text)
    };
    if let Some(path) = &args.port_file {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let text = format!("cannot read the port file {}: {error}", path.display());
            Failure::message(ExitCode::Io, text)
        })?;
        let http = text.lines().find_map(|line| line.strip_prefix("http="));
        return http.filter(|http| !http.is_empty()).map(str::to_owned).ok_or_else(unknown);
    }
    let env = daemon::process::environment();
    let loaded = daemon::settings::load_settings(proto_common::ids::Role::Scheduler, &env, None, &[])
        .code(ExitCode::Config)?;
    let http = loaded.settings.node.http;
    if http.is_empty() || http.ends_with(":0") {
        return Err(unknown());
    }
    Ok(http)
}

async fn show(args: &StatusArgs, address: &str) -> Result<(), anyhow::Error> {
    loop {
        let body = fetch::get(address, "/status").await?;
        let status: ClusterStatus = serde_json::from_slice(&body).map_err(|error| {
            Failure::message(
                ExitCode::Failure,
                format!("{address} does not answer like a scheduler of this release: {error}"),
            )
        })?;
        let mut text = String::new();
        if args.watch && !args.json {
            // Home, and clear the screen.
            text.push_str("\x1b[H\x1b[2J");
        }
        match args.json {
            true => text.push_str(String::from_utf8_lossy(&body).trim_end()),
            false => text.push_str(&table::render(&status)),
        }
        writeln!(io::stdout().lock(), "{}", text.trim_end())?;
        if !args.watch || status.phase == JobPhase::Ended {
            return Ok(());
        }
        // Looking again after a while is what --watch is.
        tokio::time::sleep(Duration::from_millis(WATCH_MS)).await;
    }
}
