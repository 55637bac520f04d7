//! Placement: how a tensor's contributions travel, and the pure function that chooses it from the declaration and,
//! later, from the first iteration. It must not know how a placement is implemented.

use crate::ids::Key;
use crate::tensor::{TensorSpec, home_of};
use crate::transport::Driver;
pub use crate::transport::{Placement, PlacementPolicy};
use serde::Serialize;
use std::cmp::Reverse;

/// One dimension of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    /// Always this size.
    Fixed(u64),
    /// A different size each time, at most `max` if that is known.
    Dynamic {
        /// The largest size.
        max: Option<u64>,
    },
}

/// Over shared memory, contributions of at least this many bytes are reduced in the worker's memory. Smaller ones are
/// cheaper in their batch.
pub const IN_PLACE_BYTES_MIN: u64 = 4 << 10;

/// A tensor to be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Its key.
    pub key: Key,
    /// Its shape.
    pub dims: Vec<Dim>,
    /// Bytes of an element.
    pub element_bytes: u64,
    /// Its contributions are encoded.
    pub coded: bool,
    /// Whether the whole tensor is on one lane of one server, because its rule needs norms over it.
    pub whole: bool,
    /// Observations of the first iteration, once it is over.
    pub trace: Option<Trace>,
}

impl Subject {
    /// A declared tensor.
    #[must_use]
    pub fn of(spec: &TensorSpec, trace: Option<Trace>) -> Self {
        let max = Some(spec.elements);
        let dim = if spec.dynamic { Dim::Dynamic { max } } else { Dim::Fixed(spec.elements) };
        let (dims, element_bytes) = (vec![dim], spec.dtype.bytes() as u64);
        let coded = !spec.compression.codec.is_plain();
        let whole = spec.optimizer.needs_norms();
        Self { key: spec.key, dims, element_bytes, coded, whole, trace }
    }

    /// Whether a dimension may change.
    #[must_use]
    pub fn is_dynamic(&self) -> bool {
        self.dims.iter().any(|dim| matches!(dim, Dim::Dynamic { .. }))
    }

    /// Its bytes, or the largest number of bytes; `None` without a bound.
    #[must_use]
    pub fn bytes_max(&self) -> Option<u64> {
        self.dims.iter().try_fold(self.element_bytes, |bytes, dim| match dim {
            Dim::Fixed(length) | Dim::Dynamic { max: Some(length) } => bytes.checked_mul(*length),
            Dim::Dynamic { max: None } => None,
        })
    }
}

/// A tensor's first iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Contributions to it.
    pub contributions: u64,
    /// Bytes of the shortest one.
    pub bytes_min: u64,
    /// Bytes of the longest one.
    pub bytes_max: u64,
    /// Whether only one worker contributes to it.
    pub single_writer: bool,
}

/// What the choice depends on besides the tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Workers of the cluster.
    pub workers: u32,
    /// Servers of the cluster.
    pub servers: u32,
    /// Lanes of each server, which share its budget evenly.
    pub lanes: u16,
    /// Bytes that each server may spend on key buffers.
    pub budget_bytes: u64,
    /// How many of these bytes tensors use that were placed before.
    pub spent_bytes: u64,
    /// Drivers in use between this worker and the servers.
    pub drivers: Vec<Driver>,
    /// Whether payloads have checksums.
    pub checksums: bool,
    /// The setting.
    pub policy: PlacementPolicy,
}

/// A tensor's placement, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Planned {
    /// The placement.
    pub placement: Placement,
    /// The reason, as text.
    pub why: String,
    /// Bytes of key buffers that it uses at each server, at most the available ones. A tensor on one lane counts as if
    /// every lane had as much, because the lanes of other tensors are not known here.
    pub buffer_bytes: u64,
}

/// Chooses a placement for every tensor, in the given order.
#[must_use]
pub fn plan(subjects: &[Subject], facts: &Facts) -> Vec<Planned> {
    let mut left_bytes = facts.budget_bytes.saturating_sub(facts.spent_bytes);
    // The budget goes first to what is moved most often, then to the small ones, where it saves most per byte.
    let mut order: Vec<usize> = (0..subjects.len()).collect();
    let use_of = |at: &usize| subjects[*at].trace.map_or(0, |trace| trace.contributions);
    let bytes_of = |at: &usize| subjects[*at].bytes_max().unwrap_or(u64::MAX);
    order.sort_by_key(|at| (Reverse(use_of(at)), bytes_of(at), subjects[*at].key));
    let mut planned: Vec<Option<Planned>> = vec![None; subjects.len()];
    for at in order {
        let choice = choose(&subjects[at], facts, left_bytes);
        left_bytes = left_bytes.saturating_sub(choice.buffer_bytes);
        planned[at] = Some(choice);
    }
    planned.into_iter().flatten().collect()
}

fn planned(placement: Placement, why: impl Into<String>) -> Planned {
    Planned { placement, why: why.into(), buffer_bytes: 0 }
}

