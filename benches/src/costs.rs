//! `gradwire-bench costs`: what a setting costs, such as a copy of every chunk on another server, encryption, or the recorder. The
//! same push_pull without it and with it, in turn, by real processes; time and CPU seconds side by side.

use crate::gradwire::GradwireSubject;
use crate::measure::{self, Series, Subject};
use crate::report;
use crate::workload::{MAX_TENSOR_BYTES, Op, WorkSpec};
use clap::Args;

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct CostsArgs {
    /// The settings whose cost is asked for, of all processes, such as cluster.replicas=1.
    #[arg(long = "with", value_name = "KEY=VALUE", required = true)]
    settings: Vec<String>,
    /// Over which transport: shm, unix or tcp.
    #[arg(long, default_value = "shm", value_parser = ["shm", "unix", "tcp"])]
    transport: String,
    /// Bytes of a tensor.
    #[arg(long, default_value_t = 64 << 20, value_parser = clap::value_parser!(u64).range(4..=MAX_TENSOR_BYTES))]
    bytes: u64,
    /// Tensors, all of which are under way together.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    tensors: u32,
    /// Worker processes.
    #[arg(long, default_value_t = 1)]
    workers: u32,
    /// Server processes; a copy needs two.
    #[arg(long, default_value_t = 2)]
    servers: u32,
    /// Seconds of each run.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Runs of each.
    #[arg(long, default_value_t = 5)]
    pairs: u32,
}

/// Measures, and prints a line for each.
pub(crate) fn run(args: &CostsArgs) -> anyhow::Result<()> {
    let transport = ["shm", "unix", "tcp"].into_iter().find(|name| *name == args.transport);
    let transport = transport.ok_or_else(|| anyhow::anyhow!("--transport is shm, unix or tcp"))?;
    let spec = WorkSpec {
        workers: args.workers,
        servers: args.servers,
        seconds: args.seconds,
        ..WorkSpec::alike("costs", Op::PushPull, args.bytes & !3, args.tensors)
    };
    let subject = |settings: &[String]| -> Box<dyn Subject> {
        let all = [&[format!("cluster.servers={}", args.servers)], settings].concat();
        Box::new(GradwireSubject::new(transport).with_settings(&all))
    };
    let mut subjects = [subject(&[]), subject(&args.settings)];
    let series = measure::run_pairs(&mut subjects, &spec, args.pairs)?;
    subjects.iter_mut().for_each(|subject| subject.stop());
    let [without, with] = &series[..] else { return Ok(()) };
    report::progress(&line("without", without));
    report::progress(&line(&args.settings.join(" "), with));
    report::progress(&format!(
        "with it: {:.2} x the time, {:.2} x the CPU",
        1.0 / with.ratio_to(without).unwrap_or(f64::NAN),
        with.cpu_s_per_gb().unwrap_or(f64::NAN) / without.cpu_s_per_gb().unwrap_or(f64::NAN),
    ));
    Ok(())
}

fn line(name: &str, series: &Series) -> String {
    let nan = |figure: Option<f64>| figure.unwrap_or(f64::NAN);
    format!(
        "{name}: {:.3} GB/s (spread {:.2}), a round {:.3} ms, {:.3} CPU s/GB (spread {:.2})",
        nan(series.gb_per_s()),
        nan(series.spread()),
        nan(series.p50_us()) / 1e3,
        nan(series.cpu_s_per_gb()),
        nan(series.cpu_spread()),
    )
}
