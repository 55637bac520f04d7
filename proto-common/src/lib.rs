//! What Gradwire's processes say to each other: ids, limits, element types, the batch format, codecs, control
//! messages, the shard map, settings and errors sorted by blame.
//!
//! This crate owns meaning and bytes. It must not do I/O, read a clock or the environment, or hold any
//! `unsafe`: everything here is a function of its arguments.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod batch;
pub mod codec;
pub mod config;
pub mod element;
pub mod error;
pub mod footprint;
pub mod half;
pub mod ids;
pub mod limits;
pub mod message;
pub mod mode;
pub mod optimizer;
pub mod plan;
pub mod shard_map;
pub mod tensor;
pub mod transport;
