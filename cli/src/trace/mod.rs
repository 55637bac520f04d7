//! `gradwire trace`: what all members' recorders have, on one time axis, as a file that Perfetto and chrome://tracing show. It
//! must not judge what it shows.

mod clocks;
mod collect;
mod timeline;

use crate::status::Whom;
use anyhow::Context as _;
use clap::Args;
use collect::{Found, Source};
use daemon::exit::{Failure, WithCode as _};
use proto_common::error::ExitCode;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

/// Write a timeline of the recent activity of a job's processes, for ui.perfetto.dev or chrome://tracing.
///
/// The command reads the flight recorders of all members that the scheduler lists, and names the members that it cannot reach.
/// With FILE arguments (dumps of failed processes in log.dump_directory) it reads those files, and asks the scheduler only if
/// its address is given as well. All clocks are mapped to one axis; the file contains the accuracy. docs/timeline.md explains
/// how to read the timeline.
///
/// Exit code: 0; 69 if the scheduler does not answer; 74 if the file already exists or cannot be written.
#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    whom: Whom,
    /// File to write; it must not exist yet.
    #[arg(long, value_name = "FILE", default_value = "trace.json")]
    out: PathBuf,
    /// Dump files of processes: gradwire-ROLE-RANK-PID.flight.json.
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

pub(crate) fn run(args: &TraceArgs) -> Result<(), anyhow::Error> {
    let mut found = Found::default();
    for file in &args.files {
        found.read(file)?;
    }
    if args.files.is_empty() || args.whom.is_given() {
        let address = args.whom.address()?;
        let asked = daemon::process::run_to_end(collect::ask(&address)).code(ExitCode::Io)??;
        found.add(asked);
    }
    if found.sources.is_empty() {
        return Err(Failure::message(ExitCode::Failure, "no process could be reached").into());
    }
    let axis = clocks::Axis::of(&found.sources);
    let timeline = timeline::of(&found, &axis);
    write(args, &timeline.text)?;
    tell(args, &found, &axis, &timeline)?;
    Ok(())
}

/// A new file of its own: nothing that is there is written over or followed.
fn write(args: &TraceArgs, text: &str) -> Result<(), Failure> {
    let path = args.out.display();
    let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&args.out);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {path}; name a new file with --out")).code(ExitCode::Io)
}

fn tell(
    args: &TraceArgs,
    found: &Found,
    axis: &clocks::Axis,
    timeline: &timeline::Timeline,
) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let names: Vec<String> = found.sources.iter().map(Source::name).collect();
    let (file, seconds) = (args.out.display(), timeline.span_ns as f64 / 1e9);
    writeln!(out, "{file}: {} events over {seconds:.3} s of {}", timeline.events, names.join(", "))?;
    writeln!(out, "clocks: {}", axis.describe())?;
    for missing in &found.missing {
        writeln!(out, "left out: {missing}")?;
    }
    writeln!(out, "open it at https://ui.perfetto.dev or chrome://tracing")
}
