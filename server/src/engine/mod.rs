//! The server's decisions for one lane, sans I/O: batches, notices and ticks go in, commands come out.
//! Payload bytes never enter here: the engine sees headers, lengths and places. Time is an argument.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod calls;
mod chunk;
mod command;
mod copies;
mod credits;
mod image;
mod inputs;
mod keep;
mod lane;
mod lengths;
pub mod member;
mod norms;
mod numbers;
mod peers;
mod placed;
mod places;
mod quarantine;
mod ranks;
mod record;
mod relief;
mod role;
mod roster;
mod rounds;
mod sabotage;
mod saving;
mod shape;
mod spec;
mod stats;
mod streams;
mod views;
mod waiters;
mod waiting;
mod weights;

pub use calls::{CallAnswer, RestoredLine};
pub use command::{
    Addend, Arrival, CallTaken, Command, Commands, Onto, Payload, Place, ResultBlock, Source, Verdict,
};
pub use image::ChunkState;
pub use inputs::{BatchContext, EngineConfig, RecordContext};
pub use lane::LaneEngine;
pub use quarantine::FenceId;
pub use role::{Role, RoleChanges};
pub use sabotage::BrokenRule;
pub use saving::{SavingNews, Savings};
pub use spec::ChunkSpec;
pub use stats::LaneStats;
pub use waiting::{CallWaits, Waiting};

#[cfg(test)]
mod tests;
