//! Operations at the gate of their host ([`crate::host`]): those that may be added to those of other workers of this host, and, so
//! that operations of one tensor keep their order, those behind them.

use super::Tensor;
use crate::engine::{PartSpec, Submit};
use crate::error::OpError;
use crate::host::{self, Coming};
use crate::runtime::{LaneHandle, OpBuffers, OpState, Submission};
use fabric::{Fenced, PeerWritable, Span, View};
use proto_common::batch::OpKind;
use proto_common::element::Dtype;
use proto_common::ids::Key;
use std::collections::VecDeque;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Elements that are added at a time: their bytes stay in the cache closest to the processor.
const ELEMENTS: usize = 2048;

/// An operation that has a number.
#[derive(Debug)]
pub(super) struct Going {
    pub(super) state: Arc<OpState>,
    pub(super) submit: Submit,
    pub(super) source: Option<Span>,
    pub(super) target: Option<Span>,
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

    /// Hands an operation over to its lanes, which are to be kicked then. Returns them, a bit each.
    pub(super) fn submit(self, going: &Going) -> u64 {
        let Going { state, submit, source, target } = going;
        for (_, (lane, parts)) in self.by_lane() {
            let parts = match source {
                Some(source) if self.dynamic => shortened(parts, source.len()),
                _ => parts.clone(),
            };
            let (source, target) = (source.clone(), target.clone());
            if !lane.submit(Submission { state: state.clone(), submit: *submit, parts, source, target }) {
                let error = lane.ended().unwrap_or_else(|| OpError::Closed("its lane has ended".into()));
                state.lane_done(Err(error), Fenced::answered());
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
    fn open(&mut self, op: u64, change: impl FnOnce(&mut Going)) {
        if let Some(entry) = self.0.iter_mut().find(|entry| entry.going.submit.op == op && entry.waits) {
            entry.waits = false;
            change(&mut entry.going);
        }
    }

    /// Takes the next operation that goes.
    fn take(&mut self) -> Option<Going> {
        if self.0.front()?.waits { None } else { self.0.pop_front().map(|entry| entry.going) }
    }
}

/// An operation that passes the gate.
#[derive(Debug)]
pub(crate) struct Passing {
    tensor: Tensor,
    lanes: Arc<[LaneHandle]>,
    state: Arc<OpState>,
    op: u64,
    source: Option<Span>,
    target: Option<Span>,
}

impl Passing {
    pub(super) fn new(tensor: &Tensor, lanes: &Arc<[LaneHandle]>, going: &Going) -> Self {
        let Going { state, submit, source, target } = going;
        let (tensor, lanes, state) = (tensor.clone(), lanes.clone(), state.clone());
        Self { tensor, lanes, state, op: submit.op, source: source.clone(), target: target.clone() }
    }

    /// What the host has to know of it.
    pub(super) fn coming(&self, going: &Going) -> Coming {
        Coming {
            op: self.op,
            key: self.tensor.key().0,
            round: going.submit.count.round(),
            bytes: self.tensor.bytes(),
            offset: going.source.as_ref().map_or(0, Span::offset),
            weights: self.target.as_ref().map(Span::offset),
        }
    }

    fn parts(&self) -> Parts<'_> {
        Parts { lanes: &self.lanes, of_lanes: self.tensor.lanes(), dynamic: false }
    }

    /// Opens this operation, and hands over to the lanes what may go now.
    fn open(&self, change: impl FnOnce(&mut Going)) {
        let mut used = 0u64;
        let mut numbers = self.tensor.numbers();
        numbers.waiting.open(self.op, change);
        while let Some(going) = numbers.waiting.take() {
            used |= self.parts().submit(&going);
        }
        drop(numbers);
        for lane in self.used(used) {
            // A lane that has ended has failed what it was given.
            let _ = lane.kick();
        }
    }

    /// Lanes by their bits.
    fn used(&self, used: u64) -> impl Iterator<Item = &LaneHandle> {
        self.lanes.iter().enumerate().filter(move |(index, _)| used >> index & 1 == 1).map(|(_, lane)| lane)
    }
}

impl host::Passing for Passing {
    fn key(&self) -> Key {
        self.tensor.key()
    }

    fn open_alone(&mut self) {
        // If it goes as a sum already, the lanes send that.
        self.open(|going| going.state.with_buffers(|buffers| buffers.encoded = None));
    }

    fn open_merged(&mut self) {
        self.open(|going| {
            // The round's end is what it waits for. Its weights come from the head.
            (going.submit.kind, going.submit.payload) = (OpKind::Push, false);
            (going.source, going.target) = (None, None);
        });
    }

    fn open_sum(&mut self, others: &[View]) {
        let dtype = self.tensor.spec().dtype;
        let span = self.state.with_buffers(|buffers| {
            sum(buffers, self.source.as_ref(), others, dtype);
            buffers.encoded.as_ref().and_then(|sum| sum.span())
        });
        self.open(|going| going.source = span);
    }

    fn land(&mut self, weights: &View) {
        let Some(target) = &self.target else { return };
        self.state.with_buffers(|buffers| {
            let OpBuffers { target: own, shared, .. } = buffers;
            let Some(memory) = own.as_ref().or(shared[1].as_deref()) else { return };
            copy(weights, memory, target);
        });
    }

    fn end(self, failure: Option<OpError>) {
        // The lanes know the version; the least one counts.
        self.state.lane_done(failure.map_or(Ok(u64::MAX), Err), Fenced::answered());
        // Its caller may sleep in a lane, where nothing happens by this.
        self.used(self.parts().used()).for_each(LaneHandle::nudge);
    }
}

/// Copies weights from another worker's memory to where they are wanted.
fn copy(weights: &View, memory: &PeerWritable, target: &Span) {
    let offset = target.offset() - memory.all().offset();
    // Both have the tensor's length: the gate compares, and the operation was checked.
    let copied = weights.slice(0, target.len()).and_then(|weights| weights.copy_to(memory, offset));
    debug_assert!(copied.is_ok(), "{copied:?}");
}

/// Adds the operation's gradient and those of the others, in this order, in the buffer that is sent.
fn sum(buffers: &mut OpBuffers, own: Option<&Span>, others: &[View], dtype: Dtype) {
    let OpBuffers { encoded, user, source, shared, .. } = buffers;
    let Some(sum) = encoded else { return };
    match (user, source, &shared[0], own) {
        (_, Some(source), ..) => sum.copy_from_slice(source),
        (Some(user), ..) => sum.copy_from_slice(user.as_bytes()),
        (None, None, Some(shared), Some(own)) => {
            let read = shared.read(own.offset() - shared.all().offset(), sum);
            debug_assert!(read.is_ok(), "{read:?}");
        }
        _ => {}
    }
    for other in others {
        match dtype {
            Dtype::F64 => add::<f64>(sum, other),
            _ => add::<f32>(sum, other),
        }
    }
}

/// Adds elements of another worker's memory. They are copied first: another process may write them at any time.
fn add<T>(sum: &mut [u8], other: &View)
where
    T: FromBytes + IntoBytes + Immutable + Copy + Default + std::ops::AddAssign,
{
    // Buffers of the pool are aligned for all types, and have whole elements.
    let Ok(sum) = <[T]>::mut_from_bytes(sum) else { return };
    let mut block = [T::default(); ELEMENTS];
    for (nth, elements) in sum.chunks_mut(ELEMENTS).enumerate() {
        let block = &mut block[..elements.len()];
        let read = other.read((nth * ELEMENTS * size_of::<T>()) as u64, block.as_mut_bytes());
        debug_assert!(read.is_ok(), "{read:?}");
        elements.iter_mut().zip(&*block).for_each(|(sum, more)| *sum += *more);
    }
}
