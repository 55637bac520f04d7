//! What watches a job keeps up with its metrics: rules and panels read series that exist, every metric is on a panel, and
//! every rule has its unit test, every alert its row in `docs/alerts.md`.
//!
//! Must not know PromQL: names are words of the text. `tests/tests/system/prometheus.rs` asks a real Prometheus.

use super::metrics::{PAGE as METRICS, is_metric, on_page};
use super::{Finding, Repo};
use std::collections::{BTreeMap, BTreeSet};

/// Rules that record series.
const RECORDING: &str = "deploy/prometheus/recording.yml";
/// Rules that alert.
const ALERTS: &str = "deploy/prometheus/alerts.yml";
/// The unit tests of both.
const TESTS: &str = "deploy/prometheus/rules_test.yml";
/// The dashboard.
const DASHBOARD: &str = "deploy/grafana/gradwire.json";
/// What to do about each alert.
const PAGE: &str = "docs/alerts.md";
/// What each alert has to say.
const PARTS: [&str; 4] = ["for: ", "labels: {severity: ", "summary: ", "description: "];

/// Rules, their tests and panels name only series of `docs/metrics.md` and of recording rules.
#[must_use]
pub fn known(repo: &Repo) -> Vec<Finding> {
    let metrics = on_page(repo);
    let recorded: BTreeSet<&str> = named(repo, RECORDING, "- record: ").into_keys().collect();
    let mut findings = Vec::new();
    for path in [RECORDING, ALERTS, TESTS, DASHBOARD] {
        for (index, line) in text(repo, path).lines().enumerate() {
            let is_unknown = |word: &&str| match word.starts_with("gradwire:") {
                true => !recorded.contains(word),
                false => is_metric(word) && !metrics.contains_key(*word),
            };
            findings.extend(words(line).filter(is_unknown).map(|word| Finding {
                path: path.into(),
                line: index + 1,
                what: format!("reads {word}, which nobody writes"),
                fix: "name a metric of docs/metrics.md or a series of deploy/prometheus/recording.yml",
            }));
        }
    }
    findings
}

/// Every metric, and every series that is recorded, is on a panel.
#[must_use]
pub fn shown(repo: &Repo) -> Vec<Finding> {
    let panels: BTreeSet<&str> = words(text(repo, DASHBOARD)).collect();
    let metrics = on_page(repo).into_iter().map(|(name, line)| (METRICS, name, line));
    let recorded = named(repo, RECORDING, "- record: ").into_iter();
    let recorded = recorded.map(|(name, line)| (RECORDING, name.to_owned(), line));
    let hidden = metrics.chain(recorded).filter(|(_, name, _)| !panels.contains(name.as_str()));
    hidden
        .map(|(path, name, line)| Finding {
            path: path.into(),
            line,
            what: format!("{name} is on no panel"),
            fix: "show it in deploy/grafana/dashboard.py, and write the dashboard anew",
        })
        .collect()
}

/// Every rule has a test with a moment at which it gives something and one at which it gives nothing; every alert says all
/// that it has to, and stands in the page's table with its severity.
#[must_use]
pub fn explained(repo: &Repo) -> Vec<Finding> {
    let alerts = named(repo, ALERTS, "- alert: ");
    let recorded = named(repo, RECORDING, "- record: ");
    let (tests, rows) = (blocks(text(repo, TESTS), "- name: "), rows(repo));
    let rules = alerts.iter().map(|rule| (ALERTS, rule)).chain(recorded.iter().map(|rule| (RECORDING, rule)));
    let mut findings = Vec::new();
    let mut found = |path: &str, line: usize, what: String, fix: &'static str| {
        findings.push(Finding { path: path.into(), line, what, fix });
    };
    for (path, (name, line)) in rules {
        let test = tests.get(*name).map_or("", String::as_str);
        let gives = [format!("alertname=\"{name}\""), format!("labels: '{name}{{")];
        if !test.contains("exp_samples: []") || !gives.iter().any(|words| test.contains(words)) {
            let fix = "add a test of its name to deploy/prometheus/rules_test.yml, with both";
            found(path, *line, format!("no test has {name} give something, and nothing"), fix);
        }
    }
    for (name, block) in blocks(text(repo, ALERTS), "- alert: ") {
        let line = alerts[name.as_str()];
        for part in PARTS.iter().filter(|part| !block.contains(**part)) {
            found(
                ALERTS,
                line,
                format!("{name} has no {part}"),
                "say how bad it is, for how long, and what to do",
            );
        }
        let severity = block.split(PARTS[1]).nth(1).and_then(|rest| rest.split('}').next());
        if rows.get(&name).map(|(severity, _)| severity.as_str()) != severity {
            found(ALERTS, line, format!("{name} is not in {PAGE} with its severity"), "write its row");
        }
    }
    for (name, (_, line)) in rows.iter().filter(|(name, _)| !alerts.contains_key(name.as_str())) {
        found(PAGE, *line, format!("{name} is no alert"), "delete its row");
    }
    findings
}

