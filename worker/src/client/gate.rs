//! Operations at the gate of their host ([`crate::host`]): those that may be added to those of other workers of this host, and, so
//! that operations of one tensor keep their order, those behind them.

use super::Tensor;
use crate::engine::Submit;
use crate::error::OpError;
use crate::host::{self, Coming};
use crate::runtime::{LaneHandle, OpBuffers, OpState, Submission};
use fabric::{Fenced, PeerWritable, Span, View};
use proto_common::batch::OpKind;
use proto_common::element::Dtype;
use std::collections::VecDeque;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Elements that are added at a time: their bytes stay in the cache closest to the processor.
const ELEMENTS: usize = 2048;

/// Operations of one tensor that have a number and that no lane has. Owned by the tensor's numbers.
#[derive(Debug, Default)]
pub(super) struct Waiting(VecDeque<Entry>);

#[derive(Debug)]
struct Entry {
    state: Arc<OpState>,
    submit: Submit,
    source: Option<Span>,
    target: Option<Span>,
    /// It waits for the other workers, and not only for the operations before it.
    waits: bool,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next operation. With `waits` it is opened later.
    pub(super) fn push(
        &mut self,
        (state, submit): (Arc<OpState>, Submit),
        (source, target): (Option<Span>, Option<Span>),
        waits: bool,
    ) {
        self.0.push_back(Entry { state, submit, source, target, waits });
    }

    /// An operation may go, with what `change` makes of it.
    fn open(&mut self, op: u64, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.0.iter_mut().find(|entry| entry.submit.op == op && entry.waits) {
            entry.waits = false;
            change(entry);
        }
    }

    /// Takes the next operation that goes.
    fn take(&mut self) -> Option<Entry> {
        if self.0.front()?.waits { None } else { self.0.pop_front() }
    }
}

/// An operation that passes the gate.
#[derive(Debug)]
pub(crate) struct Passing {
    tensor: Tensor,
    lanes: Arc<[LaneHandle]>,
    state: Arc<OpState>,
    op: u64,
    target: Option<Span>,
}

impl Passing {
    pub(super) fn new(
        tensor: &Tensor,
        lanes: &Arc<[LaneHandle]>,
        (state, op): (Arc<OpState>, u64),
        target: Option<&Span>,
    ) -> Self {
        Self { tensor: tensor.clone(), lanes: lanes.clone(), state, op, target: target.cloned() }
    }

    /// What the host has to know of it.
    pub(super) fn coming(&self, round: u64, source: Option<&Span>, target: Option<&Span>) -> Coming {
        Coming {
            op: self.op,
            key: self.tensor.key().0,
            round,
            bytes: self.tensor.bytes(),
            offset: source.map_or(0, Span::offset),
            weights: target.map(Span::offset),
        }
    }

    /// Opens this operation, and hands over to the lanes what may go now.
    fn open(&self, change: impl FnOnce(&mut Entry)) {
        let mut used = 0u64;
        let mut numbers = self.tensor.numbers();
        numbers.waiting.open(self.op, change);
        while let Some(entry) = numbers.waiting.take() {
            used |= self.submit(&entry);
        }
        drop(numbers);
        for (_, lane) in self.lanes.iter().enumerate().filter(|(index, _)| used >> index & 1 == 1) {
            // A lane that has ended has failed what it was given.
            let _ = lane.kick();
        }
    }

    /// Hands an operation over. Returns the lanes that have it, a bit each.
    fn submit(&self, entry: &Entry) -> u64 {
        let mut used = 0u64;
        for (index, (lane, parts)) in self.lanes.iter().zip(self.tensor.lanes()).enumerate() {
            if parts.is_empty() {
                continue;
            }
            used |= 1 << index;
            let Entry { state, submit, source, target, .. } = entry;
            let has_it = lane.submit(Submission {
                state: state.clone(),
                submit: *submit,
                parts: parts.clone(),
                source: source.clone(),
                target: target.clone(),
            });
            if !has_it {
                let error = lane.ended().unwrap_or_else(|| OpError::Closed("its lane has ended".into()));
                state.lane_done(Err(error), Fenced::answered());
            }
        }
        used
    }
}

impl host::Passing for Passing {
    fn open_alone(&mut self) {
        self.open(|entry| entry.state.with_buffers(|buffers| buffers.encoded = None));
    }

    fn open_merged(&mut self) {
        self.open(|entry| {
            // The round's end is what it waits for. Its weights come from the head.
            (entry.submit.kind, entry.submit.payload) = (OpKind::Push, false);
            (entry.source, entry.target) = (None, None);
        });
    }

    fn open_sum(&mut self, others: &[View]) {
        let dtype = self.tensor.spec().dtype;
        self.open(|entry| {
            entry.source = entry.state.with_buffers(|buffers| {
                sum(buffers, entry.source.as_ref(), others, dtype);
                buffers.encoded.as_ref().and_then(|sum| sum.span())
            });
        });
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
