//! The suite: which works are measured with which subjects, and how a row is made of them.
//!
//! It must not know how a subject does its work.

use crate::copy::{self, Calibration};
use crate::gradwire::GradwireSubject;
use crate::grpc::{GrpcSubject, Tuning};
use crate::measure::{self, Series, Subject};
use crate::procfs;
use crate::report::{self, Row};
use crate::workload::{self, WORKLOADS, WorkSpec, Workload};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// What the command line may say about the suite.
#[derive(Debug, Args)]
pub(crate) struct SuiteArgs {
    /// Also write the results as a JSON array to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Few sizes, one worker, three short pairs: shows that it works, not what it reaches.
    #[arg(long)]
    quick: bool,
    /// Only the benchmarks of this name (`push`, `pull`, `push_pull`, `kv_100k_f32`, `copy`).
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Only tensors of this many bytes.
    #[arg(long, value_name = "N")]
    bytes: Option<u64>,
    /// Only these subjects [default: all]. Ratios to gRPC need it among them.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = ["shm", "unix", "tcp", BASELINE])]
    subjects: Vec<String>,
    /// Interleaved pairs per benchmark [default: 10, with --quick 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: Option<u32>,
    /// Worker counts to measure [default: 1,2, with --quick 1].
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    workers: Vec<u32>,
    /// Server processes.
    #[arg(long, value_name = "N", default_value_t = 1)]
    servers: u32,
    /// Seconds of one measured run [default: 0.5, with --quick 0.15].
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    seconds: Option<f64>,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err("take 0.01 to 60 seconds".to_owned()),
    }
}

/// The name of the row that states the machine's copy.
const COPY: &str = "copy";

/// Which subject ratios are taken to.
const BASELINE: &str = "grpc";

/// How long a busy machine is waited for before it is measured as it is.
const QUIET_DEADLINE: Duration = Duration::from_secs(30);

/// Everything that is compared, in the order of the pairs. The baseline comes last, so that each pair ends
/// with it.
fn subjects(chosen: &[String]) -> Vec<Box<dyn Subject>> {
    let mut all: Vec<Box<dyn Subject>> = vec![
        Box::new(GradwireSubject::new("shm")),
        Box::new(GradwireSubject::new("unix")),
        Box::new(GradwireSubject::new("tcp")),
        Box::new(GrpcSubject::new(Tuning::default())),
    ];
    all.retain(|subject| chosen.is_empty() || chosen.iter().any(|name| name == subject.name()));
    all
}

/// The settings of one run of the suite.
struct Plan {
    workloads: Vec<Workload>,
    workers: Vec<u32>,
    servers: u32,
    pairs: u32,
    seconds: f64,
}

impl Plan {
    fn new(args: &SuiteArgs) -> anyhow::Result<Self> {
        let chosen = |work: &&Workload| {
            args.only.as_deref().is_none_or(|only| only == work.name)
                && args.bytes.is_none_or(|bytes| bytes == work.bytes)
                && (!args.quick || work.quick || args.only.is_some() || args.bytes.is_some())
        };
        let workloads: Vec<Workload> = WORKLOADS.iter().filter(chosen).copied().collect();
        let only_copy = args.only.as_deref() == Some(COPY);
        anyhow::ensure!(
            only_copy || !workloads.is_empty(),
            "no such benchmark: take push, pull, push_pull, kv_100k_f32 or copy, and a size it is measured at"
        );
        let default_workers = if args.quick { vec![1] } else { vec![1, 2] };
        Ok(Self {
            workloads,
            workers: if args.workers.is_empty() { default_workers } else { args.workers.clone() },
            servers: args.servers,
            pairs: args.pairs.unwrap_or(if args.quick { 3 } else { 10 }),
            seconds: args.seconds.unwrap_or(if args.quick { 0.15 } else { 0.5 }),
        })
    }

    fn spec(&self, work: &Workload, workers: u32, inflight: u32, seconds: f64) -> WorkSpec {
        WorkSpec {
            name: work.name.to_owned(),
            op: work.op,
            bytes: work.bytes,
            inflight,
            workers,
            servers: self.servers,
            seconds,
            // Twice: the first touches memory, the second still meets cold translations.
            warmup_rounds: 2,
        }
    }
}

/// Measures, prints the table, writes the file.
///
/// # Errors
/// A subject failed, or the results cannot be written.
pub(crate) fn run(args: &SuiteArgs) -> anyhow::Result<()> {
    let plan = Plan::new(args)?;
    let mut notes = vec![procfs::describe_machine()];
    if let Some(pressure) = measure::wait_until_quiet(QUIET_DEADLINE) {
        notes.push(format!("the machine was busy at the start: CPU pressure {pressure:.0} %"));
    }
    report::progress("copy: calibrating");
    let copy = copy::calibrate(copy::KERNELS, copy::COPY_BYTES)?;
    let mut rows: Vec<Row> = copy_rows(&copy);
    let mut subjects = subjects(&args.subjects);
    for &workers in &plan.workers {
        for work in &plan.workloads {
            measure_workload(&plan, work, workers, &mut subjects, &copy, &mut rows)?;
        }
        subjects.iter_mut().for_each(|subject| subject.stop());
    }
    if !plan.workloads.is_empty() {
        let again = copy::calibrate(copy::KERNELS, copy::COPY_BYTES)?.best_gb_per_s();
        notes.push(format!("best copy at the start {:.1} GB/s, at the end {again:.1}", copy.best_gb_per_s()));
    }
    let rows: Vec<Row> = rows.into_iter().map(Row::rounded).collect();
    report::print(&format!("{}\n\n{}", notes.join("\n"), report::table(&rows)))?;
    if let Some(path) = &args.json {
        report::write_json(path, &rows)?;
    }
    Ok(())
}

