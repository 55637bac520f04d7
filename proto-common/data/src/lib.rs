//! What Gradwire's data path reads and writes: ids, limits, element types, codecs, and the batch format. Use it through
//! `proto_common`, which has these modules under the same names.
//!
//! It is a package of its own because it runs for every message and is compiled for speed, which takes a compiler several times as
//! long. The rest of `proto-common` runs a few times in a job.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod batch;
pub mod call;
pub mod codec;
pub mod element;
pub mod half;
pub mod ids;
pub mod limits;
