//! The worker's decisions for one lane, sans I/O: operations, results and ticks go in, commands come out.
//! Payload bytes never enter here. Time is an argument.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod again;
mod calls;
mod command;
mod flow;
mod lane;
mod link;
mod owed;
mod part;
mod placement;
mod routes;
mod stats;

pub use command::{Command, Commands, PartBlock};
pub use lane::{EngineConfig, LaneEngine, ResultContext};
pub use owed::OldestOp;
pub use part::{Coded, PartSpec, Submit};
pub use stats::LaneStats;

#[cfg(test)]
mod tests;
