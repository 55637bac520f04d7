//! `gradwire-bench kernels`: what fusing the reduction with the update gains, and what a second data thread gains, without
//! any peer: contributions are there already, and the server's own storage reduces them.
//!
//! This file owns the measurements and their report. The two ways of reduction are in [`ways`].

mod ways;

use crate::{procfs, report, stats};
use clap::Args;
use gradwire_server::kernel::{Bf16, Element, F16};
use proto_common::element::Dtype;
use proto_common::optimizer::{Adam, Optimizer};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;
use ways::{CHUNK_BYTES, Fused, Reads, Separate, Subject, Way};

/// Arguments of `gradwire-bench kernels`.
#[derive(Debug, Args)]
pub(crate) struct KernelArgs {
    /// Interleaved pairs of each measurement.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Bytes of the tensor's f32 weights; one chunk stays in the cache, 256 MiB do not.
    #[arg(long, value_delimiter = ',', default_values_t = [256 << 20, CHUNK_BYTES])]
    bytes: Vec<u64>,
    /// Contributions to a round.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4])]
    contributions: Vec<u32>,
    /// Measure only rows whose name, type and rule contain this.
    #[arg(long, default_value = "")]
    only: String,
    /// Also write the results as a JSON array to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One measured pair of ways.
#[derive(Debug, Serialize)]
struct Row {
    /// `fused_update` out of slots and `fused_in_place` out of workers' memory: beside separate passes; `data_threads`: two
    /// beside one.
    name: &'static str,
    dtype: String,
    rule: &'static str,
    contributions: u32,
    /// Elements of the tensor.
    elements: u64,
    /// Bytes of contributions a second, decimal.
    gb_per_s: f64,
    baseline_gb_per_s: f64,
    /// Median over the pairs, pair by pair, and the interquartile range over it.
    ratio: f64,
    spread: f64,
    pairs: u32,
    /// Share of ten seconds in which somebody waited for a core, afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_pressure_percent: Option<f64>,
}

/// Measures everything that was asked for.
///
/// # Errors
/// Memory that cannot be had, a file that cannot be written, or two ways that do not compute the same.
pub(crate) fn run(args: &KernelArgs) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for bytes in &args.bytes {
        for (dtype, (rule, optimizer)) in dtypes().flat_map(|dtype| rules().map(move |rule| (dtype, rule))) {
            for contributions in &args.contributions {
                let elements = bytes / 4;
                let subject = Subject { dtype, rule, optimizer, contributions: *contributions, elements };
                let wanted = |name: &str| format!("{name} {dtype} {rule}").contains(&args.only);
                for reads in [Reads::Slots, Reads::Workers] {
                    // Of one contribution there is no difference but where it lies.
                    if wanted(fused_name(reads)) && (reads == Reads::Slots || *contributions > 1) {
                        rows.push(told(beside_separate(&subject, reads, args.pairs)?));
                    }
                }
                if wanted("data_threads") && *contributions == 2 {
                    rows.push(told(beside_one_thread(&subject, args.pairs)?));
                }
            }
        }
    }
    anyhow::ensure!(!rows.is_empty(), "no measurement contains {:?}; see --help", args.only);
    report::print(&format!("{}\n\n{}", procfs::describe_machine(), table(&rows)))?;
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_string_pretty(&rows)?)?;
    }
    Ok(())
}

fn dtypes() -> impl Iterator<Item = Dtype> {
    [Dtype::F32, Dtype::F16, Dtype::Bf16].into_iter()
}

fn rules() -> impl Iterator<Item = (&'static str, Optimizer)> {
    let adam = Optimizer::mean(Adam::default(), 1e-3);
    let of = [
        ("sgd", Optimizer::sgd(1e-3, 0.0, 0.0)),
        ("momentum", Optimizer::sgd(1e-3, 0.9, 0.0)),
        ("adam", adam),
    ];
    of.into_iter()
}

fn told(row: Row) -> Row {
    report::progress(&line(&row));
    row
}

/// Seconds of a run of each, in turns, the first to warm up.
fn pairs(a: &mut dyn Way, b: &mut dyn Way, rounds: u64, pairs: u32) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let timed = |way: &mut dyn Way| -> anyhow::Result<f64> {
        let start = Instant::now();
        way.rounds(rounds)?;
        Ok(start.elapsed().as_secs_f64())
    };
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for pair in 0..=pairs {
        let (a, b) = (timed(a)?, timed(b)?);
        if pair > 0 {
            first.push(a);
            second.push(b);
        }
    }
    Ok((first, second))
}

fn row(name: &'static str, subject: &Subject, (ours, theirs): (Vec<f64>, Vec<f64>)) -> Row {
    let bytes = (subject.round_bytes() * subject.rounds()) as f64;
    let speed = |seconds: &[f64]| stats::median(seconds.iter().map(|s| bytes / s / 1e9)).unwrap_or(f64::NAN);
    let ratios = || ours.iter().zip(&theirs).map(|(ours, theirs)| theirs / ours);
    Row {
        name,
        dtype: subject.dtype.to_string(),
        rule: subject.rule,
        contributions: subject.contributions,
        elements: subject.elements,
        gb_per_s: speed(&ours),
        baseline_gb_per_s: speed(&theirs),
        ratio: stats::median(ratios()).unwrap_or(f64::NAN),
        spread: stats::spread(ratios()).unwrap_or(f64::NAN),
        pairs: ours.len() as u32,
        cpu_pressure_percent: procfs::cpu_pressure().map(|pressure| pressure.avg10_percent),
    }
}

