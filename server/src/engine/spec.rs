//! What a chunk is, as the shard map and its tensor say it: nothing here changes while the chunk exists. It must not know what
//! state a chunk is in.

use proto_common::codec::Codec;
use proto_common::element::Dtype;
use proto_common::ids::ChunkId;
use proto_common::mode::Mode;
use proto_common::optimizer::Optimizer;
use proto_common::table::home_of;
use proto_common::tensor::{ChunkSpan, TensorSpec};

/// A chunk that this lane is to hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkSpec {
    /// Which chunk.
    pub id: ChunkId,
    /// Its bytes; at most, where it is dynamic.
    pub bytes: u64,
    /// Each round has its own length.
    pub dynamic: bool,
    /// Its element type.
    pub dtype: Dtype,
    /// How contributions to it are encoded.
    pub codec: Codec,
    /// Its update rule.
    pub optimizer: Optimizer,
    /// How contributions become versions.
    pub mode: Mode,
    /// Workers whose contribution a round does not wait for, in mode sync.
    pub backup_workers: u32,
}

impl ChunkSpec {
    /// A chunk of a declared tensor.
    #[must_use]
    pub fn of(tensor: &TensorSpec, span: &ChunkSpan) -> Self {
        Self {
            id: span.id,
            bytes: span.bytes,
            dynamic: tensor.dynamic,
            dtype: tensor.dtype,
            codec: tensor.compression.codec,
            optimizer: tensor.optimizer,
            mode: tensor.settled_mode(),
            backup_workers: tensor.settled_backup(),
        }
    }

    /// Is it a home of rows of sparse tables? What is contributed to it is done to these.
    #[must_use]
    pub const fn has_rows(&self) -> bool {
        home_of(self.id.key).is_some()
    }

    /// True if storage checks a round's values before they are published: of integers, which can overflow, and of rows of tables.
    pub(super) fn is_asked(&self) -> bool {
        self.dtype.is_integer() || self.has_rows()
    }

    /// May a worker leave its contribution to another worker of its host? Only where contributions are added as they are.
    pub(super) fn merges(&self) -> bool {
        let is_plain = self.codec.is_plain() && !self.dynamic && !self.has_rows();
        is_plain && self.dtype.is_float() && self.mode.has_rounds() && self.backup_workers == 0
    }

    /// Bytes of the payload of a contribution that is `bytes` long as plain numbers.
    #[must_use]
    pub fn payload_bytes(&self, bytes: u64) -> u64 {
        if self.codec.is_plain() {
            return bytes;
        }
        // A chunk's elements fit the address space: limits bound its bytes.
        self.codec.encoded_bytes((bytes / self.dtype.bytes() as u64) as usize) as u64
    }

    /// Bytes of the sum of contributions that are `bytes` long as plain numbers.
    #[must_use]
    pub const fn sum_bytes(&self, bytes: u64) -> u64 {
        bytes / self.dtype.bytes() as u64 * self.dtype.of_sums().bytes() as u64
    }

    /// Bytes as plain numbers of a contribution with so long a payload, which has the right shape.
    #[must_use]
    pub fn plain_bytes(&self, payload_bytes: u64) -> u64 {
        if self.codec.is_plain() { payload_bytes } else { self.bytes }
    }
}
