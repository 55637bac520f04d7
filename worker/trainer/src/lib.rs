//! The trainer behind `gradwire-worker train` and `gradwire-worker eval`: a multilayer perceptron on CSV, IDX and LibSVM files.
//!
//! Owns data readers, the network, the training loop and its reports. It sees whoever keeps the parameters
//! only through [`exchange::Exchange`], must not know sockets, shards or servers, and must not exit the process.
//!
//! One step, read forward once: [`shard`] names the rows, [`mlp`] computes gradients layer by layer from last
//! to first and hands each over as soon as it is complete, the exchange sums and updates, and the next forward
//! pass waits for each layer's new weights only when it needs them ([`overlap`] keeps the time, or holds them back).
#![forbid(unsafe_code)]

pub mod args;
pub mod cluster;
pub mod data;
pub mod error;
pub mod exchange;
pub mod layers;
pub mod mlp;
pub mod model;
pub mod overlap;
pub mod reference;
pub mod report;
pub mod rng;
pub mod run;
pub mod shard;
pub mod steps;
pub mod svg;

pub use args::{EvalArgs, TrainArgs};
pub use error::TrainError;
pub use run::{eval, train};
