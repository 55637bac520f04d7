//! The suite: the command line's choice of parts, the order and the time in which they run, and what is told of them.
//!
//! [`parts`] says what each part measures, [`compare`] how rows are made of it. This file must not know how a subject
//! does its work.

mod compare;
mod parts;

use crate::copy::{self, Calibration};
use crate::measure;
use crate::models;
use crate::procfs;
use crate::report::{self, Row};
use crate::results::Results;
use crate::workload::WORKLOADS;
use clap::Args;
use parts::{PARTS, PEER_PARTS, SUBJECTS};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What the command line may say about the suite.
#[derive(Debug, Clone, Args)]
pub(crate) struct SuiteArgs {
    /// Also write the results as a JSON array to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write the results, the table and plots into this folder.
    #[arg(long, value_name = "FOLDER")]
    results: Option<PathBuf>,
    /// Few sizes, one worker, three short pairs: shows that it works, not what it reaches.
    #[arg(long)]
    quick: bool,
    /// Only this part (sizes, models, shapes, latency, receive, late, rows, idle, copy) or the benchmarks of this name (push,
    /// pull, push_pull, kv_100k_f32, a model's).
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Of the sizes only tensors of this many bytes.
    #[arg(long, value_name = "N")]
    bytes: Option<u64>,
    /// Only these subjects [default: all]. Ratios to a baseline need it among them.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = SUBJECTS)]
    subjects: Vec<String>,
    /// Also runs an outside program, by a shell, beside the subjects of sizes and models: benches/README.md has what it is
    /// told and has to tell.
    #[arg(long, value_name = "CMD")]
    peer: Option<String>,
    /// Interleaved pairs per benchmark [default: 10, of models and with --peer 5, with --quick 3].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: Option<u32>,
    /// Worker counts to measure sizes and models with [default: 1].
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    workers: Vec<u32>,
    /// Server processes of the same.
    #[arg(long, value_name = "N", default_value_t = 1)]
    servers: u32,
    /// Seconds of one measured run [default: 0.2, with --quick 0.1].
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

/// How long a busy machine is waited for before it is measured as it is.
const QUIET_DEADLINE: Duration = Duration::from_secs(30);

/// After this no further work is begun; what is measured by then is told.
const BUDGET: Duration = Duration::from_secs(13 * 60);

/// The settings of one run of the suite.
struct Plan {
    args: SuiteArgs,
    workers: Vec<u32>,
    pairs: u32,
    /// Of a model, whose rounds are long.
    model_pairs: u32,
    seconds: f64,
    copy: Calibration,
    started: Instant,
}

impl Plan {
    fn new(args: &SuiteArgs, copy: Calibration) -> Self {
        let pairs = |default| args.pairs.unwrap_or(if args.quick { 3 } else { default });
        Self {
            workers: if args.workers.is_empty() { vec![1] } else { args.workers.clone() },
            pairs: pairs(if args.peer.is_some() { 5 } else { 10 }),
            model_pairs: pairs(5),
            seconds: args.seconds.unwrap_or(if args.quick { 0.1 } else { 0.2 }),
            args: args.clone(),
            copy,
            started: Instant::now(),
        }
    }

    /// Is a benchmark wanted? `is_quick`: whether it is among the few of a quick run.
    fn wants(&self, part: &str, name: &str, is_quick: bool) -> bool {
        match self.args.only.as_deref() {
            Some(only) if only == name => true,
            Some(only) => only == part && (is_quick || !self.args.quick),
            // Beside a peer only what it is measured by.
            None if self.args.peer.is_some() && !PEER_PARTS.contains(&part) => false,
            None => is_quick || !self.args.quick,
        }
    }

    fn wants_subject(&self, name: &str) -> bool {
        self.args.subjects.is_empty() || self.args.subjects.iter().any(|chosen| chosen == name)
    }

