//! Which tests a log says have failed, and with what words, so that the last lines of a run are enough to know.
//! Pure text. Must not judge: what counts as a failure is `verdict`'s affair.

use std::fmt;

/// Lines that one failed test may take.
const TEST_LINES_MAX: usize = 12;
/// Lines for all failed tests together.
const LINES_MAX: usize = 60;
/// Failed tests that a suite's last line names.
const NAMES_MAX: usize = 10;
/// An assertion may print a whole buffer in one line.
const LINE_CHARS_MAX: usize = 300;

/// A failed test.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// Its name.
    pub test: String,
    /// Where it panicked and what it said.
    pub words: Vec<String>,
}

/// What went wrong in one suite.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SuiteFailures {
    /// The suite.
    pub suite: String,
    /// Where its log is, for people.
    pub log: String,
    /// Its failed tests, in the order of the log.
    pub failures: Vec<Failure>,
}

impl SuiteFailures {
    /// What `text`, the log of a suite that failed, says; `fault` is what is wrong beyond failed tests.
    #[must_use]
    pub fn find(suite: &str, log: String, text: &str, fault: Option<&str>) -> Self {
        let mut failures = sections(text);
        for name in text.lines().filter_map(failed_test) {
            if failures.iter().all(|failure| failure.test != name) {
                failures.push(Failure { test: name.to_owned(), words: Vec::new() });
            }
        }
        let words = |text| fault.map(str::to_owned).into_iter().chain(last_words(text)).collect();
        if let Some((name, part)) = unfinished(text) {
            failures.push(Failure { test: format!("{name} (did not end)"), words: words(part) });
        } else if failures.is_empty() || fault.is_some() {
            failures.push(Failure { test: "(no test by name)".into(), words: words(text) });
        }
        Self { suite: suite.to_owned(), log, failures }
    }
}

/// One line: the suite, its failed tests, its log.
impl fmt::Display for SuiteFailures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.failures.iter().take(NAMES_MAX).map(|failure| &*failure.test).collect();
        write!(f, "FAILED in {}: {}", self.suite, names.join(", "))?;
        match self.failures.len() - names.len() {
            0 => {}
            more => write!(f, " and {more} more")?,
        }
        write!(f, "; log: {}", self.log)
    }
}

/// What the failed tests said, in a bounded number of lines.
#[must_use]
pub fn details(suites: &[SuiteFailures]) -> Vec<String> {
    let mut lines = Vec::new();
    for suite in suites {
        for failure in &suite.failures {
            lines.push(format!("{}: {}", suite.suite, failure.test));
            lines.extend(
                failure.words.iter().take(TEST_LINES_MAX - 1).map(|line| format!("    {}", cut(line))),
            );
        }
    }
    if lines.len() > LINES_MAX {
        let more = lines.len() - (LINES_MAX - 1);
        lines.truncate(LINES_MAX - 1);
        lines.push(format!("… and {more} lines more; see the logs"));
    }
    lines
}

/// `test NAME ... FAILED`, with or without the time that it took.
fn failed_test(line: &str) -> Option<&str> {
    let (name, end) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    (end == "FAILED" || end.starts_with("FAILED <")).then_some(name)
}

fn cut(line: &str) -> &str {
    line.char_indices().nth(LINE_CHARS_MAX).map_or(line, |(end, _)| &line[..end])
}

/// The sections `---- NAME stdout ----` of libtest: of each the panics, or where it has none, its first lines.
fn sections(text: &str) -> Vec<Failure> {
    let mut found: Vec<Failure> = Vec::new();
    let (mut is_open, mut is_panic, mut has_panicked) = (false, false, false);
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            found.push(Failure { test: name.to_owned(), words: Vec::new() });
            (is_open, is_panic, has_panicked) = (true, false, false);
        } else if line == "failures:" || line.starts_with("test result: ") {
            is_open = false;
        }
        let Some(failure) = found.last_mut().filter(|_| is_open && !line.starts_with("---- ")) else {
            continue;
        };
        if let Some(place) = place_of_panic(line) {
            if !has_panicked {
                failure.words.clear();
            }
            failure.words.push(format!("panicked at {place}"));
            (is_panic, has_panicked) = (true, true);
        } else if is_panic && ends_panic(line) {
            is_panic = false;
        } else if (is_panic || !has_panicked) && !line.is_empty() {
            failure.words.push(line.to_owned());
        }
    }
    found
}

