//! The worker's decisions, sans I/O. For one lane: operations, results and ticks go in, commands come out; payload bytes never
//! enter here. And as a member of the cluster: what the scheduler says goes in. Time is an argument.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod chunk;
mod command;
mod lane;
mod link;
mod member;
mod op;
mod part;
mod placement;
mod shown_by;
mod stats;

pub use command::{Command, Commands, PartBlock};
pub use lane::{EngineConfig, GATHER_BYTES_MAX, GATHER_PARTS_MAX, LaneEngine, OldestOp, ResultContext};
pub use member::{Member, MemberCommand, MemberConfig};
pub use part::{Coded, PartSpec, Submit};
pub use stats::{LaneStats, Traffic};

#[cfg(test)]
mod tests;
