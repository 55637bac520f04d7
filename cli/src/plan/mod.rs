//! `gradwire plan`: which placement each tensor of a list would have, and why; offline. It must not choose by
//! itself: the plan is `proto_common::plan`'s, the one that workers use.

mod input;

use crate::common::{environment_of_no_role, print};
use clap::Args;
use daemon::exit::Failure;
use daemon::settings::{Override, PLACEMENTS, SettingsError, driver_words, load_settings};
use input::Listed;
use proto_common::config::Settings;
use proto_common::error::ExitCode;
use proto_common::ids::Role;
use proto_common::limits::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, LANES_MAX, SERVERS_MAX, WORKERS_MAX};
use proto_common::plan::{Facts, Planned, Subject, plan, size};
use proto_common::transport::Driver;
use serde_json::json;
use std::fmt::Write as _;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Show the placement that each tensor of a list would get, and why, without a cluster
///
/// FILE lists one f32 tensor a line, a name and a shape:
///
///   fc6.weight 4096x25088
///   embedding  ?<=1000x64
///   scale      ?
///
/// `?` is a dimension that changes between operations, `?<=1000` one with a known maximum. Empty lines and comments
/// (after #) are ignored.
///
/// If the length of a tensor may change, or if the transport is not RDMA, shape and transport determine the placement.
/// Otherwise writers and budget do: tensors of at least one chunk with several contributing workers get key buffers at
/// the servers (static) while the budget lasts; all others share the receive slots (slot). rendezvous-write is never
/// selected automatically, because static does the same with fewer messages.
///
/// Defaults come from the settings of this host: GRADWIRE_* variables and ./gradwire.toml.
#[derive(Args, Debug)]
#[command(verbatim_doc_comment)]
pub(crate) struct PlanArgs {
    /// File with the list of tensors; - reads standard input.
    #[arg(value_name = "FILE")]
    tensors: PathBuf,
    /// Number of workers [default: cluster.workers]
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..=i64::from(WORKERS_MAX)))]
    workers: Option<u32>,
    /// Number of servers [default: cluster.servers]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(SERVERS_MAX)))]
    servers: Option<u32>,
    /// Lanes of the cluster: each server has memory.spill_bytes for each [default: cluster.lanes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(LANES_MAX)))]
    lanes: Option<u16>,
    /// Bytes a server may spend on key buffers, such as 512MiB [default: half of memory.spill_bytes for each lane]
    #[arg(long, value_name = "BYTES", value_parser = input::bytes)]
    budget: Option<u64>,
    /// Bytes of a chunk [default: cluster.chunk_bytes]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX))]
    chunk_bytes: Option<u64>,
    /// Transport between workers and servers.
    #[arg(long, value_name = "NAME", value_parser = driver_words(), default_value_t = Driver::Verbs)]
    driver: Driver,
    /// Placement for all tensors [default: transport.placement]
    #[arg(long, value_name = "NAME", value_parser = PLACEMENTS)]
    placement: Option<String>,
    /// What the first iteration has shown, a line for each tensor: its name, how many contributions, bytes of the
    /// shortest and of the longest one, and `single` where one worker only contributes. A job traces for now only how
    /// many contributions there were; lengths and `single` are for lists by hand.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Read settings from this file instead of ./gradwire.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &PlanArgs) -> Result<(), anyhow::Error> {
    let mut listed = input::tensors(&read(&args.tensors)?).map_err(|error| wrong(&args.tensors, &error))?;
    if let Some(path) = &args.trace {
        input::add_traces(&mut listed, &read(path)?).map_err(|error| wrong(path, &error))?;
    }
    let facts = facts(args)?;
    let subjects: Vec<Subject> = listed.iter().map(|listed| listed.subject.clone()).collect();
    let planned = plan(&subjects, &facts);
    let text = if args.json { as_json(&listed, &planned, &facts) } else { table(&listed, &planned, &facts) };
    Ok(print(&text)?)
}

fn wrong(path: &Path, error: &str) -> Failure {
    Failure::message(ExitCode::BadData, format!("{}: {error}", path.display()))
}