fn text<'a>(repo: &'a Repo, path: &str) -> &'a str {
    repo.texts.get(path).map(String::as_str).unwrap_or_default()
}

/// Words that may be series' names.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'))
}

/// What stands behind a mark that begins a line, with the line's number.
fn named<'a>(repo: &'a Repo, path: &str, mark: &str) -> BTreeMap<&'a str, usize> {
    let lines = text(repo, path).lines().enumerate();
    lines.filter_map(|(index, line)| Some((line.trim().strip_prefix(mark)?, index + 1))).collect()
}

/// The lines from one mark to the next, by the first word behind the mark.
fn blocks(text: &str, mark: &str) -> BTreeMap<String, String> {
    let parts = text.split(mark).skip(1);
    parts
        .map(|part| (part.split_whitespace().next().unwrap_or_default().to_owned(), part.to_owned()))
        .collect()
}

/// Severity and line of each alert in the page's tables.
fn rows(repo: &Repo) -> BTreeMap<String, (String, usize)> {
    let row = |(index, line): (usize, &str)| {
        let mut cells = line.trim().strip_prefix('|')?.split('|').map(str::trim);
        let name = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
        Some((name.to_owned(), (cells.next()?.to_owned(), index + 1)))
    };
    text(repo, PAGE).lines().enumerate().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::super::repo::fake;
    use super::*;

    const ALERT: &str = "- alert: A\n  expr: gradwire_a_total > gradwire:b:c\n  for: 0s\n  labels: {severity: info}\n  \
                         annotations:\n    summary: x\n    description: y\n";
    const RECORD: &str = "- record: gradwire:b:c\n  expr: gradwire_a_total\n";
    const BOTH: &str = "- name: A\n  exp_samples: []\n  '{alertname=\"A\"}'\n\
                        - name: gradwire:b:c\n  exp_samples: []\n  labels: 'gradwire:b:c{}'\n";
    const ROW: &str = "| alert | severity |\n| --- | --- |\n| `A` | info | x |\n";

    fn found(rule: fn(&Repo) -> Vec<Finding>, changed: &str, with: &str) -> Vec<String> {
        let files = [
            (METRICS, "| `gradwire_a_total` |\n"),
            (RECORDING, RECORD),
            (ALERTS, ALERT),
            (TESTS, BOTH),
            (DASHBOARD, "\"gradwire_a_total{x=\\\"$gradwire_job\\\"}\" \"gradwire:b:c\""),
            (PAGE, ROW),
        ];
        let files = files.map(|(path, text)| (path, if path == changed { with } else { text }));
        rule(&fake(&files)).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn what_is_read_must_be_written() {
        assert_eq!(found(known, "", ""), Vec::<String>::new());
        assert_eq!(
            found(known, DASHBOARD, "\"gradwire_a_gone\""),
            ["reads gradwire_a_gone, which nobody writes"]
        );
        assert_eq!(found(known, RECORDING, "").len(), 4, "three files read what it recorded");
    }

    #[test]
    fn what_is_written_must_be_shown() {
        assert_eq!(found(shown, "", ""), Vec::<String>::new());
        let hidden = found(shown, DASHBOARD, "\"gradwire_a_total\"");
        assert_eq!(hidden, ["gradwire:b:c is on no panel"]);
    }

    #[test]
    fn rules_are_tested_and_alerts_explained() {
        assert_eq!(found(explained, "", ""), Vec::<String>::new());
        assert_eq!(found(explained, TESTS, &BOTH.replace("exp_samples: []", "")).len(), 2);
        assert_eq!(found(explained, TESTS, &BOTH.replace("alertname", "name")).len(), 1);
        assert_eq!(found(explained, ALERTS, &ALERT.replace("for: 0s", "")), ["A has no for: "]);
        assert_eq!(found(explained, PAGE, &ROW.replace("info", "warning")).len(), 1);
        assert_eq!(found(explained, PAGE, &(ROW.to_owned() + "| `B` | info |\n")), ["B is no alert"]);
    }
}
