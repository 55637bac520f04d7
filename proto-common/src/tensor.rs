//! What a declared tensor is, and how it is cut into chunks. The chunk grid is anchored at offset 0, so
//! that results do not depend on how many servers share the tensor.

use crate::codec::Compression;
use crate::element::Dtype;
use crate::ids::{ChunkId, ChunkIndex, Key};
use crate::limits::{CHUNKS_PER_TENSOR_MAX, NAME_BYTES_MAX, NORM_CHUNKS_MAX};
use crate::optimizer::{Optimizer, OptimizerError, Rule};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use crate::mode::Mode;

/// A declared tensor: the unit users name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorSpec {
    /// Its key.
    pub key: Key,
    /// A name for people; may be empty.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// How many elements; at most, where it is dynamic.
    pub elements: u64,
    /// Operations carry their own length: a push as many elements as it has, a pull brings those of the last round.
    #[serde(default)]
    pub dynamic: bool,
    /// What workers do to contributions before they are sent. What is pulled, and the initial value, are plain.
    #[serde(default)]
    pub compression: Compression,
    /// The server-side update.
    pub optimizer: Optimizer,
    /// How contributions become versions; the cluster's mode where it is not said.
    #[serde(default)]
    pub mode: Option<Mode>,
    /// Workers whose contribution a round does not wait for; the cluster's where it is not said. A contribution to a round
    /// that is over is dropped.
    #[serde(default)]
    pub backup_workers: Option<u32>,
}

/// Another update rule for a declared tensor. What the rule before it kept (momentum, moments, …) stays where the new one
/// keeps the same, and begins anew with zeros where it does not; the schedule counts the tensor's rounds.
///
/// Outside mode `sync`, and with backup workers, no worker knows which rounds are open: there each chunk has the new rule
/// from the contribution, or round, on that comes next when its server is told. Once the change is answered all have it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleChange {
    /// Which tensor.
    pub key: Key,
    /// The first round of the new rule, in mode `sync` without backup workers.
    pub from_round: u64,
    /// The new rule.
    pub optimizer: Optimizer,
}

/// Why a tensor cannot be declared.
#[derive(Clone, Debug, PartialEq, Error, Serialize, Deserialize)]
pub enum TensorError {
    /// Nothing to move.
    #[error("tensor {key} has no elements; declare at least one")]
    Empty {
        /// Which tensor.
        key: Key,
    },
    /// Too many chunks or bytes for the address space.
    #[error("tensor {key} with {elements} elements is too large; use larger chunks or several tensors")]
    TooLarge {
        /// Which tensor.
        key: Key,
        /// Elements asked for.
        elements: u64,
    },
    /// The name exceeds its bound.
    #[error("the name of tensor {key} has {bytes} bytes, at most {NAME_BYTES_MAX} are allowed")]
    NameTooLong {
        /// Which tensor.
        key: Key,
        /// Bytes of the name.
        bytes: usize,
    },
    /// A mode, dtype or rule that this version does not serve.
    #[error("tensor {key}: {what}")]
    Unsupported {
        /// Which tensor.
        key: Key,
        /// What is not served, and what is.
        what: String,
    },
}

/// A stretch of a tensor: chunk number, byte offset, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSpan {
    /// Which chunk.
    pub id: ChunkId,
    /// Bytes before it.
    pub offset: u64,
    /// Its bytes; only the last chunk of a tensor is shorter than the chunk size.
    pub bytes: u64,
}

impl TensorSpec {
    /// A f32 tensor in the cluster's mode.
    #[must_use]
    pub fn f32(key: u64, elements: u64, optimizer: Optimizer) -> Self {
        Self::of(Dtype::F32, key, elements, optimizer)
    }

    /// A tensor of any type, in the cluster's mode. Halves are summed in f32, and the server keeps their weights in f32: what is
    /// pulled is rounded, nothing else. Integers are summed in i64; a round whose sum leaves i64, or whose value its type,
    /// ends with an error for all its contributors and leaves the weights as they were, chunk by chunk.
    #[must_use]
    pub fn of(dtype: Dtype, key: u64, elements: u64, optimizer: Optimizer) -> Self {
        let (name, compression) = (String::new(), Compression::default());
        let (key, dynamic, mode, backup_workers) = (Key(key), false, None, None);
        Self { key, name, dtype, elements, dynamic, compression, optimizer, mode, backup_workers }
    }

    /// A f32 tensor whose length may be another one in each round, at most `elements_max`: its value is
    /// the sum of a round's contributions, which agree on the length. It is in mode sync, whatever the cluster's is.
    #[must_use]
    pub fn dynamic_f32(key: u64, elements_max: u64) -> Self {
        Self { dynamic: true, ..Self::f32(key, elements_max, Optimizer::assign()).in_mode(Mode::Sync) }
    }

