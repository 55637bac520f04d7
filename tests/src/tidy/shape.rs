//! How files look: a head that says what they own, files and functions of a size one can read, no notes to
//! self, and a figure of how much is public.

use super::source::{line_of, matching, words};
use super::{Finding, Repo, Source};
use std::collections::BTreeMap;

/// Lines of a file, tests inside it left out.
pub const FILE_LINES_MAX: usize = 600;
/// Lines of the middle file of a crate.
pub const FILE_LINES_MEDIAN_MAX: usize = 200;
/// Lines of code of a function.
pub const FUNCTION_LINES_MAX: usize = 70;
/// Crates whose surface is watched.
const ROLES: [&str; 3] = ["scheduler", "server", "worker"];

/// Every file opens with what it owns.
#[must_use]
pub fn heads(repo: &Repo) -> Vec<Finding> {
    let headless = |source: &&Source| !source.lines.first().is_some_and(|line| line.starts_with("//!"));
    let finding = |source: &Source| Finding {
        path: source.path.clone(),
        line: 1,
        what: "does not open with `//!`".into(),
        fix: "say in its first lines what the file owns and what it must not do",
    };
    repo.sources.iter().filter(headless).map(finding).collect()
}

/// No file is too long to read.
#[must_use]
pub fn file_lengths(repo: &Repo) -> Vec<Finding> {
    let long = repo.sources.iter().filter(|source| own_lines(source) > FILE_LINES_MAX);
    long.map(|source| Finding {
        path: source.path.clone(),
        line: FILE_LINES_MAX + 1,
        what: format!("has {} lines, at most {FILE_LINES_MAX} are allowed", own_lines(source)),
        fix: "split it by what its parts own",
    })
    .collect()
}

/// The median file of each crate is short. Also returns the table of medians, to be printed.
#[must_use]
pub fn file_medians(repo: &Repo) -> (Vec<Finding>, String) {
    let mut by_crate: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for source in repo.sources.iter().filter(|source| !is_all_test(source)) {
        let name = source.path.split('/').next().unwrap_or_default();
        by_crate.entry(name).or_default().push(own_lines(source));
    }
    let mut findings = Vec::new();
    let mut table = String::new();
    for (name, mut lengths) in by_crate {
        lengths.sort_unstable();
        let median = lengths[lengths.len() / 2];
        let longest = lengths[lengths.len() - 1];
        table += &format!("{name}: {} files, median {median} lines, longest {longest}\n", lengths.len());
        if median > FILE_LINES_MEDIAN_MAX {
            findings.push(Finding {
                path: name.into(),
                line: 1,
                what: format!(
                    "its median file has {median} lines, at most {FILE_LINES_MEDIAN_MAX} are allowed"
                ),
                fix: "split its long files by what their parts own",
            });
        }
    }
    (findings, table)
}

/// No function is too long to see at once.
#[must_use]
pub fn function_lengths(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &repo.sources {
        for (line, name, length) in functions(source) {
            if length > FUNCTION_LINES_MAX {
                findings.push(Finding {
                    path: source.path.clone(),
                    line: line + 1,
                    what: format!(
                        "`{name}` has {length} lines of code, at most {FUNCTION_LINES_MAX} are allowed"
                    ),
                    fix: "give its steps names of their own",
                });
            }
        }
    }
    findings
}

/// No notes to self: they belong into an issue.
#[must_use]
pub fn notes_to_self(repo: &Repo) -> Vec<Finding> {
    // Put together here, so that this file does not break its own rule.
    let notes = [["TO", "DO"].concat(), ["FIX", "ME"].concat(), ["XX", "X"].concat()];
    let mut findings = Vec::new();
    let sources = repo.sources.iter().map(|source| (&source.path, source.lines.join("\n")));
    let texts = repo.texts.iter().map(|(path, text)| (path, text.clone()));
    for (path, text) in sources.chain(texts) {
        for (index, line) in text.lines().enumerate() {
            if let Some(note) = notes.iter().find(|note| words(line, note).next().is_some()) {
                findings.push(Finding {
                    path: path.clone(),
                    line: index + 1,
                    what: format!("holds a {note}"),
                    fix: "do it now, or describe it in an issue",
                });
            }
        }
    }
    findings
}

/// How much of each role crate is public, as a table to be printed: `pub(crate)` should outnumber `pub`.
#[must_use]
pub fn surface(repo: &Repo) -> String {
    let mut table = String::new();
    for role in ROLES {
        let (mut public, mut internal) = (0, 0);
        for source in repo.sources.iter().filter(|s| s.path.starts_with(&format!("{role}/src/"))) {
            for (_, code) in source.production() {
                public += words(code, "pub").filter(|at| !code[at + 3..].starts_with('(')).count();
                internal += code.matches("pub(").count();
            }
        }
        table += &format!("{role}: {internal} pub(crate), {public} pub\n");
    }
    table
}

