//! What became of a suite, and the lines that say so. Pure: no clock, no files.

use super::count::Count;
use super::manifest::{Suite, Tier};
use super::process::Ending;
use std::fmt;
use std::time::Duration;

/// What became of a suite.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It ran, well or badly.
    Ran {
        /// Its tests.
        count: Count,
        /// How long it took.
        took: Duration,
        /// How long it may take.
        budget: Duration,
        /// What is wrong beyond failed tests, if anything.
        fault: Option<String>,
    },
    /// It did not.
    NotRun {
        /// Why, with the fix.
        reason: String,
        /// Whether that is a failure.
        is_failure: bool,
    },
}

/// A suite's name and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The suite.
    pub name: String,
    /// What became of it.
    pub outcome: Outcome,
}

/// Judges a command that ran: `counted` is what its log says, `endings` how its executables ended.
#[must_use]
pub fn judge(suite: &Suite, counted: Option<Count>, endings: &[Ending], took: Duration) -> Outcome {
    let bad = endings.iter().find(|ending| **ending != Ending::Exited { code: 0 });
    // A program that counts nothing is one test.
    let count = counted.unwrap_or(Count { passed: u64::from(bad.is_none()), failed: 0 });
    let fault = match bad {
        Some(Ending::Deadline) => Some(format!("killed at its deadline of {} s", suite.deadline_s)),
        Some(Ending::Stopped) => Some("stopped from outside".to_owned()),
        Some(Ending::Exited { code }) if count.failed == 0 => {
            Some(format!("ended with code {code} and no failed test: a crash, or it did not compile"))
        }
        _ if count.ran() < suite.minimum => {
            Some(format!("at least {} tests were expected, {} ran", suite.minimum, count.ran()))
        }
        _ => None,
    };
    Outcome::Ran { count, took, budget: suite.budget(), fault }
}

/// A suite that this machine cannot run: with CI's strictness that is a failure in the fast tier.
#[must_use]
pub fn not_run(suite: &Suite, reason: String, is_strict: bool) -> Outcome {
    Outcome::NotRun { reason, is_failure: is_strict && suite.tier == Tier::Fast }
}

impl Outcome {
    /// Tests to add to the total; a suite-level fault is one failed test more.
    #[must_use]
    pub fn total(&self) -> Count {
        match self {
            Self::Ran { count, fault, .. } => {
                Count { passed: count.passed, failed: count.failed + u64::from(fault.is_some()) }
            }
            Self::NotRun { is_failure, .. } => Count { passed: 0, failed: u64::from(*is_failure) },
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Outcome::Ran { count, took, budget, fault } => {
                let (took_s, budget_s) = (took.as_secs_f64(), budget.as_secs());
                write!(f, "{:<18} {:>5} tests {took_s:>8.1} s of {budget_s:>4} s", self.name, count.ran())?;
                if took > budget {
                    write!(f, ", OVER BUDGET")?;
                }
                if count.failed > 0 {
                    write!(f, ", {} FAILED", count.failed)?;
                }
                match fault {
                    Some(fault) => write!(f, ", FAILED: {fault}"),
                    None => Ok(()),
                }
            }
            Outcome::NotRun { reason, is_failure } => {
                let failed = if *is_failure { ", FAILED: CI must run it" } else { "" };
                write!(f, "{:<18} NOT RUN ({reason}){failed}", self.name)
            }
        }
    }
}

/// The closing line.
#[must_use]
pub fn closing_line(total: Count) -> String {
    format!("{} passed, {} failed", total.passed, total.failed)
}

#[cfg(test)]
mod tests {
    use super::super::count;
    use super::*;

    fn suite(tier: Tier) -> Suite {
        Suite {
            name: "s".into(),
            tier,
            command: vec!["true".into()],
            minimum: 3,
            budget_s: Some(2),
            deadline_s: 9,
            covers: String::new(),
            needs: Vec::new(),
            quick: false,
            alone: false,
            slots: 1,
            prepare: Vec::new(),
            env: Default::default(),
        }
    }

