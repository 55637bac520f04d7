//! `gradwire trace`: what all members' recorders have, on one time axis, as a file that Perfetto and chrome://tracing show. It
//! must not judge what it shows.

mod clocks;
mod collect;
mod rows;
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

/// Writes a timeline of what a job's processes did last: open it at ui.perfetto.dev or chrome://tracing.
///
/// All members are asked that the scheduler lists; those that cannot be reached are named, and the others are written all the
/// same. With files (what processes that failed have left in log.dump_directory) those are written, and the scheduler is asked
/// only where its address is given, too. Each process's clock is laid on one axis; the file says how exactly. What it shows, and
/// how it is read, is in docs/timeline.md.
///
/// Ends with 0; 69 when the scheduler does not answer; 74 when the file is there already or cannot be written.
#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    whom: Whom,
    /// The file to write; it must not be there yet.
    #[arg(long, value_name = "FILE", default_value = "trace.json")]
    out: PathBuf,
    /// What processes left behind: gradwire-ROLE-RANK-PID.flight.json.
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
        return Err(Failure::message(ExitCode::Failure, "nobody could be asked").into());
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
