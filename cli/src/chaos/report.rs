//! What came of it: times by role and fault as a table, and everything as JSON. Text and numbers; no I/O.

use super::schedule::{Kind, Strike};
use proto_common::ids::Role;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// One fault, and how long it took until training had gone on.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Recovery {
    #[serde(flatten)]
    pub(super) strike: Strike,
    /// The highest round finished when it came.
    pub(super) round: u64,
    /// From the fault until every worker had finished two rounds more (or, where ends are looked for, until all had ended).
    pub(super) recovered_ms: f64,
}

impl Recovery {
    /// What recovering itself took: see [`Times::own_median_ms`].
    fn own_ms(&self) -> f64 {
        let away_ms = self.strike.away_ms as f64;
        if self.recovered_ms > away_ms { self.recovered_ms - away_ms } else { self.recovered_ms }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct RunReport {
    pub(super) seed: u64,
    pub(super) hash: Option<String>,
    pub(super) seconds: f64,
    pub(super) recoveries: Vec<Recovery>,
    /// Why it is not as it must be.
    pub(super) failure: Option<String>,
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    /// The command that repeats it.
    pub(super) command: String,
    /// Of the undisturbed run.
    pub(super) hash: Option<String>,
    pub(super) runs: Vec<RunReport>,
    /// By fault and role.
    pub(super) times: Vec<Times>,
    pub(super) is_equal: bool,
}

/// How long recoveries from one kind of fault took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Times {
    pub(super) fault: String,
    pub(super) role: Role,
    pub(super) count: usize,
    pub(super) median_ms: f64,
    pub(super) worst_ms: f64,
    /// Without the time that the victim was away where that is all that training waited for: since it came back, or since the
    /// fault where training went on without it.
    pub(super) own_median_ms: f64,
    pub(super) own_worst_ms: f64,
    /// All of them, in order.
    pub(super) all_ms: Vec<f64>,
}

/// By fault and role, in that order.
pub(super) fn times(runs: &[RunReport]) -> Vec<Times> {
    let name = |strike: &Strike| match (strike.kind, strike.is_death) {
        (Kind::Kill, _) if strike.second.is_some() => "kill, and another",
        (Kind::Kill, _) => "kill",
        (Kind::Stop, false) => "stop, short",
        (Kind::Stop, true) => "stop, longer than silence",
        (Kind::Partition, false) => "partition, short",
        (Kind::Partition, true) => "partition, longer than silence",
        (Kind::Drain, _) => "drain",
    };
    let mut all = BTreeMap::<_, (Vec<f64>, Vec<f64>)>::new();
    for recovery in runs.iter().flat_map(|run| &run.recoveries) {
        let (times, own) = all.entry((name(&recovery.strike), recovery.strike.role)).or_default();
        times.push(recovery.recovered_ms);
        own.push(recovery.own_ms());
    }
    let summaries = all.into_iter().map(|((fault, role), (mut all_ms, mut own))| {
        all_ms.sort_by(f64::total_cmp);
        own.sort_by(f64::total_cmp);
        let worst = |sorted: &[f64]| sorted.last().copied().unwrap_or(0.0);
        Times {
            fault: fault.to_owned(),
            role,
            count: all_ms.len(),
            median_ms: median(&all_ms),
            worst_ms: worst(&all_ms),
            own_median_ms: median(&own),
            own_worst_ms: worst(&own),
            all_ms,
        }
    });
    summaries.collect()
}

/// Of sorted values; 0 of none.
pub(super) fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match (sorted.get(middle), sorted.len().is_multiple_of(2)) {
        (Some(upper), true) => (sorted.get(middle - 1).unwrap_or(upper) + upper) / 2.0,
        (Some(middle), false) => *middle,
        (None, _) => 0.0,
    }
}

impl Report {
    /// For people.
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        let struck: usize = self.runs.iter().map(|run| run.recoveries.len()).sum();
        let equal = self.runs.iter().filter(|run| run.failure.is_none()).count();
        let heads =
            ["MEDIAN", "WORST", "OWN MEDIAN", "OWN WORST"].map(|head| format!("{head:>11}")).join(" ");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:<30} {:<10} {:>5} {heads}  (ms)", "FAULT", "ROLE", "TIMES");
        for times in &self.times {
            let Times { fault, count, median_ms, worst_ms, own_median_ms, own_worst_ms, .. } = times;
            let all =
                [median_ms, worst_ms, own_median_ms, own_worst_ms].map(|ms| format!("{ms:>11.0}")).join(" ");
            let _ = writeln!(text, "{fault:<30} {:<10} {count:>5} {all}", times.role.to_string());
        }
        if !self.times.is_empty() {
            text.push_str(
                "own: without the time for which the victim was kept away, where training waited for it\n",
            );
        }
        let _ = writeln!(text, "faults: {struck}; runs as they must be: {equal} of {}", self.runs.len());
        if struck == 0 && equal > 0 {
            text.push_str("no fault came: training was over before the first one; raise --epochs\n");
        }
        for run in &self.runs {
            if let Some(failure) = &run.failure {
                let _ = writeln!(text, "seed {}: {failure}", run.seed);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recovery(kind: Kind, role: Role, recovered_ms: f64, is_death: bool) -> Recovery {
        let strike =
            Strike { kind, role, seat: 0, after_rounds: 1, delay_us: 0, away_ms: 7, is_death, second: None };
        Recovery { strike, round: 5, recovered_ms }
    }

    #[test]
    fn times_are_by_fault_and_role() {
        let recoveries = vec![
            recovery(Kind::Kill, Role::Worker, 30.0, true),
            recovery(Kind::Stop, Role::Worker, 5.0, false),
            recovery(Kind::Kill, Role::Server, 9.0, true),
            recovery(Kind::Kill, Role::Worker, 10.0, true),
            recovery(Kind::Kill, Role::Worker, 20.0, true),
        ];
        let run = RunReport { seed: 1, hash: None, seconds: 1.0, recoveries, failure: Some("lost".into()) };
        let times = times(std::slice::from_ref(&run));
        let short: Vec<_> =
            times.iter().map(|t| (t.fault.as_str(), t.role, t.count, t.median_ms, t.worst_ms)).collect();
        assert_eq!(
            short,
            [
                ("kill", Role::Server, 1, 9.0, 9.0),
                ("kill", Role::Worker, 3, 20.0, 30.0),
                ("stop, short", Role::Worker, 1, 5.0, 5.0),
            ]
        );
        assert_eq!(times.iter().map(|times| times.own_worst_ms).collect::<Vec<_>>(), [2.0, 23.0, 5.0]);
        let idle = RunReport { recoveries: Vec::new(), failure: None, ..run.clone() };
        let idle =
            Report { command: "c".into(), hash: None, runs: vec![idle], times: Vec::new(), is_equal: false };
        assert!(idle.table().contains("no fault came") && idle.table().contains("raise --epochs"));
        let report = Report { command: "c".into(), hash: None, runs: vec![run], times, is_equal: false };
        let table = report.table();
        assert!(
            table.contains("faults: 5; runs as they must be: 0 of 1") && table.contains("seed 1: lost"),
            "{table}"
        );
    }

    #[test]
    fn a_median_lies_between_the_middle_ones() {
        assert_eq!(
            [median(&[]), median(&[3.0]), median(&[1.0, 2.0]), median(&[1.0, 2.0, 9.0])],
            [0.0, 3.0, 1.5, 2.0]
        );
    }
}
