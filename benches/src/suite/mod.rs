//! The suite: the command line's choice of parts, the order and the time in which they run, and what is told of them.
//!
//! [`parts`] says what each part measures, [`compare`] how rows are made of it. This file must not know how a subject
//! does its work.

mod bounds;
mod compare;
mod parts;
mod plan;

use crate::copy::{self, Calibration};
use crate::measure;
use crate::models;
use crate::procfs;
use crate::report::{self, Row};
use crate::results::Results;
use crate::workload::WORKLOADS;
use parts::PARTS;
use plan::Plan;
pub(crate) use plan::SuiteArgs;
use std::time::Duration;

/// The name of the row that states the machine's copy.
const COPY: &str = "copy";

/// How long a busy machine is waited for before it is measured as it is.
const QUIET_DEADLINE: Duration = Duration::from_secs(30);

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
        let end = copy::calibrate(copy::KERNELS, copy::COPY_BYTES)?;
        let (start, again) = (plan.copy.best_gb_per_s(), end.best_gb_per_s());
        notes.push(format!(
            "best copy at the start {start:.1} GB/s, at the end {again:.1}: ratios are to the faster"
        ));
        beside_copy(&mut rows, start.max(again));
        let two = plan.copy.two.gb_per_s.max(end.two.gb_per_s);
        bounds::beside_bounds(&mut rows, (start.max(again), two));
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
    copy.speeds.iter().chain([&copy.two]).map(row).collect()
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

    #[test]
    fn names_are_known_or_refused_with_a_list() {
        for good in [None, Some("models"), Some("vgg16"), Some("push"), Some(COPY)] {
            check_name(good).expect("known");
        }
        let error = check_name(Some("nothing")).expect_err("unknown");
        assert!(error.to_string().contains("kv_100k_f32"), "{error}");
    }
}
