//! The peers' inventory is whole and proven: every row of `docs/inventory.md` has its entry in `docs/inventory.toml` and the
//! other way round, and names tests that exist, or says why there are none, or whose work it waits for. It cannot tell
//! whether a test proves what it stands beside.

use super::{Finding, Repo};
use std::collections::{BTreeMap, BTreeSet};

/// The page.
const PAGE: &str = "docs/inventory.md";
/// What has to stand on it.
const LIST: &str = "docs/inventory.toml";
/// Fewest characters of a reason.
const REASON_MIN: usize = 20;

/// Every row is proven, or says why not.
#[must_use]
pub fn proven(repo: &Repo) -> Vec<Finding> {
    let text = repo.texts.get(PAGE).map(String::as_str).unwrap_or_default();
    let wrong = |line: usize, what: String| Finding {
        path: PAGE.into(),
        line,
        what,
        fix: "name a test as `path::name`, or write reason: and why",
    };
    let mut rows = 0;
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(row) = line.strip_prefix('|') else { continue };
        let cells: Vec<&str> = row.trim_end_matches('|').split('|').map(str::trim).collect();
        rows += 1;
        let [offer, _, proof] = cells[..] else {
            findings.push(wrong(index + 1, format!("a row has {} columns instead of 3", cells.len())));
            continue;
        };
        if offer == "offer" || offer.starts_with("---") {
            continue;
        }
        findings.extend(fault(repo, proof).map(|what| wrong(index + 1, what)));
    }
    if rows == 0 {
        findings.push(wrong(1, "the page has no table".into()));
    }
    findings
}

/// The page has a row for each entry of the list, and none without one.
#[must_use]
pub fn whole(repo: &Repo) -> Vec<Finding> {
    let fix = "each row of docs/inventory.md has an entry of the same words in docs/inventory.toml";
    let wrong = |path: &str, line: usize, what: String| Finding { path: path.into(), line, what, fix };
    let listed = match entries(repo.texts.get(LIST).map(String::as_str).unwrap_or_default()) {
        Ok(listed) => listed,
        Err(what) => return vec![wrong(LIST, 1, what)],
    };
    let (mut missing, mut findings) = (listed.clone(), Vec::new());
    for (line, row) in rows(repo.texts.get(PAGE).map(String::as_str).unwrap_or_default()) {
        if !missing.remove(&row) {
            let why = if listed.contains(&row) { "stands twice" } else { "has no entry in the list" };
            findings.push(wrong(PAGE, line, format!("the row \"{}\" of \"{}\" {why}", row.1, row.0)));
        }
    }
    let gone = |(heading, offer): &Row| wrong(PAGE, 1, format!("\"{heading}\" has no row \"{offer}\""));
    findings.extend(missing.iter().map(gone));
    findings
}

/// Heading and offer.
type Row = (String, String);

/// The rows of the page, with their lines.
fn rows(page: &str) -> Vec<(usize, Row)> {
    let (mut heading, mut rows) = ("", Vec::new());
    for (index, line) in page.lines().enumerate() {
        heading = line.strip_prefix("## ").map_or(heading, str::trim);
        let Some(offer) = line.strip_prefix('|').and_then(|row| row.split('|').next()) else { continue };
        let offer = offer.trim();
        if offer != "offer" && !offer.starts_with("---") {
            rows.push((index + 1, (heading.to_owned(), offer.to_owned())));
        }
    }
    rows
}

/// The entries of the list, each with features of its own.
fn entries(list: &str) -> Result<BTreeSet<Row>, String> {
    type List = BTreeMap<String, BTreeMap<String, Vec<String>>>;
    let list: List = toml::from_str(list).map_err(|error| format!("the list cannot be read: {error}"))?;
    let (mut entries, mut features) = (BTreeSet::new(), BTreeSet::new());
    for (heading, offers) in list {
        for (offer, names) in offers {
            if names.is_empty() {
                return Err(format!("the entry \"{offer}\" names no feature"));
            }
            if let Some(twice) = names.iter().find(|name| !features.insert((*name).clone())) {
                return Err(format!("the feature \"{twice}\" stands twice"));
            }
            entries.insert((heading.clone(), offer));
        }
    }
    if entries.is_empty() { Err("the list is empty".into()) } else { Ok(entries) }
}