fn fused_name(reads: Reads) -> &'static str {
    match reads {
        Reads::Slots => "fused_update",
        Reads::Workers => "fused_in_place",
    }
}

fn beside_separate(subject: &Subject, reads: Reads, count: u32) -> anyhow::Result<Row> {
    match subject.dtype {
        Dtype::F16 => beside_separate_of::<F16>(subject, reads, count),
        Dtype::Bf16 => beside_separate_of::<Bf16>(subject, reads, count),
        _ => beside_separate_of::<f32>(subject, reads, count),
    }
}

fn beside_separate_of<E: Element<Sum = f32>>(
    subject: &Subject,
    reads: Reads,
    count: u32,
) -> anyhow::Result<Row> {
    let (mut fused, mut separate) = (Fused::new(subject, reads)?, Separate::<E>::new(subject)?);
    fused.rounds(1)?;
    separate.rounds(1)?;
    anyhow::ensure!(fused.weights()? == separate.weights(), "{subject:?}: the two ways differ");
    let seconds = pairs(&mut fused, &mut separate, subject.rounds(), count)?;
    Ok(row(fused_name(reads), subject, seconds))
}

/// Each has half of the tensor, as lanes have.
struct Halves {
    halves: [Fused; 2],
    threads: bool,
}

impl Way for Halves {
    fn rounds(&mut self, rounds: u64) -> anyhow::Result<()> {
        let [a, b] = &mut self.halves;
        if !self.threads {
            a.rounds(rounds)?;
            return b.rounds(rounds);
        }
        std::thread::scope(|scope| {
            let other = scope.spawn(|| b.rounds(rounds));
            a.rounds(rounds)?;
            other.join().map_err(|_| anyhow::anyhow!("a data thread panicked"))?
        })
    }
}

fn beside_one_thread(subject: &Subject, count: u32) -> anyhow::Result<Row> {
    // Of a tensor that is one chunk, each thread has one.
    let half = Subject { elements: (subject.elements / 2).max(CHUNK_BYTES / 4), ..*subject };
    let fused = || Fused::new(&half, Reads::Slots);
    let of = |threads| anyhow::Ok(Halves { halves: [fused()?, fused()?], threads });
    let whole = Subject { elements: 2 * half.elements, ..*subject };
    let seconds = pairs(&mut of(true)?, &mut of(false)?, whole.rounds(), count)?;
    Ok(row("data_threads", &whole, seconds))
}

const HEAD: &str =
    "name            dtype rule      contributions    elements    GB/s  baseline  ratio  spread  pressure";

fn line(row: &Row) -> String {
    let Row {
        name, dtype, rule, contributions, elements, gb_per_s, baseline_gb_per_s, ratio, spread, ..
    } = row;
    let pressure = row.cpu_pressure_percent.unwrap_or(f64::NAN);
    format!(
        "{name:15} {dtype:5} {rule:9} {contributions:13} {elements:11} {gb_per_s:7.2} {baseline_gb_per_s:9.2} \
         {ratio:6.2} {spread:7.2} {pressure:7.1} %"
    )
}

fn table(rows: &[Row]) -> String {
    let lines: Vec<String> = std::iter::once(HEAD.to_owned()).chain(rows.iter().map(line)).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_compute_the_same_and_are_told() {
        for (dtype, (rule, optimizer)) in dtypes().flat_map(|dtype| rules().map(move |rule| (dtype, rule))) {
            for (contributions, reads) in
                [(1, Reads::Slots), (3, Reads::Slots), (2, Reads::Workers), (3, Reads::Workers)]
            {
                // More than one chunk, and part of one.
                let subject = Subject { dtype, rule, optimizer, contributions, elements: 40_001 };
                let row = match dtype {
                    Dtype::F16 => compared::<F16>(&subject, reads),
                    Dtype::Bf16 => compared::<Bf16>(&subject, reads),
                    _ => compared::<f32>(&subject, reads),
                };
                assert!(row.ratio > 0.0 && row.pairs == 2 && table(&[row]).contains(rule));
            }
        }
    }

    fn compared<E: Element<Sum = f32>>(subject: &Subject, reads: Reads) -> Row {
        let (mut fused, mut separate) =
            (Fused::new(subject, reads).unwrap(), Separate::<E>::new(subject).unwrap());
        let seconds = pairs(&mut fused, &mut separate, 2, 2).unwrap();
        assert_eq!(fused.weights().unwrap(), separate.weights(), "{subject:?}");
        assert!(separate.weights().iter().any(|byte| *byte != 0), "something was computed");
        row(fused_name(reads), subject, seconds)
    }
}
