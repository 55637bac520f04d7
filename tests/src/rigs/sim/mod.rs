//! The lane runtimes of servers and workers, unchanged, over the simulated fabric: virtual time, seeded
//! faults, a model of the bootstrap that connects broken channels again, and an oracle that knows every
//! version's bits.
//!
//! ```text
//! let mut cluster = Cluster::new(seed, Shape::default());    all connected, tensors known
//! let op = cluster.submit(worker, tensor, Kind::PushPull);   as the client would
//! cluster.run_until_ended(&[op]);                            or a trainer per worker: `train`
//! cluster.finish();                                          quiet: every invariant at its end
//! ```
//!
//! [`seeds::for_each`] runs a test over many seeds and, for one that fails, prints how to replay it.

mod cluster;
mod links;
mod ops;
mod oracle;
pub mod pair;
pub mod seeds;
mod shape;
mod steps;
mod train;

pub use cluster::Cluster;
pub use ops::{Ended, Kind, OpId};
pub use oracle::{Oracle, bits_hash};
pub use shape::{PLACEMENTS, Shape, tensors};
pub use train::Style;
