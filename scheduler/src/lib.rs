//! The scheduler: membership and ranks, failure detection, barriers, the placement of tensors, and the end of a job.
//!
//! [`engine`] decides and does no I/O; [`runtime`] owns sockets, clock and tasks and executes commands; `page` is the
//! page for browsers. The scheduler never sees payload: it knows only the shapes of tensors.
#![forbid(unsafe_code)]

pub mod engine;
mod page;
pub mod runtime;
