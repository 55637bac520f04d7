//! Metrics and their page keep up with each other: `docs/metrics.md` has a row for every metric in the code,
//! and only for those.

use super::{Finding, Repo};
use std::collections::BTreeMap;

/// The page.
pub(super) const PAGE: &str = "docs/metrics.md";
/// How every metric's name starts.
const PREFIX: &str = "gradwire_";
/// Fewest underscores of a metric's name: it has a subject and a unit, crate names (`gradwire_worker`) do not.
const UNDERSCORES_MIN: usize = 2;

/// Every metric in the code has a row, and every row a metric.
#[must_use]
pub fn documented(repo: &Repo) -> Vec<Finding> {
    let in_code = in_code(repo);
    let on_page = on_page(repo);
    let undocumented = in_code.iter().filter(|(name, _)| !on_page.contains_key(*name));
    let gone = on_page.iter().filter(|(name, _)| !in_code.contains_key(*name));
    let undocumented = undocumented.map(|(name, (path, line))| Finding {
        path: path.clone(),
        line: *line,
        what: format!("metric {name} is not documented"),
        fix: "add its row to docs/metrics.md: name, type, labels, meaning",
    });
    let gone = gone.map(|(name, line)| Finding {
        path: PAGE.into(),
        line: *line,
        what: format!("metric {name} is in no code"),
        fix: "delete its row, or bring the metric back",
    });
    undocumented.chain(gone).collect()
}

fn in_code(repo: &Repo) -> BTreeMap<String, (String, usize)> {
    let mut found = BTreeMap::new();
    for source in &repo.sources {
        // These rules' own examples are no metrics.
        if source.path.starts_with("tests/") {
            continue;
        }
        for (line, literal) in source.strings.iter().filter(|(line, _)| !source.is_test[*line]) {
            if is_metric(literal) {
                found.entry(literal.clone()).or_insert_with(|| (source.path.clone(), line + 1));
            }
        }
    }
    found
}

/// Names in the first column of the page's tables.
pub(super) fn on_page(repo: &Repo) -> BTreeMap<String, usize> {
    let text = repo.texts.get(PAGE).map(String::as_str).unwrap_or_default();
    let rows = text.lines().enumerate().filter_map(|(index, line)| {
        let cell = line.trim().strip_prefix('|')?.split('|').next()?.trim().trim_matches('`');
        is_metric(cell).then(|| (cell.to_owned(), index + 1))
    });
    rows.collect()
}

pub(super) fn is_metric(text: &str) -> bool {
    text.starts_with(PREFIX)
        && text.matches('_').count() >= UNDERSCORES_MIN
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::super::repo::fake;
    use super::*;

    fn found(code: &str, page: &str) -> Vec<String> {
        let repo = fake(&[("server/src/metrics.rs", code), (PAGE, page)]);
        documented(&repo).into_iter().map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
    }

    #[test]
    fn code_and_page_must_agree() {
        let row = "# x\n\n| name | type |\n| --- | --- |\n| `gradwire_rounds_total` | counter |\n";
        let code = "\n x(\"gradwire_rounds_total\");";
        assert!(found(code, row).is_empty());
        assert_eq!(found(code, ""), ["server/src/metrics.rs:2"]);
        assert_eq!(found("", row), ["docs/metrics.md:5"]);
    }

    #[test]
    fn crate_names_filters_and_tests_are_no_metrics() {
        let code = "x(\"gradwire_worker\", \"gradwire_worker=debug\", \"a gradwire_x_y\");\n\
            #[cfg(test)]\nmod t { fn f() { x(\"gradwire_a_total\"); } }";
        assert!(found(code, "").is_empty());
    }
}
