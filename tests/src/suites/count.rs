//! How many tests a log says have run: libtest's `test result:` lines, nextest's summary, or the plain
//! closing line `N passed, N failed`. Pure text.

use std::ops::AddAssign;

/// Tests by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Passed.
    pub passed: u64,
    /// Failed.
    pub failed: u64,
}

impl Count {
    /// Tests that ran.
    #[must_use]
    pub fn ran(self) -> u64 {
        self.passed + self.failed
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// Adds up all summaries in a log. `None` where there is none: the command does not count its tests.
#[must_use]
pub fn count(log: &str) -> Option<Count> {
    let mut total = None;
    for line in log.lines() {
        if let Some(count) = summary(&strip_colour(line)) {
            *total.get_or_insert_with(Count::default) += count;
        }
    }
    total
}

fn summary(line: &str) -> Option<Count> {
    let line = line.trim();
    if let Some(rest) = line.strip_prefix("test result: ") {
        // `test result: FAILED. 3 passed; 1 failed; 0 ignored; …`
        let counts = rest.split_once(". ")?.1;
        return Some(Count { passed: number(counts, "passed")?, failed: number(counts, "failed")? });
    }
    if let Some(rest) = line.strip_prefix("Summary [") {
        // `Summary [   0.123s] 12 tests run: 11 passed (1 slow), 1 failed, 2 skipped`
        let counts = rest.split_once("run: ")?.1;
        let part = |word| number(counts, word).unwrap_or(0);
        return Some(Count { passed: part("passed"), failed: part("failed") + part("timed out") });
    }
    let (passed, failed) = line.split_once(", ")?;
    Some(Count { passed: exactly(passed, " passed")?, failed: exactly(failed, " failed")? })
}

/// The number before `word` in a list such as `11 passed (1 slow), 1 failed`.
fn number(list: &str, word: &str) -> Option<u64> {
    list.split([';', ',']).find_map(|part| {
        let (number, rest) = part.trim().split_once(' ')?;
        rest.starts_with(word).then(|| number.parse().ok())?
    })
}

fn exactly(text: &str, suffix: &str) -> Option<u64> {
    text.strip_suffix(suffix)?.parse().ok()
}

/// The line without terminal colours (`ESC [ … letter`).
fn strip_colour(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        if c != '\u{1b}' {
            plain.push(c);
        } else if rest.next() == Some('[') {
            // The sequence ends with its first letter, which `find` consumes.
            rest.find(char::is_ascii_alphabetic);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(passed: u64, failed: u64) -> Option<Count> {
        Some(Count { passed, failed })
    }

    #[test]
    fn adds_up_the_executables_of_one_command() {
        let log = "\
running 2 tests
test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.01s

test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";
        assert_eq!(count(log), of(15, 2));
        assert_eq!(count(log).map(Count::ran), Some(17));
    }

    #[test]
    fn nothing_ran_differs_from_nothing_counted() {
        let none = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(count(none), of(0, 0));
        assert_eq!(count("hello\n"), None);
        assert_eq!(count(""), None);
    }

    #[test]
    fn reads_the_summary_of_nextest() {
        let line = "     Summary [   0.123s] 12 tests run: 11 passed (1 slow), 1 failed, 2 skipped";
        assert_eq!(count(line), of(11, 1));
        let timeout = "Summary [  60.1s] 3/4 tests run: 1 passed, 1 failed, 1 timed out, 0 skipped";
        assert_eq!(count(timeout), of(1, 2));
        assert_eq!(count("Summary [ 0.1s] 1 test run: 1 passed, 0 skipped"), of(1, 0));
    }

    #[test]
    fn reads_a_plain_closing_line_only_alone_on_its_line() {
        assert_eq!(count("7 passed, 1 failed\n"), of(7, 1));
        assert_eq!(count("of all, 7 passed, 1 failed\n"), None);
        assert_eq!(count("7 passed, 1 failed, 2 odd\n"), None);
        assert_eq!(count("passed, failed\n"), None);
    }

    #[test]
    fn sees_through_colours() {
        let line = "test result: \u{1b}[32mok\u{1b}[0m. 4 passed; 0 failed; 0 ignored";
        assert_eq!(count(line), of(4, 0));
    }

    #[test]
    fn a_line_cut_short_by_a_crash_counts_nothing() {
        assert_eq!(count("test result: ok. 4 pas"), None);
        assert_eq!(count("test result: "), None);
        assert_eq!(count("\u{1b}"), None);
    }
}