/// What is wrong with a proof.
fn fault(repo: &Repo, proof: &str) -> Option<String> {
    if let Some(reason) = proof.strip_prefix("reason:") {
        return (reason.trim().len() < REASON_MIN).then(|| "a reason says nothing".into());
    }
    let tests: Vec<&str> = proof.split('`').skip(1).step_by(2).collect();
    if tests.is_empty() {
        return Some("a row names no test".into());
    }
    tests.into_iter().find_map(|test| match test.split_once("::") {
        Some((path, name)) if has_test(repo, path, name) => None,
        _ => Some(format!("there is no test {test}")),
    })
}

fn has_test(repo: &Repo, path: &str, name: &str) -> bool {
    let heads = [format!("fn {name}("), format!("def {name}(")];
    let is_head = |line: &str| heads.iter().any(|head| line.contains(head.as_str()));
    match repo.sources.iter().find(|source| source.path == path) {
        Some(source) => source.code.iter().any(|line| is_head(line)),
        None => repo.texts.get(path).is_some_and(|text| text.lines().any(is_head)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::repo::fake;
    use super::*;

    fn found(proof: &str) -> Vec<String> {
        let page = format!("| offer | here | proof |\n| --- | --- | --- |\n| x | y | {proof} |\n");
        let rust = "//! x\n\n#[test]\nfn it_works() {}\n";
        let repo = fake(&[(PAGE, &page), ("a/tests/b.rs", rust), ("c.py", "def test_it(one):\n    pass\n")]);
        proven(&repo).into_iter().map(|finding| format!("{}: {}", finding.line, finding.what)).collect()
    }

    #[test]
    fn tests_and_reasons_will_do() {
        for proof in [
            "`a/tests/b.rs::it_works`",
            "`a/tests/b.rs::it_works`, `c.py::test_it`",
            "reason: nobody has asked for it",
        ] {
            assert_eq!(found(proof), Vec::<String>::new(), "{proof}");
        }
    }

    #[test]
    fn whatever_is_gone_or_empty_is_found() {
        assert_eq!(found("`a/tests/b.rs::it_worked`"), ["3: there is no test a/tests/b.rs::it_worked"]);
        assert_eq!(found("`a/tests/x.rs::it_works`"), ["3: there is no test a/tests/x.rs::it_works"]);
        assert_eq!(found("`a/tests/b.rs::it_works`, `it`"), ["3: there is no test it"]);
        assert_eq!(found(""), ["3: a row names no test"]);
        assert_eq!(found("reason: none"), ["3: a reason says nothing"]);
        assert_eq!(found("reason: x | y"), ["3: a row has 4 columns instead of 3"]);
    }

    const TWO: &str = "[A]\nx = [\"one\", \"two\"]\n[B]\ny = [\"three\"]\n";

    fn compared(list: &str, page: &str) -> Vec<String> {
        let repo = fake(&[(PAGE, page), (LIST, list)]);
        whole(&repo).into_iter().map(|finding| format!("{}: {}", finding.line, finding.what)).collect()
    }

    #[test]
    fn rows_and_entries_are_the_same() {
        let page = "## A\n| offer | here | proof |\n| --- | --- | --- |\n| x | | p |\n## B\n| y | | p |\n";
        assert_eq!(compared(TWO, page), Vec::<String>::new());
        assert_eq!(compared(TWO, &page.replace("| x | | p |\n", "")), ["1: \"A\" has no row \"x\""]);
        let more = format!("{page}| z | | p |\n| y | | q |\n");
        let found =
            ["7: the row \"z\" of \"B\" has no entry in the list", "8: the row \"y\" of \"B\" stands twice"];
        assert_eq!(compared(TWO, &more), found);
        let elsewhere = compared(TWO, &page.replace("## B\n", ""));
        assert_eq!(
            elsewhere,
            ["5: the row \"y\" of \"A\" has no entry in the list", "1: \"B\" has no row \"y\""]
        );
    }

    #[test]
    fn the_list_names_each_feature_once() {
        let faults = |list: &str| compared(list, "## A\n| x | | p |\n").join("; ");
        assert_eq!(faults("[A]\nx = []\n"), "1: the entry \"x\" names no feature");
        assert_eq!(faults("[A]\nx = [\"one\", \"one\"]\n"), "1: the feature \"one\" stands twice");
        assert_eq!(faults(""), "1: the list is empty");
        assert!(faults("[A").starts_with("1: the list cannot be read"));
    }
}
