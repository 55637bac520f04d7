//! The suite runner: builds every test once, runs the suites of `tests/suites.toml`, independent ones side by
//! side, each within its deadline, and reports for each how many tests it ran and how long they took.
//!
//! Read it in this order: [`manifest`] (what is to run), [`build`] (one build of all tests), [`needs`] (may
//! it run here), [`schedule`] (when), [`process`] (a command within its deadline), [`count`], [`failures`] and [`timings`] (what a log
//! says), [`verdict`] (what that means), [`runner`] (all together). Must not know what any test is about.

pub mod build;
pub mod count;
pub mod failures;
pub mod manifest;
pub mod needs;
pub mod process;
pub mod runner;
pub mod schedule;
pub mod timings;
pub mod verdict;
