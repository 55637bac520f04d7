//! The verbs library behind safe types: each object keeps what it was made from alive and is destroyed once, in the
//! right order. All `unsafe` of this driver is below here. Classic post and poll verbs only: the extended ones of the
//! software provider report success for what they did not do.
//!
//! `abi` declares the library's interface, `library` loads it at run time: no program links it, and nothing of rdma-core is
//! compiled. `docs/rdma.md` says why.

mod abi;
#[cfg(test)]
mod abi_tests;
mod chain;
mod completions;
mod context;
mod dmabuf;
mod events;
mod keep;
mod library;
mod memory;
mod queue_pair;

pub(super) use abi::ibv_sge;
pub(super) use chain::{Chain, Request, place};
pub(super) use completions::{Completions, POLLED_MAX, Work, WorkKind, failure_name, is_flush};
pub(super) use context::{Context, Domain, Limits, device_names};
pub(super) use dmabuf::DmabufRegistration;
pub(super) use events::{Event, Fault};
pub(super) use keep::kept;
pub(super) use library::library_path;
pub(super) use memory::{Receives, Registration};
pub(super) use queue_pair::{Path, QueuePair};

use crate::error::FabricError;
use std::io;
use std::ptr::NonNull;

fn last_error(what: &str) -> FabricError {
    FabricError::os(what, io::Error::last_os_error())
}

fn made<T>(pointer: *mut T, what: &str) -> Result<NonNull<T>, FabricError> {
    NonNull::new(pointer).ok_or_else(|| last_error(what))
}

fn done(code: i32, what: &str) -> Result<(), FabricError> {
    // These functions return the error instead of setting it.
    if code == 0 { Ok(()) } else { Err(FabricError::os(what, io::Error::from_raw_os_error(code))) }
}