/// `thread 'NAME' (ID) panicked at FILE:LINE:COLUMN:`
fn place_of_panic(line: &str) -> Option<&str> {
    let (_, place) = line.strip_prefix("thread '")?.split_once(" panicked at ")?;
    Some(place.trim_end_matches(':'))
}

/// What follows a panic's message: a hint, a backtrace, what a rig tells of its processes, nothing.
fn ends_panic(line: &str) -> bool {
    line.is_empty() || line.starts_with("note: ") || line == "stack backtrace:" || line.starts_with("--- ")
}

/// The test that an executable had begun when it crashed or was killed, and its part of the log. Tests that run
/// one after the other are named when they begin.
fn unfinished(text: &str) -> Option<(&str, &str)> {
    // The runner names each executable in a line that begins so.
    let cut_short = text.split("\n$ ").filter(|part| !part.contains("\ntest result: "));
    cut_short.filter_map(|part| Some((begun_last(part)?, part))).next()
}

fn begun_last(part: &str) -> Option<&str> {
    let (name, rest) = part.lines().rev().find_map(|line| line.strip_prefix("test ")?.split_once(" ... "))?;
    let has_ended = ["ok", "FAILED", "ignored"].iter().any(|end| rest.starts_with(end));
    (!has_ended).then_some(name)
}

