//! The Gradwire server: holds shards of the parameters, reduces contributions round by round, applies the update rule
//! and writes new weights one-sided into the workers' memory.
//!
//! `engine` decides, `runtime` executes, `kernel` computes, `storage` holds the bytes.
#![forbid(unsafe_code)]

pub mod app;
mod checkpoint;
mod command;
pub mod engine;
mod journal;
pub mod kernel;
pub mod own;
mod program;
pub mod runtime;
pub mod space;
pub mod storage;
pub mod tables;

pub use app::{App, Apps, Call, Reply, ReplyBody, ReplyError};
pub use command::ServerCommand;
pub use own::{Block, OwnRule, OwnStep, Range, Rules};
pub use program::Program;
pub use proto_common::optimizer::OwnKind;
pub use runtime::Server;