fn copy_rows(copy: &Calibration) -> Vec<Row> {
    let best = copy.best_gb_per_s();
    let row = |speed: &copy::CopySpeed| Row {
        name: COPY.to_owned(),
        transport: Some(speed.kernel.to_owned()),
        bytes: Some(copy.bytes as u64),
        gb_per_s: Some(speed.gb_per_s),
        ratio_to_copy: Some(speed.gb_per_s / best),
        spread: Some(speed.spread),
        ..Row::default()
    };
    copy.speeds.iter().map(row).collect()
}

/// Measures one workload with all subjects: throughput with operations in flight, latency with one.
fn measure_workload(
    plan: &Plan,
    work: &Workload,
    workers: u32,
    subjects: &mut [Box<dyn Subject>],
    copy: &Calibration,
    rows: &mut Vec<Row>,
) -> anyhow::Result<()> {
    let label = format!("{} {} bytes, {workers} worker(s)", work.name, work.bytes);
    let latency_spec = plan.spec(work, workers, 1, plan.seconds / 2.0);
    let throughput_spec = plan.spec(work, workers, workload::throughput_inflight(work.bytes), plan.seconds);
    let throughput = if work.throughput {
        report::progress(&format!("{label}: throughput, {} in flight", throughput_spec.inflight));
        Some(measure::run_pairs(subjects, &throughput_spec, plan.pairs)?)
    } else {
        None
    };
    report::progress(&format!("{label}: latency"));
    let latency = measure::run_pairs(subjects, &latency_spec, plan.pairs)?;
    for (index, subject) in subjects.iter().enumerate() {
        let throughput = throughput.as_deref();
        let mine = Measured { series: throughput.map(|all| &all[index]), latency: &latency[index] };
        let baseline = throughput.and_then(|all| all.iter().find(|series| series.subject == BASELINE));
        let row = Row {
            placement: subject.placement(&throughput_spec),
            buffers: subject.buffers(&throughput_spec),
            ..mine.row(plan, &throughput_spec, baseline, copy)
        };
        report::progress(&mine.summary(&row));
        rows.push(row);
    }
    Ok(())
}

/// What one subject showed for one workload.
struct Measured<'a> {
    series: Option<&'a Series>,
    latency: &'a Series,
}

impl Measured<'_> {
    fn row(&self, plan: &Plan, spec: &WorkSpec, baseline: Option<&Series>, copy: &Calibration) -> Row {
        let gb_per_s = self.series.and_then(Series::gb_per_s);
        let baseline = baseline.filter(|baseline| baseline.subject != self.latency.subject);
        Row {
            name: spec.name.clone(),
            transport: Some(self.latency.subject.clone()),
            bytes: Some(spec.bytes),
            dtype: Some("f32".to_owned()),
            workers: Some(spec.workers),
            servers: Some(spec.servers),
            gb_per_s,
            p50_us: self.latency.latency_us(0.5),
            p99_us: self.latency.latency_us(0.99),
            cpu_s_per_gb: self.series.and_then(Series::cpu_s_per_gb),
            ratio_to_copy: gb_per_s.map(|speed| speed / copy.best_gb_per_s()),
            ratio_to_grpc: self.series.zip(baseline).and_then(|(mine, theirs)| mine.ratio_to(theirs)),
            pairs: Some(plan.pairs),
            spread: self.series.map_or_else(|| self.latency.latency_spread(), Series::spread),
            ..Row::default()
        }
    }

    fn summary(&self, row: &Row) -> String {
        let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
        let pressure = self.series.unwrap_or(self.latency).cpu_pressure_percent;
        format!(
            "  {:<6} {} GB/s, p50 {} us, p99 {} us, CPU pressure {} %",
            self.latency.subject,
            figure(row.gb_per_s),
            figure(row.p50_us),
            figure(row.p99_us),
            figure(pressure)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(quick: bool, only: Option<&str>, bytes: Option<u64>) -> SuiteArgs {
        SuiteArgs {
            json: None,
            quick,
            only: only.map(str::to_owned),
            bytes,
            subjects: Vec::new(),
            pairs: None,
            workers: Vec::new(),
            servers: 1,
            seconds: None,
        }
    }

    #[test]
    fn the_plan_follows_the_arguments() {
        let full = Plan::new(&args(false, None, None)).expect("a plan");
        assert_eq!((full.workloads.len(), full.pairs), (WORKLOADS.len(), 10));
        let quick = Plan::new(&args(true, None, None)).expect("a plan");
        assert!(quick.workloads.len() < full.workloads.len() && quick.workers == [1]);
        let one = Plan::new(&args(false, Some("push_pull"), Some(1 << 20))).expect("a plan");
        assert_eq!(one.workloads.len(), 1);
        assert!(Plan::new(&args(false, Some("nothing"), None)).is_err());
        assert!(Plan::new(&args(false, Some("copy"), None)).expect("a plan").workloads.is_empty());
    }
}