/// A compiler's errors with their places, or just the last lines.
fn last_words(text: &str) -> Vec<String> {
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let is_error = |line: &str| line.starts_with("error: ") || line.starts_with("error[");
    let errors: Vec<_> = lines
        .iter()
        .enumerate()
        .filter(|(at, line)| is_error(line) || (*at > 0 && is_error(lines[at - 1]) && line.contains("--> ")))
        .map(|(_, line)| (*line).to_owned())
        .collect();
    if !errors.is_empty() {
        return errors;
    }
    lines[lines.len().saturating_sub(TEST_LINES_MAX - 2)..].iter().map(|line| (*line).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As libtest writes it, with what the rigs add.
    const LOG: &str = "\
$ /t/process_kill-1

running 2 tests
test any_one_killed_over_shm ... FAILED
test any_one_killed_over_tcp ... ok

failures:

---- any_one_killed_over_shm stdout ----
strike: server 1

thread 'any_one_killed_over_shm' (29276) panicked at tests/src/rigs/process.rs:84:13:
server 1 did not end within 4.9s
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
--- server 1 (process 29281), still running:
    INFO server registered rank=1

failures:
    any_one_killed_over_shm

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 25.52s
$ /t/process_wait-1

running 1 test
test waits ... FAILED

failures:

---- waits stdout ----

thread '<unnamed>' (7) panicked at tests/a.rs:1:2:
assertion `left == right` failed
  left: 1
 right: 2
stack backtrace:
   0: f

thread 'waits' (8) panicked at std/scoped.rs:3:4:
a scoped thread panicked


failures:
    waits

test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s
";

    fn find(text: &str, fault: Option<&str>) -> SuiteFailures {
        SuiteFailures::find("process", "target/suites/process.log".into(), text, fault)
    }

    #[test]
    fn names_each_failed_test_with_place_and_words() {
        let found = find(LOG, None);
        let lines = [
            "process: any_one_killed_over_shm",
            "    panicked at tests/src/rigs/process.rs:84:13",
            "    server 1 did not end within 4.9s",
            "process: waits",
            "    panicked at tests/a.rs:1:2",
            "    assertion `left == right` failed",
            "      left: 1",
            "     right: 2",
            "    panicked at std/scoped.rs:3:4",
            "    a scoped thread panicked",
        ];
        assert_eq!(details(std::slice::from_ref(&found)), lines);
        let last = "FAILED in process: any_one_killed_over_shm, waits; log: target/suites/process.log";
        assert_eq!(found.to_string(), last);
    }

    #[test]
    fn a_test_that_did_not_end_is_named() {
        let fault = Some("killed at its deadline of 9 s");
        let found = find("running 2 tests\ntest quick ... ok\ntest hangs ... waiting\nstill\n", fault);
        assert_eq!(found.failures.len(), 1);
        assert_eq!(found.failures[0].test, "hangs (did not end)");
        assert_eq!(found.failures[0].words[0], "killed at its deadline of 9 s");
        assert_eq!(found.failures[0].words.last().unwrap(), "still");
        // One that printed something before its result has ended.
        let printed = "test chatty ... hello\nok\n\ntest result: ok. 1 passed; 0 failed; 0 ignored\n";
        assert_eq!(find(printed, fault).failures[0].test, "(no test by name)");
        let crashed = format!("$ /t/a\ntest crashes ... boom\n$ /t/b\n{printed}");
        let failure = Failure {
            test: "crashes (did not end)".into(),
            words: vec!["$ /t/a".into(), "test crashes ... boom".into()],
        };
        assert_eq!(find(&crashed, None).failures, [failure]);
    }

    #[test]
    fn a_failure_without_a_panic_tells_what_there_is() {
        let returned = "---- fails stdout ----\nError: \"no such file\"\n\n\nfailures:\n    fails\n";
        let failure = Failure { test: "fails".into(), words: vec!["Error: \"no such file\"".into()] };
        assert_eq!(find(returned, None).failures, [failure]);
        for silent in ["test fails ... FAILED\n", "test fails ... FAILED <0.123s>\n"] {
            let silent = find(silent, None);
            assert_eq!(silent.failures, [Failure { test: "fails".into(), words: Vec::new() }]);
        }
    }

    #[test]
    fn a_build_shows_its_errors() {
        let log = "   Compiling a\nerror[E0063]: missing field `x`\n  --> a/src/lib.rs:1:2\n   |\n\
                   error: could not compile `a`\nwarning: build failed, waiting\n";
        let words = [
            "no build",
            "error[E0063]: missing field `x`",
            "  --> a/src/lib.rs:1:2",
            "error: could not compile `a`",
        ];
        assert_eq!(find(log, Some("no build")).failures[0].words, words);
    }

    #[test]
    fn many_failures_stay_within_their_bounds() {
        let section = |number| {
            let message = "long\n".repeat(40);
            format!("---- test_{number} stdout ----\n\nthread 'x' panicked at a.rs:1:1:\n{message}\n")
        };
        let found = find(&(1..=20).map(section).collect::<String>(), None);
        let one = details(&[SuiteFailures { failures: found.failures[..1].to_vec(), ..found.clone() }]);
        assert_eq!(one.len(), TEST_LINES_MAX);
        let lines = details(std::slice::from_ref(&found));
        assert_eq!(lines.len(), LINES_MAX);
        assert_eq!(
            lines[LINES_MAX - 1],
            format!("… and {} lines more; see the logs", 20 * TEST_LINES_MAX - 59)
        );
        assert!(found.to_string().contains("test_10 and 10 more; log: "), "{found}");
        let wide = Failure { test: "wide".into(), words: vec!["ä".repeat(5000)] };
        let lines = details(&[SuiteFailures { failures: vec![wide], ..SuiteFailures::default() }]);
        assert_eq!(lines[1].chars().count(), 4 + LINE_CHARS_MAX);
    }
}