fn choose(subject: &Subject, facts: &Facts, left_bytes: u64) -> Planned {
    if facts.checksums {
        return planned(Placement::Slot, "payload checksums (transport.payload_checksum) require slots");
    }
    if subject.coded {
        return planned(Placement::Slot, "encoded contributions require slots");
    }
    if let Some(fixed) = facts.policy.fixed() {
        let why = format!("set by transport.placement = {fixed}");
        return if fixed == Placement::Static {
            static_by_setting(subject, facts, left_bytes, why)
        } else {
            planned(fixed, why)
        };
    }
    let shm = facts.drivers.iter().all(|driver| driver.shares_memory());
    if home_of(subject.key).is_some() && !shm {
        return planned(Placement::Slot, "rows are sent in batches");
    }
    if subject.is_dynamic() {
        return planned(Placement::RendezvousRead, "its length may change between operations");
    }
    if !facts.drivers.iter().any(|driver| driver.is_device()) {
        if shm && subject.bytes_max().is_some_and(|bytes| bytes >= IN_PLACE_BYTES_MIN) {
            return planned(Placement::RendezvousRead, "over shm, servers reduce it in the worker's memory");
        }
        let why = if shm { "small: copied into a batch" } else { "over tcp batches are fastest" };
        return planned(Placement::Slot, why);
    }
    remote(subject, facts, left_bytes)
}

/// Whatever was set, servers give key buffers only as far as they have room, and refuse the others.
fn static_by_setting(subject: &Subject, facts: &Facts, left_bytes: u64, set: String) -> Planned {
    let wanted_bytes = buffer_bytes(subject, facts);
    let why = if wanted_bytes > left_bytes {
        format!("{set}; {}: tensors without room use slots", no_room(subject, facts, left_bytes))
    } else {
        set
    };
    Planned { buffer_bytes: wanted_bytes.min(left_bytes), ..planned(Placement::Static, why) }
}

/// Says that a tensor's key buffers are too many.
fn no_room(subject: &Subject, facts: &Facts, left_bytes: u64) -> String {
    let (left, budget) = (size(left_bytes), size(facts.budget_bytes));
    let what = for_writers(subject, facts);
    format!("{what} do not fit the remaining {left} of the key-buffer budget of {budget} per server")
}

fn for_writers(subject: &Subject, facts: &Facts) -> String {
    let bytes = subject.bytes_max().map_or_else(|| "any length".to_owned(), size);
    let writers = writers(subject, facts);
    let place = if subject.whole && facts.lanes > 1 { " on one lane" } else { "" };
    format!("{bytes} x {writers} worker{}{place}", if writers == 1 { "" } else { "s" })
}

/// The choice for RDMA devices. Contributions of several workers to a chunk that arrive before their turn would be
/// copied out of the inbox's slots, which all workers share. A key buffer keeps them where they arrived. Contributions
/// of a single writer are reduced where they arrive in any case.
fn remote(subject: &Subject, facts: &Facts, left_bytes: u64) -> Planned {
    let bytes = subject.bytes_max().unwrap_or(u64::MAX);
    // One write for many costs less than a buffer each.
    if bytes < facts.chunk_bytes {
        return planned(Placement::Slot, format!("smaller than a chunk ({}): shares batches", size(bytes)));
    }
    match subject.trace {
        Some(trace) if trace.contributions == 0 => {
            return planned(Placement::Slot, "no contribution in the first iteration");
        }
        Some(trace) if trace.bytes_min != trace.bytes_max => {
            return planned(Placement::RendezvousRead, "the length changed between operations");
        }
        _ => {}
    }
    let (writers, buffer_bytes) = (writers(subject, facts), buffer_bytes(subject, facts));
    if writers == 1 {
        return planned(Placement::Slot, "one worker: its contribution is reduced where it arrives");
    }
    if buffer_bytes > left_bytes {
        return planned(Placement::Slot, no_room(subject, facts, left_bytes));
    }
    let (what, budget) = (for_writers(subject, facts), size(facts.budget_bytes));
    let why = format!("{what} fit the key-buffer budget of {budget} per server");
    Planned { buffer_bytes, ..planned(Placement::Static, why) }
}

fn writers(subject: &Subject, facts: &Facts) -> u32 {
    if subject.trace.is_some_and(|trace| trace.single_writer) { 1 } else { facts.workers }
}

/// Bytes of its key buffers at the server that holds most of it: whole chunks, one for each writer. If all of them are
/// on one lane, which has only its share of the budget, every lane is charged with as much.
fn buffer_bytes(subject: &Subject, facts: &Facts) -> u64 {
    let chunks = subject.bytes_max().unwrap_or(u64::MAX).div_ceil(facts.chunk_bytes.max(1));
    let chunks = if subject.whole {
        chunks.saturating_mul(u64::from(facts.lanes))
    } else {
        chunks.div_ceil(u64::from(facts.servers.max(1)))
    };
    chunks.saturating_mul(facts.chunk_bytes).saturating_mul(u64::from(writers(subject, facts)))
}

/// Bytes in readable units.
#[must_use]
pub fn size(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, "B");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, next);
    }
    if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests;
