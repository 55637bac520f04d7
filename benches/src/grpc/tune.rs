//! Sweeps the baseline's settings, one at a time around the committed ones, and prints what each gives.
//!
//! The best of many short runs is what tells on a machine that others use as well; the median tells how often
//! it is reached. It changes nothing: whoever reads the table commits the winner in [`Tuning`]'s default.

use super::{GrpcSubject, Tuning};
use crate::measure::{self, Subject};
use crate::report;
use crate::workload::{self, Op, WorkSpec};
use clap::Args;

/// What the command line may say about the sweep.
#[derive(Debug, Args)]
pub(crate) struct TuneArgs {
    /// Bytes of each tensor.
    #[arg(long, default_value_t = 1 << 20)]
    bytes: u64,
    /// Worker processes.
    #[arg(long, default_value_t = 1)]
    workers: u32,
    /// Interleaved rounds over all settings.
    #[arg(long, default_value_t = 5)]
    pairs: u32,
    /// Seconds of one measured run.
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// Only the settings whose description contains this.
    #[arg(long, default_value = "")]
    only: String,
}

/// The settings around `base` that the sweep tries, each with its description.
fn candidates(base: Tuning) -> Vec<(String, Tuning)> {
    let mut all = vec![("committed".to_owned(), base)];
    for kib in [64, 128, 256, 512, 1024] {
        all.push((format!("chunk {kib} KiB"), Tuning { chunk_bytes: kib << 10, ..base }));
    }
    for kib in [64, 256, 512, 1 << 10, 2 << 10, 4 << 10, 16 << 10, 64 << 10] {
        let stream_window_bytes = kib << 10;
        let connection_window_bytes = stream_window_bytes * 2;
        all.push((
            format!("window {kib} KiB"),
            Tuning { stream_window_bytes, connection_window_bytes, ..base },
        ));
    }
    for (name, max_frame_bytes) in [
        ("16 KiB", 16 << 10),
        ("64 KiB", 64 << 10),
        ("256 KiB", 256 << 10),
        ("1 MiB", 1 << 20),
        ("most", (16 << 20) - 1),
    ] {
        all.push((format!("frame {name}"), Tuning { max_frame_bytes, ..base }));
    }
    for kib in [8, 32, 64, 256, 1024] {
        all.push((format!("yield {kib} KiB"), Tuning { yield_bytes: kib << 10, ..base }));
    }
    for mib in [0, 1, 16, 256] {
        all.push((format!("keep {mib} MiB"), Tuning { keep_bytes: mib << 20, ..base }));
    }
    for (server_threads, worker_threads) in [(0, 0), (1, 0), (2, 0), (0, 2), (2, 2)] {
        all.push((
            format!("threads server {server_threads} worker {worker_threads}"),
            Tuning { server_threads, worker_threads, ..base },
        ));
    }
    all
}

/// Runs the sweep.
///
/// # Errors
/// A cluster failed.
pub(crate) fn run(args: &TuneArgs) -> anyhow::Result<()> {
    let spec = |inflight| WorkSpec {
        workers: args.workers,
        seconds: args.seconds,
        ..WorkSpec::alike("tune", Op::PushPull, args.bytes, inflight)
    };
    let mut subjects: Vec<Box<dyn Subject>> = candidates(Tuning::default())
        .into_iter()
        .filter(|(name, _)| name.contains(&args.only) || name == "committed")
        .map(|(name, tuning)| Box::new(GrpcSubject::named(name, tuning)) as Box<dyn Subject>)
        .collect();
    let inflight = workload::throughput_inflight(args.bytes);
    report::progress(&format!("throughput of {} settings, {inflight} in flight", subjects.len()));
    let throughput = measure::run_pairs(&mut subjects, &spec(inflight), args.pairs)?;
    report::progress("latency");
    let latency = measure::run_pairs(&mut subjects, &spec(1), args.pairs)?;
    for (throughput, latency) in throughput.iter().zip(&latency) {
        let figure = |value: Option<f64>| value.unwrap_or(f64::NAN);
        report::print(&format!(
            "{:<32} best {:6.3} median {:6.3} GB/s  spread {:3.0} %  CPU {:5.2} s/GB  p50 {:8.1} us  p99 {:8.1} us",
            throughput.subject,
            figure(throughput.best_gb_per_s()),
            figure(throughput.gb_per_s()),
            figure(throughput.spread()) * 100.0,
            figure(throughput.cpu_s_per_gb()),
            figure(latency.p50_us()),
            figure(latency.p99_us()),
        ))?;
    }
    Ok(())
}
