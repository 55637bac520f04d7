//! What Gradwire's processes say to each other: ids, limits, element types, the batch format, codecs, control
//! messages, the shard map, settings and errors sorted by blame.
//!
//! It is compiled for size: what data threads call here is `#[inline]`, or in `proto_data`, whose modules are also found here.
//!
//! This crate owns meaning and bytes. It must not do I/O, read a clock or the environment, or hold any
//! `unsafe`: everything here is a function of its arguments.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub use proto_data::{batch, call, codec, element, element_types, half, ids, limits};

pub mod config;
mod counts;
pub mod error;
pub mod footprint;
pub mod message;
pub mod mode;
pub mod optimizer;
pub mod plan;
pub mod shard_map;
pub mod table;
pub mod tensor;
pub mod transport;