fn read(path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = match path.to_str() {
        Some("-") => io::stdin().lock().read_to_string(&mut text).map(drop),
        _ => std::fs::read_to_string(path).map(|read| text = read),
    };
    match read {
        Ok(()) => Ok(text),
        Err(error) => Err(Failure::message(ExitCode::Io, format!("cannot read {}: {error}", path.display()))),
    }
}

fn facts(args: &PlanArgs) -> Result<Facts, SettingsError> {
    let Settings { cluster, memory, transport, .. } = settings(args)?;
    let driver = args.driver;
    // As workers reckon it.
    let lent_bytes = (memory.spill_bytes / 2).saturating_mul(u64::from(cluster.lanes));
    Ok(Facts {
        chunk_bytes: cluster.chunk_bytes,
        workers: cluster.workers,
        servers: cluster.servers,
        lanes: cluster.lanes,
        budget_bytes: args.budget.unwrap_or(lent_bytes),
        spent_bytes: 0,
        drivers: vec![driver],
        checksums: transport.sums_over(driver),
        policy: transport.placement,
    })
}

/// What a worker started here would have, with what the flags say.
fn settings(args: &PlanArgs) -> Result<Settings, SettingsError> {
    let env = environment_of_no_role();
    let flags = [
        ("--workers", "cluster.workers", args.workers.map(|workers| workers.to_string())),
        ("--servers", "cluster.servers", args.servers.map(|servers| servers.to_string())),
        ("--lanes", "cluster.lanes", args.lanes.map(|lanes| lanes.to_string())),
        ("--chunk-bytes", "cluster.chunk_bytes", args.chunk_bytes.map(|bytes| bytes.to_string())),
        ("--placement", "transport.placement", args.placement.clone()),
    ];
    let given = |(flag, key, value)| Some(Override::new(flag, key, value?));
    let flags: Vec<Override> = flags.into_iter().filter_map(given).collect();
    Ok(load_settings(Role::Worker, &env, args.config.as_deref(), &flags)?.settings)
}

fn as_json(listed: &[Listed], planned: &[Planned], facts: &Facts) -> String {
    let tensor = |(listed, planned): (&Listed, &Planned)| {
        json!({
            "name": listed.name,
            "shape": listed.shape,
            "bytes": listed.subject.bytes_max(),
            "placement": planned.placement,
            "why": planned.why,
            "buffer_bytes": planned.buffer_bytes,
        })
    };
    let tensors: Vec<_> = listed.iter().zip(planned).map(tensor).collect();
    let used_bytes = used(planned);
    format!(
        "{:#}",
        json!({ "tensors": tensors, "budget_bytes": facts.budget_bytes, "used_bytes": used_bytes })
    )
}

fn used(planned: &[Planned]) -> u64 {
    planned.iter().fold(0, |sum, planned| sum.saturating_add(planned.buffer_bytes))
}

fn table(listed: &[Listed], planned: &[Planned], facts: &Facts) -> String {
    let width = |of: fn(&Listed) -> usize, least: usize| listed.iter().map(of).fold(least, usize::max);
    let name = width(|listed| listed.name.len(), "tensor".len());
    let shape = width(|listed| listed.shape.len(), "shape".len());
    let mut text =
        format!("{:name$}  {:shape$}  {:>10}  {:16}  why\n", "tensor", "shape", "bytes", "placement");
    for (listed, planned) in listed.iter().zip(planned) {
        let bytes = listed.subject.bytes_max().map_or_else(|| "any".to_owned(), size);
        let (placement, why) = (planned.placement, &planned.why);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:name$}  {:shape$}  {bytes:>10}  {placement:16}  {why}",
            listed.name, listed.shape
        );
    }
    let driver = facts.drivers.first().map_or_else(String::new, |driver| format!(" over {driver}"));
    let (used, budget) = (size(used(planned)), size(facts.budget_bytes));
    let _ = write!(text, "\n{used} of {budget} for key buffers at each server{driver}");
    text
}