    /// Is time left to begin another work? `what` is told where it is not.
    fn has_time(&self, what: &str, notes: &mut Vec<String>) -> bool {
        // How long a peer takes to start is not known.
        let has_time = self.args.peer.is_some() || self.started.elapsed() < BUDGET;
        if !has_time {
            let note =
                format!("{what}: not measured, as {} min were used up before it", BUDGET.as_secs() / 60);
            report::progress(&note);
            notes.push(note);
        }
        has_time
    }
}

/// Refuses a name that nothing has.
fn check_name(only: Option<&str>) -> anyhow::Result<()> {
    let Some(only) = only else { return Ok(()) };
    let parts = PARTS.iter().map(|(name, _)| (*name).to_owned());
    let works = WORKLOADS.iter().map(|work| work.name.to_owned());
    let models = models::all().into_iter().map(|model| model.name.to_owned());
    let mut known: Vec<String> = parts.chain(works).chain(models).chain([COPY.to_owned()]).collect();
    known.dedup();
    anyhow::ensure!(
        known.iter().any(|name| name == only),
        "no part or benchmark is called {only}: take one of {}",
        known.join(", ")
    );
    Ok(())
}

/// Measures, prints the table, writes the file.
///
/// # Errors
/// A subject failed, or the results cannot be written.
pub(crate) fn run(args: &SuiteArgs) -> anyhow::Result<()> {
    check_name(args.only.as_deref())?;
    let mut notes = vec![procfs::describe_machine()];
    if let Some(pressure) = measure::wait_until_quiet(QUIET_DEADLINE) {
        notes.push(format!("the machine was busy at the start: CPU pressure {pressure:.0} %"));
    }
    report::progress("copy: calibrating");
    let plan = Plan::new(args, copy::calibrate(copy::KERNELS, copy::COPY_BYTES)?);
    let mut rows: Vec<Row> = copy_rows(&plan.copy);
    let mut failures: Vec<String> = Vec::new();
    for (name, part) in PARTS {
        // What else there is, is told before it ends with this.
        if let Err(error) = part(&plan, &mut rows, &mut notes) {
            failures.push(format!("{name}: {error:#}"));
            report::progress(&format!("FAILED {name}: {error:#}"));
        }
    }
    if args.only.as_deref() != Some(COPY) {
        let again = copy::calibrate(copy::KERNELS, copy::COPY_BYTES)?.best_gb_per_s();
        let start = plan.copy.best_gb_per_s();
        notes.push(format!(
            "best copy at the start {start:.1} GB/s, at the end {again:.1}: ratios are to the faster"
        ));
        beside_copy(&mut rows, start.max(again));
    }
    let without =
        rows.iter().filter_map(|row| Some((row.transport.as_ref()?, &row.name, row.failed.as_ref()?)));
    notes.extend(without.map(|(who, what, why)| format!("FAILED {who} in {what}: {why}")));
    notes.push(format!("measured in {} s", plan.started.elapsed().as_secs()));
    notes.extend(failures.iter().map(|failure| format!("FAILED {failure}")));
    let rows: Vec<Row> = rows.into_iter().map(Row::rounded).collect();
    let results = Results { notes: &notes, rows: &rows };
    report::print(&results.text())?;
    args.results.iter().try_for_each(|folder| results.write(folder))?;
    if let Some(path) = &args.json {
        report::write_json(path, &rows)?;
    }
    anyhow::ensure!(failures.is_empty(), "{}", failures.join("; "));
    Ok(())
}

/// Ratios to a copy that another calibration of the same run found.
fn beside_copy(rows: &mut [Row], best_gb_per_s: f64) {
    for row in rows.iter_mut().filter(|row| row.ratio_to_copy.is_some()) {
        row.ratio_to_copy = row.gb_per_s.map(|speed| speed / best_gb_per_s);
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_to_the_copy_are_to_the_faster_of_a_run() {
        let row = |ratio_to_copy| Row { gb_per_s: Some(6.0), ratio_to_copy, ..Row::default() };
        let mut rows = [row(Some(2.0)), row(None)];
        beside_copy(&mut rows, 4.0);
        assert_eq!(rows.map(|row| row.ratio_to_copy), [Some(1.5), None]);
    }

    fn plan(quick: bool, only: Option<&str>) -> Plan {
        let args = SuiteArgs {
            json: None,
            results: None,
            quick,
            only: only.map(str::to_owned),
            bytes: None,
            subjects: Vec::new(),
            peer: None,
            pairs: None,
            workers: Vec::new(),
            servers: 1,
            seconds: None,
        };
        Plan::new(&args, Calibration { speeds: Vec::new(), bytes: 1 })
    }

    #[test]
    fn the_plan_follows_the_arguments() {
        let full = plan(false, None);
        assert!(full.wants("sizes", "push_pull", false) && full.wants("models", "vgg16", false));
        assert_eq!((full.pairs, full.model_pairs), (10, 5));
        let quick = plan(true, None);
        assert!(quick.wants("sizes", "push_pull", true) && !quick.wants("models", "vgg16", false));
        assert_eq!((quick.pairs, quick.model_pairs), (3, 3));
        let one = plan(true, Some("vgg16"));
        assert!(one.wants("models", "vgg16", false) && !one.wants("models", "gru", true));
        let part = plan(false, Some("models"));
        assert!(part.wants("models", "gru", false) && !part.wants("sizes", "push", true));
        assert!(full.wants_subject("shm"));
        let mut beside = plan(false, None);
        beside.args.peer = Some("true".to_owned());
        assert!(beside.wants("models", "vgg16", false) && !beside.wants("late", "late", true));
    }

    #[test]
    fn names_are_known_or_refused_with_a_list() {
        for good in [None, Some("models"), Some("vgg16"), Some("push"), Some(COPY)] {
            check_name(good).expect("known");
        }
        let error = check_name(Some("nothing")).expect_err("unknown");
        assert!(error.to_string().contains("kv_100k_f32"), "{error}");
    }

    #[test]
    fn what_there_is_no_time_for_is_told() {
        let mut plan = plan(false, None);
        let mut notes = Vec::new();
        assert!(plan.has_time("first", &mut notes) && notes.is_empty());
        plan.started -= BUDGET;
        assert!(!plan.has_time("second", &mut notes) && notes[0].starts_with("second: not measured"));
    }
}
