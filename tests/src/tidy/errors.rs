//! What must not stand in code without a reason: panics, sleeps, unsafe.

use super::source::words;
use super::{Finding, Repo, Source};

/// Crates that may hold unsafe code: the fabric, and the borders to other languages.
const MAY_BE_UNSAFE: [&str; 2] = ["fabric/", "bindings/"];
/// What ends a thread.
const PANICS: [&str; 4] = [".unwrap()", ".expect(", "panic!(", "unreachable!("];
/// Lines looked at above a line for its reason: a statement is hardly longer.
const REASON_LINES_MAX: usize = 12;

/// Unsafe code stands in few crates only, and the others say that they have none.
#[must_use]
pub fn unsafe_places(repo: &Repo) -> Vec<Finding> {
    let safe = |source: &&Source| !MAY_BE_UNSAFE.iter().any(|prefix| source.path.starts_with(prefix));
    let mut findings = Vec::new();
    for source in repo.sources.iter().filter(safe) {
        for (line, code) in source.code.iter().enumerate() {
            if words(code, "unsafe").next().is_some() {
                let what = "unsafe code outside fabric and bindings";
                findings.push(finding(source, line, what, "move it behind a safe function of fabric"));
            }
        }
        let forbids = source.code.iter().any(|code| code.contains("#![forbid(unsafe_code)]"));
        if is_crate_root(&source.path) && !forbids {
            findings.push(finding(source, 0, "a crate without `#![forbid(unsafe_code)]`", "add the line"));
        }
    }
    findings
}

/// Whatever can panic states the invariant because of which it does not.
#[must_use]
pub fn panics(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &repo.sources {
        for (line, code) in source.production() {
            let Some(panic) = PANICS.iter().find(|panic| calls(code, panic)) else { continue };
            if !has_reason(source, line, "Invariant:") {
                let what = format!("`{panic}` without a stated invariant");
                let fix = "return a typed error, or say in `// Invariant: …` just above why it cannot happen";
                findings.push(finding(source, line, &what, fix));
            }
        }
    }
    findings
}

/// Whoever sleeps says why there is no event to wait for.
#[must_use]
pub fn sleeps(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &repo.sources {
        for (line, code) in source.production() {
            if code.contains("thread::sleep") && !has_reason(source, line, "Sleep:") {
                let fix = "wait for an event, or say in `// Sleep: …` just above why there is none";
                findings.push(finding(source, line, "sleeps without a reason", fix));
            }
        }
    }
    findings
}

fn finding(source: &Source, line: usize, what: &str, fix: &'static str) -> Finding {
    Finding { path: source.path.clone(), line: line + 1, what: what.into(), fix }
}

/// `panic!(` must not be found in `my_panic!(`.
fn calls(code: &str, panic: &str) -> bool {
    if panic.starts_with('.') {
        return code.contains(panic);
    }
    let name = panic.trim_end_matches("!(");
    words(code, name).any(|at| code[at..].starts_with(panic))
}

fn is_crate_root(path: &str) -> bool {
    let Some((_, inside)) = path.split_once('/') else { return false };
    matches!(inside, "src/lib.rs" | "src/main.rs") || inside.starts_with("src/bin/")
}

/// Whether `word` stands in a comment on the line, or above it within the statement or just before that.
fn has_reason(source: &Source, line: usize, word: &str) -> bool {
    let lowest = line.saturating_sub(REASON_LINES_MAX);
    let mut in_statement = true;
    for at in (lowest..=line).rev() {
        let code = source.code[at].trim();
        let is_bare = code.is_empty() || code.starts_with("#[");
        if at < line {
            // The line that ends the statement before; above it only comments that touch this one count.
            in_statement = in_statement && !is_bare && !code.ends_with([';', '{', '}', ',']);
            let is_comment = code.is_empty() && source.lines[at].trim_start().starts_with("//");
            if !in_statement && !is_comment && !code.starts_with("#[") {
                return false;
            }
        }
        if comment(source, at).contains(word) {
            return true;
        }
    }
    false
}

/// What is on the line but not code.
fn comment(source: &Source, line: usize) -> &str {
    source.lines[line].find("//").map_or("", |at| &source.lines[line][at..])
}

#[cfg(test)]
mod tests {
    use super::super::repo::fake;
    use super::*;

    const NONE: [usize; 0] = [];

    fn found(rule: fn(&Repo) -> Vec<Finding>, text: &str) -> Vec<usize> {
        rule(&fake(&[("a/src/b.rs", text)])).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_panic_needs_its_invariant() {
        assert_eq!(found(panics, "fn f() {\n    a.unwrap();\n}"), [2]);
        assert_eq!(found(panics, "fn f() {\n    a.unwrap(); // Invariant: set above.\n}"), NONE);
        assert_eq!(found(panics, "fn f() {\n    // Invariant: set above.\n    a.expect(\"b\");\n}"), NONE);
        assert_eq!(
            found(
                panics,
                "fn f() {\n    // Invariant: one,\n    // two.\n    #[expect(x)]\n    a.unwrap();\n}"
            ),
            NONE
        );
        assert_eq!(
            found(
                panics,
                "fn f() {\n    // Invariant: x.\n    let b = a\n        .c()\n        .unwrap();\n}"
            ),
            NONE
        );
        assert_eq!(found(panics, "fn f() {\n    // Invariant: x.\n    b();\n    a.unwrap();\n}"), [4]);
        assert_eq!(found(panics, "fn f() {\n    // Invariant: x.\n\n    a.unwrap();\n}"), [4]);
    }

    #[test]
    fn other_words_and_tests_may() {
        assert_eq!(
            found(panics, "fn f() { a.unwrap_or(1); \".unwrap()\"; /* panic!( */ my_panic!(); }"),
            NONE
        );
        assert_eq!(found(panics, "#[cfg(test)]\nmod t {\n    fn f() { a.unwrap(); panic!(); }\n}"), NONE);
        assert_eq!(found(panics, "fn f() { std::panic!(\"x\") }"), [1]);
    }

    #[test]
    fn a_sleep_needs_its_reason() {
        assert_eq!(found(sleeps, "fn f() {\n    std::thread::sleep(x);\n}"), [2]);
        assert_eq!(
            found(sleeps, "fn f() {\n    // Sleep: sysfs has no event.\n    thread::sleep(x);\n}"),
            NONE
        );
    }

    #[test]
    fn unsafe_belongs_into_fabric() {
        let head = "#![forbid(unsafe_code)]\n";
        let repo = fake(&[
            ("fabric/src/lib.rs", "unsafe { a() }"),
            ("bindings/c/src/lib.rs", "unsafe { a() }"),
            ("server/src/lib.rs", &format!("{head}// unsafe\nlet a = \"unsafe\";")),
            ("server/src/x.rs", "fn f() { unsafe { a() } }"),
            ("worker/src/main.rs", "fn main() {}"),
        ]);
        let found: Vec<_> = unsafe_places(&repo).into_iter().map(|f| (f.path, f.line)).collect();
        assert_eq!(found, [("server/src/x.rs".to_owned(), 1), ("worker/src/main.rs".to_owned(), 1)]);
    }
}
