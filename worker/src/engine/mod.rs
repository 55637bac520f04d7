//! The worker's decisions, sans I/O. For one lane: operations, results and ticks go in, commands come out; payload bytes never
//! enter here. And as a member of the cluster: what the scheduler says goes in. Time is an argument.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod calls;
mod chunk;
mod command;
mod failures;
mod flow;
mod lane;
mod link;
mod member;
mod owed;
mod part;
mod placement;
mod routes;
mod shown_by;
mod stats;

pub use command::{Command, Commands, PartBlock};
pub use lane::{EngineConfig, LaneEngine, ResultContext};
pub use member::{Member, MemberCommand, MemberConfig};
pub use owed::OldestOp;
pub use part::{Coded, PartSpec, Submit};
pub use stats::{LaneStats, Traffic};

#[cfg(test)]
mod tests;
