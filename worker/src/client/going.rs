//! Operations that have a number, on their way to the lanes: handed over at once, or held back with those behind them, so that operations
//! of one tensor keep their order. It must not know what they wait for.

use crate::engine::{PartSpec, Submit};
use crate::error::OpError;
use crate::runtime::{LaneHandle, OpState, Submission};
use fabric::{Fenced, Span};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// An operation that has a number.
#[derive(Debug)]
pub(super) struct Going {
    pub(super) state: Arc<OpState>,
    pub(super) submit: Submit,
    pub(super) source: Option<Span>,
    pub(super) target: Option<Span>,
    /// It never goes to the servers, for this reason.
    pub(super) refused: Option<OpError>,
}

/// A lane's share of an operation that the lane does not get.
#[derive(Debug)]
pub(super) struct Refused(Arc<OpState>, OpError);

/// Ends these shares. Operations may end, and call back. A callback that panics keeps no other operation from its end.
pub(super) fn end_all(refused: Vec<Refused>) {
    let end = |Refused(state, error)| state.lane_done(Err(error), Fenced::answered());
    let all = refused.into_iter().map(|one| catch_unwind(AssertUnwindSafe(|| end(one))));
    if let Some(panic) = all.filter_map(Result::err).last() {
        resume_unwind(panic);
    }
}

/// Lanes by their numbers as bits.
pub(super) fn used_of(lanes: &[LaneHandle], used: u64) -> impl Iterator<Item = &LaneHandle> + Clone {
    lanes.iter().enumerate().filter(move |(lane, _)| used >> lane & 1 == 1).map(|(_, lane)| lane)
}

/// A tensor's chunks, and the lanes that have them.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) lanes: &'a [LaneHandle],
    pub(super) of_lanes: &'a [Arc<[PartSpec]>],
    /// Contributions may be shorter than the tensor.
    pub(super) dynamic: bool,
}

impl<'a> Parts<'a> {
    fn by_lane(self) -> impl Iterator<Item = (usize, (&'a LaneHandle, &'a Arc<[PartSpec]>))> {
        let all = self.lanes.iter().zip(self.of_lanes).enumerate();
        all.filter(|(_, (_, parts))| !parts.is_empty())
    }

    /// The lanes, a bit each.
    pub(super) fn used(self) -> u64 {
        self.by_lane().fold(0, |used, (index, _)| used | 1 << index)
    }

    /// Hands an operation over to its lanes, which are to be kicked then. Returns them, a bit each. `refused` gets the shares of lanes that
    /// have ended.
    pub(super) fn submit(self, mut going: Going, refused: &mut Vec<Refused>) -> u64 {
        let mut lanes = self.by_lane().peekable();
        while let Some((_, (lane, parts))) = lanes.next() {
            let parts = match &going.source {
                Some(source) if self.dynamic => shortened(parts, source.len()),
                _ => parts.clone(),
            };
            if let Some(error) = &going.refused {
                refused.push(Refused(going.state.clone(), error.clone()));
                continue;
            }
            let (state, submit) = (going.state.clone(), going.submit);
            // The last lane gets the spans themselves: most operations have one lane, and each clone of a span counts its owners.
            let (source, target) = match lanes.peek() {
                Some(_) => (going.source.clone(), going.target.clone()),
                None => (going.source.take(), going.target.take()),
            };
            if !lane.submit(Submission { state, submit, parts, source, target }) {
                let error = lane.ended().unwrap_or_else(|| OpError::Closed("its lane has ended".into()));
                refused.push(Refused(going.state.clone(), error));
            }
        }
        self.used()
    }
}

/// The chunks of a contribution with this many bytes. Chunks after its end are sent as empty.
fn shortened(parts: &[PartSpec], bytes: u64) -> Arc<[PartSpec]> {
    let part =
        |part: &PartSpec| PartSpec { bytes: bytes.saturating_sub(part.offset).min(part.bytes), ..*part };
    parts.iter().map(part).collect()
}

/// Operations of one tensor that have a number and that no lane has. Owned by the tensor's numbers.
#[derive(Debug, Default)]
pub(super) struct Waiting(VecDeque<Entry>);

#[derive(Debug)]
struct Entry {
    going: Going,
    /// It waits for the other workers, and not only for the operations before it.
    waits: bool,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next operation. With `waits` it is opened later.
    pub(super) fn push(&mut self, going: Going, waits: bool) {
        self.0.push_back(Entry { going, waits });
    }

    /// An operation may go, with what `change` makes of it. Once.
    pub(super) fn open(&mut self, op: u64, change: impl FnOnce(&mut Going)) {
        if let Some(entry) = self.0.iter_mut().find(|entry| entry.going.submit.op == op && entry.waits) {
            entry.waits = false;
            change(&mut entry.going);
        }
    }

    /// Takes the next operation that goes.
    pub(super) fn take(&mut self) -> Option<Going> {
        if self.0.front()?.waits { None } else { self.0.pop_front().map(|entry| entry.going) }
    }
}
