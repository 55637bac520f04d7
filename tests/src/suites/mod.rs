//! The suite runner: builds every test once, runs the suites of `tests/suites.toml` one after the other,
//! each within its deadline, and says for each whether it ran and how many tests it had.
//!
//! Read it in this order: [`manifest`] (what is to run), [`build`] (one build of all tests), [`needs`] (may
//! it run here), [`process`] (a command within its deadline), [`count`] and [`failures`] (what a log says),
//! [`verdict`] (what that means), [`runner`] (all together). Must not know what any test is about.

pub mod build;
pub mod count;
pub mod failures;
pub mod manifest;
pub mod needs;
pub mod process;
pub mod runner;
pub mod verdict;
