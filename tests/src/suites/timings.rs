//! How long each test took, as a log reports it: libtest's `--report-time` and pytest's `--durations`. Pure text.

use std::time::Duration;

/// A test and how long it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The test's name.
    pub test: String,
    /// From its start to its end.
    pub took: Duration,
}

/// All timings in a log, in its order.
#[must_use]
pub fn timings(log: &str) -> Vec<Timing> {
    log.lines().filter_map(|line| of_libtest(line).or_else(|| of_pytest(line))).collect()
}

/// `test kill::by_signal ... ok <1.234s>`
fn of_libtest(line: &str) -> Option<Timing> {
    let (test, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let (_, seconds) = rest.rsplit_once('<')?;
    Some(Timing { test: test.to_owned(), took: seconds_of(seconds.strip_suffix('>')?)? })
}

/// `1.23s call     tests/test_moves.py::test_sums`
fn of_pytest(line: &str) -> Option<Timing> {
    let mut words = line.split_whitespace();
    let took = seconds_of(words.next()?)?;
    let is_test = words.next()? == "call";
    let test = words.next()?;
    (is_test && test.contains("::")).then(|| Timing { test: test.to_owned(), took })
}

fn seconds_of(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.strip_suffix('s')?.parse().ok()?).ok()
}

/// The `count` slowest, slowest first.
#[must_use]
pub fn slowest(mut all: Vec<Timing>, count: usize) -> Vec<Timing> {
    all.sort_by_key(|timing| std::cmp::Reverse(timing.took));
    all.truncate(count);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(test: &str, millis: u64) -> Timing {
        Timing { test: test.into(), took: Duration::from_millis(millis) }
    }

    #[test]
    fn reads_both_forms_and_passes_over_other_lines() {
        let log = "\
test a::quick ... ok <0.004s>
test a::broken ... FAILED <1.500s>
test a::hidden ... ignored
test a::without ... ok
  2.25s call     tests/test_moves.py::test_sums
0.50s setup    tests/test_moves.py::test_sums
1.0s call nothing
test result: ok. 1 passed; 0 failed <5s>
test odd ... ok <nan>
";
        let wanted = [
            timing("a::quick", 4),
            timing("a::broken", 1500),
            timing("tests/test_moves.py::test_sums", 2250),
        ];
        assert_eq!(timings(log), wanted);
    }

    #[test]
    fn the_slowest_come_first() {
        let all = vec![timing("a", 1), timing("b", 3), timing("c", 2)];
        assert_eq!(slowest(all.clone(), 2), [timing("b", 3), timing("c", 2)]);
        assert_eq!(slowest(all, 9).len(), 3);
    }
}
