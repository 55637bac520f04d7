//! Rigs: clusters, worlds and helpers that more than one file of `tests/tests` uses. Test code: it may
//! unwrap. One rig a file; declare it here.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]
#![allow(clippy::print_stderr, reason = "what a failing test tells")]
#![allow(clippy::missing_panics_doc, reason = "test code: a panic is a failed test")]

pub mod bed;
pub mod browser;
pub mod certs;
pub mod cluster;
pub mod control;
pub mod forge;
pub mod gauge;
pub mod held;
pub mod hostile;
pub mod job;
pub mod lab;
pub mod launching;
pub mod log;
pub mod machine;
pub mod native;
pub mod netns;
mod over_each;
pub mod ports;
pub mod process;
pub mod programs;
pub mod sim;
pub mod slurm;
pub mod status;
pub mod training;