    fn line(counted: Option<(u64, u64)>, ending: Ending) -> (String, Count) {
        let counted = counted.map(|(passed, failed)| Count { passed, failed });
        let outcome = judge(&suite(Tier::Fast), counted, &[ending], Duration::from_millis(1500));
        let total = outcome.total();
        (Verdict { name: "s".into(), outcome }.to_string(), total)
    }

    #[test]
    fn a_good_suite_has_one_plain_line() {
        let (text, total) = line(Some((3, 0)), Ending::Exited { code: 0 });
        assert_eq!(text, format!("{:<18}     3 tests      1.5 s of    2 s", "s"));
        assert_eq!(total, Count { passed: 3, failed: 0 });
    }

    #[test]
    fn a_failed_test_is_counted_once() {
        let (text, total) = line(Some((2, 1)), Ending::Exited { code: 101 });
        assert_eq!(text, format!("{:<18}     3 tests      1.5 s of    2 s, 1 FAILED", "s"));
        assert_eq!(total, Count { passed: 2, failed: 1 });
    }

    #[test]
    fn too_few_tests_are_a_failure_although_all_passed() {
        let (text, total) = line(Some((2, 0)), Ending::Exited { code: 0 });
        assert!(text.ends_with("FAILED: at least 3 tests were expected, 2 ran"), "{text}");
        assert_eq!(total, Count { passed: 2, failed: 1 });
    }

    #[test]
    fn a_crash_without_a_count_is_a_failure() {
        let (text, total) = line(None, Ending::Exited { code: 134 });
        assert!(text.contains("code 134"), "{text}");
        assert_eq!(total, Count { passed: 0, failed: 1 });
    }

    #[test]
    fn a_hung_suite_is_named_with_its_deadline() {
        let (text, total) = line(Some((3, 0)), Ending::Deadline);
        assert!(text.ends_with("FAILED: killed at its deadline of 9 s"), "{text}");
        assert_eq!(total.failed, 1);
    }

    #[test]
    fn more_time_than_the_budget_is_a_warning() {
        let counted = Some(Count { passed: 3, failed: 0 });
        let took = |millis| {
            let outcome = judge(
                &suite(Tier::Fast),
                counted,
                &[Ending::Exited { code: 0 }],
                Duration::from_millis(millis),
            );
            (
                outcome.total().failed,
                Verdict { name: "s".into(), outcome }.to_string().contains("OVER BUDGET"),
            )
        };
        assert_eq!(took(2000), (0, false));
        assert_eq!(took(2001), (0, true));
    }

    #[test]
    fn one_bad_executable_among_good_ones_is_seen() {
        let endings = [Ending::Exited { code: 0 }, Ending::Exited { code: 139 }];
        let counted = count::count("test result: ok. 5 passed; 0 failed;");
        let outcome = judge(&suite(Tier::Fast), counted, &endings, Duration::ZERO);
        assert_eq!(outcome.total(), Count { passed: 5, failed: 1 });
    }

    #[test]
    fn a_program_that_counts_nothing_is_one_test() {
        let mut suite = suite(Tier::Fast);
        suite.minimum = 1;
        let outcome = judge(&suite, None, &[Ending::Exited { code: 0 }], Duration::ZERO);
        assert_eq!(outcome.total(), Count { passed: 1, failed: 0 });
    }

    #[test]
    fn not_run_fails_only_the_fast_tier_under_ci() {
        let failed = |tier, strict| not_run(&suite(tier), "no netns".into(), strict).total().failed;
        assert_eq!(failed(Tier::Fast, true), 1);
        assert_eq!(failed(Tier::Fast, false), 0);
        assert_eq!(failed(Tier::Slow, true), 0);
        let outcome = not_run(&suite(Tier::Fast), "no netns".into(), false);
        assert_eq!(
            Verdict { name: "s".into(), outcome }.to_string(),
            format!("{:<18} NOT RUN (no netns)", "s")
        );
    }

    #[test]
    fn the_closing_line_is_one_that_count_reads() {
        let total = Count { passed: 12, failed: 1 };
        assert_eq!(closing_line(total), "12 passed, 1 failed");
        assert_eq!(count::count(&closing_line(total)), Some(total));
    }
}
