//! The server's decisions for one lane, sans I/O: batches, notices and ticks go in, commands come out.
//! Payload bytes never enter here: the engine sees headers, lengths and places. Time is an argument.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod answers;
mod before;
mod calls;
mod chunk;
mod command;
mod contribute;
mod copies;
mod credits;
mod deadlines;
mod flow;
mod held;
mod image;
mod keep;
mod lane;
mod left;
mod lengths;
mod lines;
pub mod member;
mod mode;
mod norms;
mod numbers;
mod peer;
mod placed;
mod quarantine;
mod ranks;
mod relief;
mod role;
mod roles;
mod roster;
mod rules;
mod sabotage;
mod saving;
mod streams;
mod waiting;
mod workers;

pub use chunk::ChunkSpec;
pub use command::{
    Addend, Arrival, CallTaken, Command, Commands, Onto, Payload, ResultBlock, Source, Verdict,
};
pub use copies::RecordContext;
pub use image::ChunkState;
pub use lane::{BatchContext, EngineConfig, LaneEngine, LaneStats};
pub use lines::CallAnswer;
pub use quarantine::FenceId;
pub use role::Role;
pub use roles::RoleChanges;
pub use sabotage::BrokenRule;
pub use saving::SavingNews;
pub use waiting::{CallWaits, Waiting};

#[cfg(test)]
mod tests;
