//! The weights of a pull. They are read in place in the servers' memory, or have landed in this client's memory.

use super::state::{Client, Inner};
use super::{Element, Tensor, TensorBuffer};
use crate::error::ClientError;
use crate::runtime::Shown;
use fabric::{FabricError, Number, Numbers, OutOfBounds, View};
use proto_common::batch::OpKind;
use proto_common::ids::Version;
use std::sync::{Arc, Weak};
use zerocopy::IntoBytes;

/// Copies of at least this much pass by the cache: it is too small to hold them until they are read.
const STREAMING_BYTES_MIN: usize = 4 << 20;

/// One version of a tensor's weights, for reading. If all servers share memory with this worker and rounds are those
/// of all workers, it is the servers' published weights, all of one version. Otherwise they were written into this
/// worker's memory. Outside mode sync each chunk has one version, but chunks may differ.
///
/// Servers keep the version unchanged until this is dropped, or the worker has failed. There are two buffers: if a
/// worker holds two versions of a tensor, the next round cannot end, and the error at its deadline names this worker.
/// Drop it as soon as the weights have been read.
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
    Landed([(u64, View); 1]),
}

impl Weights {
    pub(super) fn shown(version: Version, mut shown: Shown, tensor: Tensor, client: Weak<Inner>) -> Self {
        shown.pieces.sort_unstable_by_key(|(offset, _)| *offset);
        shown.is_of(version);
        Self { version, from: From::Servers(Some(shown)), tensor, client }
    }

    /// For a dynamic tensor a round's weights may be shorter than the buffer.
    pub(super) fn landed(version: Version, buffer: TensorBuffer, bytes: u64, tensor: Tensor) -> Self {
        let whole = View::from(Arc::new(buffer.into_inner().lend()));
        let all = [(0, whole.slice(0, bytes).unwrap_or(whole))];
        Self { version, from: From::Landed(all), tensor, client: Weak::new() }
    }

    /// Their version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether they are read in the servers' memory.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        matches!(self.from, From::Servers(_))
    }

    /// Their size in bytes: the tensor's, or for a dynamic tensor the round's.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pieces().iter().map(|(_, view)| view.len()).sum()
    }

    fn pieces(&self) -> &[(u64, View)] {
        match &self.from {
            From::Servers(shown) => shown.as_ref().map_or(&[], |shown| &shown.pieces),
            From::Landed(all) => all,
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

    /// Copies all of them, in the tensor's type. `into` must have their length; for a dynamic tensor the round's
    /// ([`Weights::bytes`]).
    pub fn copy_to<T: Element>(&self, into: &mut [T]) -> Result<(), ClientError> {
        self.tensor.check_typed::<T>(into.len(), self.tensor.spec().dynamic)?;
        self.copy_bytes_to(into.as_mut_bytes())
    }

    /// As [`Weights::copy_to`], as the bytes of the tensor's type.
    pub fn copy_bytes_to(&self, into: &mut [u8]) -> Result<(), ClientError> {
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
    /// The next operation on the tensor notifies the servers that these weights are no longer read. If an operation
    /// already waits for their buffer, the servers are notified at once.
    fn drop(&mut self) {
        let From::Servers(shown) = &mut self.from else { return };
        drop(shown.take());
        let Some(inner) = self.client.upgrade().filter(|_| self.tensor.is_busy()) else { return };
        // Where that fails the cluster has ended, and the servers know from elsewhere.
        let _ = Client(inner).tell(&self.tensor, OpKind::Release);
    }
}
