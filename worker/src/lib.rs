//! The Gradwire client library: what trainers link. [`Client`] joins a cluster and moves tensors;
//! operations are asynchronous, zero-copy from registered memory, and each has a deadline.
//!
//! `client` is the surface, `engine` decides, `runtime` executes.
#![forbid(unsafe_code)]

mod call_fault;
pub mod client;
pub mod encoder;
pub mod engine;
pub mod error;
mod host;
pub mod runtime;
mod subject;

pub use call_fault::CallFault;
pub use client::{CallHandle, CallReply, CallRequest, Piece, ReplyBody};
pub use client::{
    Client, Element, Ended, Handle, LentMemory, OpFuture, RegistrationStats, ReplyInto, SharedBuffer, Source,
    Target, Tensor, TensorBuffer, Weights,
};
pub use client::{RowsHandle, Table};
pub use error::{ClientError, OpError};
pub use fabric::{Number, Numbers, UserBuffer};
pub use subject::Subject;
