//! Weights as a pull brought them: to be read where they lie in the servers' memory, or landed in this client's.

use super::{Client, Element, Inner, Tensor, TensorBuffer};
use crate::error::ClientError;
use crate::runtime::Shown;
use fabric::{FabricError, Number, Numbers, OutOfBounds, View};
use proto_common::batch::OpKind;
use proto_common::ids::Version;
use std::sync::Weak;
use zerocopy::IntoBytes;

/// Copies of at least this much pass by the cache: it is too small to hold them until they are read.
const STREAMING_BYTES_MIN: usize = 4 << 20;

/// One version of a tensor's weights, for reading. Where all servers share memory with this worker, and the tensor's rounds
/// are of all workers, it is their published weights themselves, of one version throughout, and costs no copy; else they
/// have been landed here. Outside mode sync each chunk is of one version, and not all of them of the same.
///
/// Servers keep the version as it is until this is dropped, or the worker is gone. They have room for one newer one: a
/// worker that holds on to two versions of a tensor keeps the next round from ending, and all others wait until the
/// error at their deadline names it. So drop it as soon as the weights are read.
#[derive(Debug)]
pub struct Weights {
    version: Version,
    from: From,
    tensor: Tensor,
    client: Weak<Inner>,
}

#[derive(Debug)]
enum From {
    Servers(Option<Shown>),
    Buffer { _buffer: TensorBuffer, all: [(u64, View); 1] },
}

impl Weights {
    pub(super) fn shown(version: Version, mut shown: Shown, tensor: Tensor, client: Weak<Inner>) -> Self {
        shown.pieces.sort_unstable_by_key(|(offset, _)| *offset);
        shown.is_of(version);
        Self { version, from: From::Servers(Some(shown)), tensor, client }
    }

    /// Of a dynamic tensor a round's weights may be shorter than the buffer.
    pub(super) fn landed(version: Version, buffer: TensorBuffer, bytes: u64, tensor: Tensor) -> Self {
        let whole = View::from(buffer.span());
        let all = [(0, whole.slice(0, bytes).unwrap_or(whole))];
        Self { version, from: From::Buffer { _buffer: buffer, all }, tensor, client: Weak::new() }
    }

    /// Which version they are.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Are they read where the servers have them?
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        matches!(self.from, From::Servers(_))
    }

    /// Bytes of them: the tensor's, or of a dynamic one those of the round.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pieces().iter().map(|(_, view)| view.len()).sum()
    }

    fn pieces(&self) -> &[(u64, View)] {
        match &self.from {
            From::Servers(shown) => shown.as_ref().map_or(&[], |shown| &shown.pieces),
            From::Buffer { all, .. } => all,
        }
    }

    /// The weights piece by piece, in order, each with the number of elements before it. A piece is read number by
    /// number: it is memory of another process. `N` has the size of the tensor's elements (f16 and bf16 are read as
    /// the `u16` of their bits), or there are none.
    pub fn numbers<N: Number>(&self) -> impl Iterator<Item = (u64, Numbers<'_, N>)> {
        let fits = self.tensor.spec().dtype.bytes() == size_of::<N>();
        let pieces = self.pieces().iter().filter(move |_| fits);
        pieces.filter_map(|(offset, view)| {
            let count = usize::try_from(view.len()).ok()? / size_of::<N>();
            Some((offset / size_of::<N>() as u64, view.numbers(0, count).ok()?))
        })
    }

    /// Copies them out: all of them, as the tensor's type. `into` has their length, which of a dynamic tensor is the
    /// round's ([`Weights::bytes`]).
    pub fn copy_to<T: Element>(&self, into: &mut [T]) -> Result<(), ClientError> {
        self.tensor.check_typed::<T>(into.len(), self.tensor.spec().dynamic)?;
        let into = into.as_mut_bytes();
        let (want, have) = (self.bytes(), into.len() as u64);
        if want != have {
            return Err(self.tensor.wrong_length(want, have));
        }
        let streams = into.len() >= STREAMING_BYTES_MIN;
        let mut copy = |offset: u64, view: &View| {
            let bytes = view.len();
            OutOfBounds::unless_within(offset, bytes, into.len() as u64)?;
            let part = &mut into[offset as usize..(offset + bytes) as usize];
            if streams { view.read_streaming(0, part) } else { view.read(0, part) }
        };
        let copied = self.pieces().iter().try_for_each(|(offset, view)| copy(*offset, view));
        // The engine took pieces of the tensor's own chunks only.
        copied
            .map_err(|e| FabricError::Internal(format!("a piece of weights is not the tensor's: {e}")).into())
    }
}

impl Drop for Weights {
    /// The next operation on the tensor tells the servers that these weights are not read any more. One that waits for
    /// their place already can not, so that they are told at once.
    fn drop(&mut self) {
        let From::Servers(shown) = &mut self.from else { return };
        drop(shown.take());
        let Some(inner) = self.client.upgrade().filter(|_| self.tensor.is_busy()) else { return };
        // Where that fails the cluster has ended, and the servers know from elsewhere.
        let _ = Client(inner).tell(&self.tensor, OpKind::Release);
    }
}