    /// The same with contributions encoded. Only f32 tensors of one length can be; with the rule `assign` what is pulled is
    /// the sum of what was encoded, as in an all-reduce of gradients.
    #[must_use]
    pub fn compressed(self, compression: Compression) -> Self {
        Self { compression, ..self }
    }

    /// Bytes of the whole tensor. Validated tensors cannot overflow; others saturate.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.elements.saturating_mul(self.dtype.bytes() as u64)
    }

    /// How many chunks of `chunk_bytes` it has.
    #[must_use]
    pub fn chunk_count(&self, chunk_bytes: u64) -> u64 {
        self.bytes().div_ceil(chunk_bytes)
    }

    /// One chunk; `None` past the end.
    #[must_use]
    pub fn chunk(&self, index: ChunkIndex, chunk_bytes: u64) -> Option<ChunkSpan> {
        let offset = u64::from(index.0).checked_mul(chunk_bytes)?;
        let left = self.bytes().checked_sub(offset)?;
        let id = ChunkId { key: self.key, chunk: index };
        (left > 0).then(|| ChunkSpan { id, offset, bytes: left.min(chunk_bytes) })
    }

    /// All chunks in order.
    pub fn chunks(&self, chunk_bytes: u64) -> impl Iterator<Item = ChunkSpan> + '_ {
        (0..).map_while(move |index| self.chunk(ChunkIndex(index), chunk_bytes))
    }

    /// Refuses a change of the rule that cannot be served, by cause.
    pub fn validate_change(&self, change: &RuleChange, chunk_bytes: u64) -> Result<(), TensorError> {
        if change.optimizer.needs_norms() != self.optimizer.needs_norms() {
            let what =
                "lamb has its tensors lie elsewhere than other rules do; declare another tensor for it"
                    .into();
            return Err(TensorError::Unsupported { key: self.key, what });
        }
        Self { optimizer: change.optimizer, ..self.clone() }.validate(chunk_bytes)
    }

    /// Refuses what cannot be served, by cause.
    pub fn validate(&self, chunk_bytes: u64) -> Result<(), TensorError> {
        let key = self.key;
        if self.elements == 0 {
            return Err(TensorError::Empty { key });
        }
        let bytes = self.elements.checked_mul(self.dtype.bytes() as u64).filter(|b| *b <= i64::MAX as u64);
        if bytes.is_none_or(|bytes| bytes.div_ceil(chunk_bytes) > CHUNKS_PER_TENSOR_MAX) {
            return Err(TensorError::TooLarge { key, elements: self.elements });
        }
        if self.name.len() > NAME_BYTES_MAX {
            return Err(TensorError::NameTooLong { key, bytes: self.name.len() });
        }
        let unsupported = |what: String| Err(TensorError::Unsupported { key, what });
        if self.dtype.is_integer() && !self.optimizer.is_exact() {
            let dtype = self.dtype;
            return unsupported(format!(
                "dtype {dtype} is summed exactly, and takes the rules sum and assign without average; use one of them, \
                 or f32"
            ));
        }
        if self.optimizer.needs_norms() && self.chunk_count(chunk_bytes) > NORM_CHUNKS_MAX {
            return unsupported(format!(
                "lamb needs all chunks of a tensor in one place, and takes at most {NORM_CHUNKS_MAX}; raise \
                 cluster.chunk_bytes, cut the tensor into several, or use adam_w"
            ));
        }
        if let Some(what) = self.mode_fault() {
            return unsupported(what);
        }
        if self.dynamic && self.optimizer.rule != Rule::Assign {
            return unsupported("a dynamic tensor has nothing to update; use the rule assign".into());
        }
        if !self.compression.codec.is_plain() {
            let (codec, dtype) = (self.compression.codec.name(), self.dtype);
            if dtype != Dtype::F32 {
                return unsupported(format!(
                    "codec {codec} encodes f32, not {dtype}; declare f32, or codec plain"
                ));
            }
            if self.dynamic {
                return unsupported(format!(
                    "codec {codec} needs a fixed length; a dynamic tensor has codec plain"
                ));
            }
        }
        self.compression.validate().or_else(|error| unsupported(error.to_string()))?;
        self.optimizer.validate().or_else(|error: OptimizerError| unsupported(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use crate::optimizer::Moments;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn chunks_tile_the_tensor(elements in 1u64..100_000, pages in 1u64..8) {
            let spec = TensorSpec::f32(7, elements, Optimizer::sum());
            let mut end = 0;
            for span in spec.chunks(pages * 4096) {
                prop_assert_eq!(span.offset, end);
                prop_assert!(span.bytes > 0);
                end += span.bytes;
            }
            prop_assert_eq!(end, spec.bytes());
        }
    }

    #[test]
    fn both_sides_of_each_bound() {
        let spec = |elements| TensorSpec::f32(1, elements, Optimizer::sum());
        assert_eq!(spec(0).validate(4096), Err(TensorError::Empty { key: Key(1) }));
        assert!(spec(u64::from(u32::MAX) * 1024).validate(4096).is_ok());
        assert!(matches!(
            spec(u64::from(u32::MAX) * 1024 + 1).validate(4096),
            Err(TensorError::TooLarge { .. })
        ));
        assert!(matches!(spec(u64::MAX).validate(4096), Err(TensorError::TooLarge { .. })));
        let mut named = spec(1);
        named.name = "x".repeat(NAME_BYTES_MAX);
        assert!(named.validate(4096).is_ok());
        named.name.push('x');
        assert!(matches!(named.validate(4096), Err(TensorError::NameTooLong { .. })));
        let dynamic = TensorSpec::dynamic_f32(1, 5);
        assert!(dynamic.validate(4096).is_ok());
        let summed = TensorSpec { optimizer: Optimizer::sum(), ..dynamic };
        assert!(matches!(summed.validate(4096), Err(TensorError::Unsupported { .. })));
    }

    #[test]
    fn a_rule_is_changed_to_one_that_the_tensor_could_have_had() {
        let (adam, lamb) = (Rule::Adam(Moments::default()), Rule::Lamb(Moments::default()));
        let of = |spec: &TensorSpec, optimizer| {
            spec.validate_change(&RuleChange { key: spec.key, from_round: 1, optimizer }, 4096).is_ok()
        };
        let floats = TensorSpec::f32(1, 5, Optimizer::sum());
        assert!(of(&floats, Optimizer::mean(adam, 0.1)));
        assert!(!of(&floats, Optimizer::mean(lamb, 0.1)) && !of(&floats, Optimizer::mean(adam, f32::NAN)));
        let together = TensorSpec::f32(1, 5, Optimizer::mean(lamb, 0.1));
        assert!(of(&together, Optimizer::mean(lamb, 0.2)) && !of(&together, Optimizer::mean(adam, 0.1)));
        let integers = TensorSpec::of(Dtype::I8, 1, 5, Optimizer::sum());
        assert!(of(&integers, Optimizer::assign()) && !of(&integers, Optimizer::mean(adam, 0.1)));
    }

    #[test]
    fn a_tensor_with_norms_has_so_many_chunks_and_no_more() {
        let lamb = Optimizer::mean(Rule::Lamb(Moments::default()), 0.1);
        let of = |chunks: u64| TensorSpec::f32(1, chunks * 1024, lamb).validate(4096);
        assert_eq!(of(NORM_CHUNKS_MAX), Ok(()));
        let Err(error) = of(NORM_CHUNKS_MAX + 1) else { panic!("one too many") };
        assert!(error.to_string().contains("raise cluster.chunk_bytes"), "{error}");
    }

    #[test]
    fn integers_are_summed_or_assigned_and_not_divided() {
        let validate = |dtype, rule| TensorSpec::of(dtype, 1, 1, rule).validate(4096);
        let mean = Optimizer { average: true, ..Optimizer::assign() };
        for dtype in Dtype::ALL {
            assert_eq!(validate(dtype, Optimizer::sum()), Ok(()), "{dtype}");
            assert_eq!(validate(dtype, Optimizer::assign()), Ok(()), "{dtype}");
            for rule in [mean, Optimizer::sgd(0.1, 0.0, 0.0)] {
                assert_eq!(validate(dtype, rule).is_err(), dtype.is_integer(), "{dtype} {rule:?}");
            }
        }
    }

    #[test]
    fn codecs_are_for_f32_of_one_length() {
        let one_bit = Compression::of(Codec::OneBit);
        let refused = |spec: TensorSpec| match spec.compressed(one_bit).validate(4096) {
            Err(TensorError::Unsupported { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        let of = |dtype| TensorSpec::of(dtype, 1, 5, Optimizer::sum());
        assert!(of(Dtype::F32).compressed(one_bit).validate(4096).is_ok());
        for dtype in [Dtype::F64, Dtype::F16, Dtype::Bf16] {
            assert!(refused(of(dtype)).contains("declare f32"), "{dtype}");
        }
        assert!(refused(TensorSpec::dynamic_f32(1, 5)).contains("fixed length"));
        let wide = Compression::of(Codec::TopK { share: 0.75 });
        assert!(of(Dtype::F32).compressed(wide).validate(4096).is_err());
        assert_eq!(of(Dtype::F32).compressed(Compression::default()), of(Dtype::F32));
    }

    #[test]
    fn offsets_beyond_four_gib_do_not_wrap() {
        let spec = TensorSpec::f32(u64::MAX, 2 << 30, Optimizer::assign());
        let last = spec.chunk(ChunkIndex(32_767), 256 << 10);
        assert_eq!(last.map(|span| (span.offset, span.bytes)), Some((8_589_672_448, 262_144)));
        assert_eq!(spec.chunk(ChunkIndex(32_768), 256 << 10), None);
    }
}
