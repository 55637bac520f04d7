//! How Gradwire scales: the real engines of up to 1,000 workers and 100 servers in one process, over a simulated fabric
//! whose times come from a LogGP model. Every figure of it is simulated, and says so.
//!
//! Owns the subcommand's arguments and order. It must not know how anything is done: [`real`] runs the processes that the
//! model is fitted to ([`fit`]) and compared with ([`validate`]), [`world`] is the model, [`sweep`] what it is asked.

mod document;
mod fit;
mod forms;
mod loggp;
mod message;
mod real;
mod registered;
mod roster;
mod server;
mod shape;
mod sweep;
#[cfg(test)]
mod tests;
mod turn;
mod validate;
mod worker;
mod world;

use crate::procfs;
use crate::report::{print, progress};
use anyhow::Context as _;
use clap::Args;
use document::{Document, WHAT};
use std::path::{Path, PathBuf};

pub(crate) use real::{WorkerArgs, main as worker};

/// What to simulate.
#[derive(Debug, Clone, Args)]
pub(crate) struct ScaleArgs {
    /// The most workers.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=4096))]
    workers: u32,
    /// The most servers.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1024))]
    servers: u32,
    /// MiB of the model that is trained.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=65536))]
    model_mib: u64,
    /// Only this one cluster, not all smaller ones.
    #[arg(long)]
    one: bool,
    /// Take the parameters, and how far off they are, from results of an earlier run instead of measuring.
    #[arg(long, value_name = "FILE")]
    parameters: Option<PathBuf>,
    /// Samples of each real run; the quickest one counts.
    #[arg(long, default_value_t = 7)]
    samples: u32,
    /// Seconds of a sample.
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// GB/s of a host's link in each direction, instead of what one core fills.
    #[arg(long)]
    link_gb_per_s: Option<f64>,
    /// Microseconds of latency between hosts, beside that of waking up.
    #[arg(long, default_value_t = 0.0)]
    wire_us: f64,
    /// Also write the results to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also draw them, as files in this folder.
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
}

/// Measures the model's parameters, compares it with real runs, and simulates.
///
/// # Errors
/// A real run fails, an engine does in the simulation, or a file cannot be read or written.
pub(crate) fn run(args: &ScaleArgs) -> anyhow::Result<()> {
    let mut document = match &args.parameters {
        Some(path) => read(path)?,
        None => measured(args)?,
    };
    let mut model = document.model;
    model.wire_ns = args.wire_us.max(0.0) * 1e3;
    if let Some(rate) = args.link_gb_per_s {
        anyhow::ensure!(rate > 0.0, "a link of {rate} GB/s moves nothing: give a rate above 0");
        model.link_ns_per_byte = 1.0 / rate;
    }
    // Overheads vary on every machine; in a simulation without that all workers would go in step.
    model.jitter = 0.2;
    document.model = model;
    let plan = sweep::Plan {
        workers_max: args.workers,
        servers_max: args.servers,
        model_bytes: args.model_mib << 20,
    };
    let one = || vec![shape::Shape::cluster(plan.workers_max, plan.servers_max, plan.model_bytes)];
    let shapes = if args.one { one() } else { plan.shapes() };
    document.clusters =
        shapes.iter().map(|shape| sweep::simulate(shape, &model)).collect::<anyhow::Result<_>>()?;
    print(&document.text())?;
    save(args, &document)
}

/// A document with the model and how far off it is.
fn measured(args: &ScaleArgs) -> anyhow::Result<Document> {
    let found = real::under_pressure(|| {
        let mut fitted = Vec::new();
        for shape in fit::shapes() {
            let measured = real::measure(&shape, args.samples, args.seconds)?;
            progress(&format!(
                "fitted to: {:?} {} x {} B: {:.1} us a round, CPU {:.1} us worker, {:.1} us server",
                shape.work,
                shape.tensors,
                shape.tensor_bytes,
                measured.round_ns / 1e3,
                measured.worker_cpu_ns / 1e3,
                measured.server_cpu_ns / 1e3
            ));
            fitted.push((shape, measured));
        }
        let model = fit::fit(&fitted)?;
        progress(&format!("{model:?}"));
        Ok((model, validate::validate(&model, args.samples, args.seconds)?))
    });
    let ((model, held_out), pressure_percent) = found?;
    Ok(Document {
        what: WHAT.to_owned(),
        machine: procfs::describe_machine(),
        pressure_percent,
        model,
        errors: validate::errors(&held_out),
        held_out,
        clusters: Vec::new(),
    })
}

fn read(path: &Path) -> anyhow::Result<Document> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not of this command's making", path.display()))
}

fn save(args: &ScaleArgs, document: &Document) -> anyhow::Result<()> {
    let write = |path: &Path, text: &str| {
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        progress(&format!("results: {}", path.display()));
        anyhow::Ok(())
    };
    if let Some(path) = &args.json {
        write(path, &(serde_json::to_string_pretty(document)? + "\n"))?;
    }
    if let Some(folder) = &args.plots {
        std::fs::create_dir_all(folder)?;
        for (name, svg) in document.plots() {
            write(&folder.join(format!("scale-{name}.svg")), &svg)?;
        }
    }
    Ok(())
}