fn is_all_test(source: &Source) -> bool {
    source.is_test.iter().all(|is_test| *is_test)
}

/// Lines without the tests inside; a file of tests counts whole.
fn own_lines(source: &Source) -> usize {
    let counts_whole = is_all_test(source);
    let last_is_empty = source.lines.last().is_some_and(String::is_empty);
    let lines = source.is_test.len() - usize::from(last_is_empty);
    source.is_test[..lines].iter().filter(|is_test| counts_whole || !**is_test).count()
}

/// Every function with a body: its line from 0, name, and lines of code.
fn functions(source: &Source) -> Vec<(usize, String, usize)> {
    let masked = source.code.join("\n");
    let mut found = Vec::new();
    for at in words(&masked, "fn") {
        let rest = masked[at + 2..].trim_start();
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        // `fn(u8)` is a type.
        let (false, Some(open)) = (name.is_empty(), body(&masked, at)) else { continue };
        let close = matching(&masked, open).unwrap_or(masked.len());
        let (first, last) = (line_of(&masked, at), line_of(&masked, close));
        let length = source.code[first..=last].iter().filter(|code| !code.trim().is_empty()).count();
        found.push((first, name, length));
    }
    found
}

/// Where the body of the function at `at` opens; `None` for a declaration.
fn body(masked: &str, at: usize) -> Option<usize> {
    let bytes = masked.as_bytes();
    let mut here = at;
    while here < bytes.len() {
        match bytes[here] {
            b'{' => return Some(here),
            b';' => return None,
            b'(' | b'[' => here = matching(masked, here)?,
            _ => {}
        }
        here += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::repo::fake;
    use super::*;

    #[test]
    fn a_file_without_a_head_is_found() {
        let repo =
            fake(&[("a/src/b.rs", "//! Owns.\n"), ("a/src/c.rs", "use x;\n//! Late.\n"), ("a/src/d.rs", "")]);
        let found: Vec<_> = heads(&repo).into_iter().map(|finding| finding.path).collect();
        assert_eq!(found, ["a/src/c.rs", "a/src/d.rs"]);
    }

    #[test]
    fn file_length_from_both_sides_with_tests_left_out() {
        let of = |own: usize, tests: usize| {
            let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "// x\n".repeat(tests));
            fake(&[("a/src/b.rs", &("// x\n".repeat(own) + &tests))])
        };
        assert_eq!(file_lengths(&of(600, 900)), []);
        assert_eq!(file_lengths(&of(601, 0)).len(), 1);
        assert_eq!(own_lines(&fake(&[("a/src/b.rs", "a\nb")]).sources[0]), 2);
    }

    #[test]
    fn median_from_both_sides() {
        let of = |lines: usize| {
            let text = "// x\n".repeat(lines);
            file_medians(&fake(&[("a/src/b.rs", &text), ("a/src/c.rs", "// x\n"), ("a/src/d.rs", &text)])).0
        };
        assert_eq!(of(200), []);
        assert_eq!(of(201).len(), 1);
    }

    #[test]
    fn function_length_from_both_sides() {
        let of = |lines: usize| {
            let text = format!("fn f() {{\n{}    // c\n\n}}\n", "    x();\n".repeat(lines - 2));
            function_lengths(&fake(&[("a/src/b.rs", &text)]))
        };
        assert_eq!(of(70), []);
        assert_eq!(of(71)[0].what, "`f` has 71 lines of code, at most 70 are allowed");
    }

    #[test]
    fn braces_in_literals_types_and_declarations_do_not_confuse() {
        let text = "trait T {\n fn a(&self, x: [u8; 2]);\n}\nfn b(f: fn(u8) -> u8) {\n  g('{', \"}\");\n}\nfn c() {}\n";
        let repo = fake(&[("a/src/b.rs", text)]);
        let found = functions(&repo.sources[0]);
        assert_eq!(found, [(3, "b".to_owned(), 3), (6, "c".to_owned(), 1)]);
    }

    #[test]
    fn notes_are_found_as_words_in_any_text() {
        let note = ["TO", "DO"].concat();
        let text = format!("// {note}: later\n// {note}S\n");
        let repo =
            fake(&[("a/src/b.rs", &text), ("Makefile", &format!("# {note}\n")), ("x.md", "mktemp aXXXXXX")]);
        let found: Vec<_> = notes_to_self(&repo).into_iter().map(|f| (f.path, f.line)).collect();
        assert_eq!(found, [("a/src/b.rs".to_owned(), 1), ("Makefile".to_owned(), 1)]);
    }

    #[test]
    fn surface_counts_outside_tests() {
        let text = "pub fn a() {}\npub(crate) fn b() {}\npub(super) fn c() {}\n#[cfg(test)]\nmod t { pub fn d() {} }\n";
        let table = surface(&fake(&[("server/src/lib.rs", text)]));
        assert!(table.contains("server: 2 pub(crate), 1 pub\n"), "{table}");
    }
}
