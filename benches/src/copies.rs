//! `gradwire-bench copies`: what a copy of every chunk on another server costs. The same push_pull with `cluster.replicas` 0 and
//! 1, in turn, by real processes; time and CPU seconds side by side.

use crate::gradwire::GradwireSubject;
use crate::measure::{self, Subject};
use crate::report;
use crate::workload::{Op, WorkSpec};
use clap::Args;

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct CopiesArgs {
    /// Over which transport: shm, unix or tcp.
    #[arg(long, default_value = "shm")]
    transport: String,
    /// Bytes of the tensor.
    #[arg(long, default_value_t = 64 << 20)]
    bytes: u64,
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
pub(crate) fn run(args: &CopiesArgs) -> anyhow::Result<()> {
    let known = ["shm", "unix", "tcp"].into_iter().find(|name| *name == args.transport);
    let transport = known.ok_or_else(|| anyhow::anyhow!("--transport is shm, unix or tcp"))?;
    let spec = WorkSpec {
        workers: args.workers,
        servers: args.servers,
        seconds: args.seconds,
        ..WorkSpec::alike("copies", Op::PushPull, args.bytes, 1)
    };
    let subject = |replicas: u32| -> Box<dyn Subject> {
        let settings = [format!("cluster.servers={}", args.servers), format!("cluster.replicas={replicas}")];
        Box::new(GradwireSubject::new(transport).with_settings(&settings))
    };
    let mut subjects = [subject(0), subject(1)];
    let series = measure::run_pairs(&mut subjects, &spec, args.pairs)?;
    subjects.iter_mut().for_each(|subject| subject.stop());
    for (replicas, one) in series.iter().enumerate() {
        let nan = |figure: Option<f64>| figure.unwrap_or(f64::NAN);
        report::progress(&format!(
            "replicas={replicas}: {:6.2} GB/s (spread {:.2}), a round {:8.2} ms, {:6.3} CPU s/GB (spread {:.2})",
            nan(one.gb_per_s()),
            nan(one.spread()),
            nan(one.p50_us()) / 1e3,
            nan(one.cpu_s_per_gb()),
            nan(one.cpu_spread()),
        ));
    }
    let [without, with] = &series[..] else { return Ok(()) };
    report::progress(&format!(
        "with copies: {:.2} x the time, {:.2} x the CPU",
        1.0 / with.ratio_to(without).unwrap_or(f64::NAN),
        with.cpu_s_per_gb().unwrap_or(f64::NAN) / without.cpu_s_per_gb().unwrap_or(f64::NAN),
    ));
    Ok(())
}
