//! How a contribution passes the gate of its host ([`crate::host`]): this file adds gradients, and copies the weights that the head has
//! received. It must not know which worker an operation waits for.

use super::Tensor;
use super::going::{self, Going, Parts, used_of};
use crate::error::OpError;
use crate::host::{self, Coming};
use crate::runtime::{LaneHandle, OpState};
use fabric::{Fenced, PeerWritable, Span, SpanReader, View};
use proto_common::batch::OpKind;
use proto_common::element::Dtype;
use proto_common::ids::Key;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Elements that are added at a time: their bytes stay in the cache closest to the processor.
const ELEMENTS: usize = 2048;

/// An operation that passes the gate.
#[derive(Debug)]
pub(crate) struct Passing {
    tensor: Tensor,
    lanes: Arc<[LaneHandle]>,
    state: Arc<OpState>,
    op: u64,
    source: Option<Span>,
    target: Option<Span>,
    /// The host has done its share.
    is_over: bool,
}

impl Passing {
    pub(super) fn new(tensor: &Tensor, lanes: &Arc<[LaneHandle]>, going: &Going) -> Self {
        let Going { state, submit, source, target, .. } = going;
        let (tensor, lanes, state) = (tensor.clone(), lanes.clone(), state.clone());
        Self {
            tensor,
            lanes,
            state,
            op: submit.op,
            source: source.clone(),
            target: target.clone(),
            is_over: false,
        }
    }

    /// What the host has to know of it.
    pub(super) fn coming(&self, going: &Going, sums: bool) -> Coming {
        Coming {
            op: self.op,
            key: self.tensor.key().0,
            round: going.submit.count.round(),
            bytes: self.tensor.bytes(),
            offset: going.source.as_ref().map_or(0, Span::offset),
            weights: self.target.as_ref().map(Span::offset),
            sums,
        }
    }

    fn parts(&self) -> Parts<'_> {
        Parts { lanes: &self.lanes, of_lanes: self.tensor.lanes(), dynamic: false }
    }

    /// Opens this operation, and hands over to the lanes what may go now.
    fn open(&self, change: impl FnOnce(&mut Going)) {
        let (mut used, mut refused) = (0u64, Vec::new());
        let mut numbers = self.tensor.numbers();
        numbers.waiting.open(self.op, change);
        while let Some(going) = numbers.waiting.take() {
            used |= self.parts().submit(going, &mut refused);
        }
        drop(numbers);
        // A callback of one that fails may start an operation on the tensor.
        going::end_all(refused);
        for lane in used_of(&self.lanes, used) {
            // A lane that has ended has failed what it was given.
            let _ = lane.kick();
        }
    }

    /// The host has done its share.
    fn finish(&mut self, failure: Option<OpError>) {
        self.is_over = true;
        // The lanes know the version; the least one counts.
        self.state.lane_done(failure.map_or(Ok(u64::MAX), Err), Fenced::answered());
        // The caller may be asleep on a lane's queue, and the end of the operation does not wake that queue.
        used_of(&self.lanes, self.parts().used()).for_each(LaneHandle::nudge);
    }
}

impl host::Passing for Passing {
    fn key(&self) -> Key {
        self.tensor.key()
    }

    fn open_alone(&mut self) {
        self.open(|going| {
            // If it goes as a sum already, the lanes send that.
            going.state.with_buffers(|buffers| (buffers.encoded, buffers.gate) = (None, None));
        });
    }

    fn open_merged(&mut self) {
        self.open(|going| {
            // The round's end is what it waits for. Its weights come from the head.
            (going.submit.kind, going.submit.payload) = (OpKind::Push, false);
            (going.source, going.target) = (None, None);
        });
    }

    fn open_sum(&mut self, others: &[View]) {
        // The operation keeps the memory of its gradient until the host has done its share, and no lane has it yet. The lock that its
        // caller needs is not held meanwhile.
        let Some(mut sum) = self.state.with_buffers(|buffers| buffers.encoded.take()) else { return };
        add_up(&mut sum, self.source.as_ref(), others, self.tensor.spec().dtype);
        let span = sum.span();
        self.state.with_buffers(|buffers| buffers.encoded = Some(sum));
        self.open(|going| going.source = span);
    }

    fn land(&mut self, weights: &View) {
        let Some(target) = &self.target else { return };
        // As for a sum: the memory comes back before the host has done its share.
        let (own, shared) =
            self.state.with_buffers(|buffers| (buffers.target.take(), buffers.shared[1].clone()));
        if let Some(memory) = own.as_ref().or(shared.as_deref()) {
            copy(weights, memory, target);
        }
        if own.is_some() {
            self.state.with_buffers(|buffers| buffers.target = own);
        }
    }

    fn refuse(&mut self, error: &OpError) {
        self.open(|going| going.refused = Some(error.clone()));
    }

    fn end(mut self, failure: Option<OpError>) {
        self.finish(failure);
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        if !self.is_over {
            host::Passing::open_alone(self);
            self.finish(None);
        }
    }
}

/// Copies weights from another worker's memory to where they are wanted.
fn copy(weights: &View, memory: &PeerWritable, target: &Span) {
    let offset = target.offset() - memory.all().offset();
    // Both have the tensor's length: the gate compares, and the operation was checked.
    let copied = weights.slice(0, target.len()).and_then(|weights| weights.copy_to(memory, offset));
    debug_assert!(copied.is_ok(), "{copied:?}");
}

/// Adds the operation's gradient and those of the others, in this order.
fn add_up(sum: &mut [u8], own: Option<&Span>, others: &[View], dtype: Dtype) {
    let mut at = 0;
    let copied = own.map(|own| {
        SpanReader::new(ELEMENTS * size_of::<f64>()).read(own, |piece| {
            sum[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        })
    });
    debug_assert!(copied.is_some_and(|copied| copied.is_ok()), "it has a gradient of its own");
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
