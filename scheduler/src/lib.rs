//! The scheduler: roster and ranks, liveness, barriers, where tensors go, and how a job ends.
//!
//! [`engine`] decides and does no I/O; [`runtime`] owns sockets, clock and tasks and carries out commands;
//! `page` is what it shows in a browser.
//! The scheduler must not see payload: it knows tensors by shape only.
#![forbid(unsafe_code)]

pub mod engine;
mod page;
pub mod runtime;
