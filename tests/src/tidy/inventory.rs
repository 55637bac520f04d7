//! The peers' inventory is proven: every row of `docs/inventory.md` names tests that exist, or says why there are none, or
//! whose work it waits for. It cannot tell whether a test proves what it stands beside.

use super::{Finding, Repo};

/// The page.
const PAGE: &str = "docs/inventory.md";
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
}
