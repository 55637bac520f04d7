//! Declared tensors, and how they are cut into chunks. The chunk grid begins at offset 0, so that results do not
//! depend on the number of servers.

use crate::codec::Compression;
use crate::config::ClusterShape;
use crate::element::Dtype;
use crate::ids::{ChunkId, ChunkIndex, Key};
use crate::limits::{CHUNKS_PER_TENSOR_MAX, MERGED_BYTES_MIN, NAME_BYTES_MAX, NORM_CHUNKS_MAX};
use crate::mode::backup_fault;
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
    /// A name for logs and errors; may be empty.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// The number of elements; the largest number, if the tensor is dynamic.
    pub elements: u64,
    /// Dynamic: each operation has its own length. A push has as many elements as its buffer, and a pull returns those
    /// of the last round.
    #[serde(default)]
    pub dynamic: bool,
    /// How workers encode contributions before they are sent. Pulled weights and the initial value are plain.
    #[serde(default)]
    pub compression: Compression,
    /// The server-side update.
    pub optimizer: Optimizer,
    /// How contributions become versions; the cluster's mode if not set.
    #[serde(default)]
    pub mode: Option<Mode>,
    /// The number of workers that a round does not wait for; the cluster's if not set. A contribution to a round that
    /// has ended is dropped.
    #[serde(default)]
    pub backup_workers: Option<u32>,
}

/// Another update rule for a declared tensor. Optimizer state (momentum, moments, …) that both rules use is kept;
/// other state begins with zeros. The schedule counts the tensor's rounds.
///
/// Outside mode `sync`, and with backup workers, no worker knows which rounds are open. There, each chunk has the new
/// rule from its next contribution or round after its server has received the change. When the change is answered, all
/// servers have it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleChange {
    /// The tensor.
    pub key: Key,
    /// The first round of the new rule, in mode `sync` without backup workers.
    pub from_round: u64,
    /// The new rule.
    pub optimizer: Optimizer,
}

/// Why a tensor cannot be declared.
#[derive(Clone, Debug, PartialEq, Error, Serialize, Deserialize)]
pub enum TensorError {
    /// The tensor has no elements.
    #[error("{} has no elements; declare at least one", label(*key, name))]
    Empty {
        /// The tensor.
        key: Key,
        /// Its name. It is not sent: see [`crate::message::DeclareError::with_names`].
        #[serde(skip)]
        name: String,
    },
    /// Too many chunks or bytes for the address space.
    #[error("{} with {elements} elements is too large; use larger chunks or several tensors", label(*key, name))]
    TooLarge {
        /// The tensor.
        key: Key,
        /// Its name, which is not sent.
        #[serde(skip)]
        name: String,
        /// The declared number of elements.
        elements: u64,
    },
    /// The name is too long.
    #[error("the name of tensor {key} has {bytes} bytes, at most {NAME_BYTES_MAX} are allowed")]
    NameTooLong {
        /// The tensor.
        key: Key,
        /// Bytes of the name.
        bytes: usize,
    },
    /// A mode, dtype or rule that this version does not support.
    #[error("{}: {what}", label(*key, name))]
    Unsupported {
        /// The tensor.
        key: Key,
        /// Its name, which is not sent.
        #[serde(skip)]
        name: String,
        /// What is not supported, and what is.
        what: String,
    },
}

impl TensorError {
    /// Adds the tensor's name, if it is missing: names are not sent with errors.
    pub(crate) fn name_by(&mut self, name_of: impl Fn(Key) -> Option<String>) {
        match self {
            Self::Empty { key, name }
            | Self::TooLarge { key, name, .. }
            | Self::Unsupported { key, name, .. }
                if name.is_empty() =>
            {
                *name = name_of(*key).unwrap_or_default();
            }
            _ => {}
        }
    }
}

/// A tensor as messages name it: `tensor "fc1.weight"`, or `tensor 5` if it was declared by number.
#[must_use]
pub fn label(key: Key, name: &str) -> String {
    if name.is_empty() { format!("tensor {key}") } else { format!("tensor {name:?}") }
}

/// A text in which processes that know no names have named tensors, as [`label`] does for them, with the names of those who know.
#[must_use]
pub fn with_labels(text: &str, name_of: impl Fn(Key) -> Option<String>) -> String {
    const WORD: &str = "tensor ";
    let mut pieces = text.split(WORD);
    let mut named = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let digits = piece.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(piece.len());
        let key = piece[..digits].parse().map(Key).ok();
        match key.and_then(|key| Some((key, name_of(key)?))) {
            Some((key, name)) => named.extend([&label(key, &name), &piece[digits..]]),
            None => named.extend([WORD, piece]),
        }
    }
    named
}

/// Bytes of a declared tensor in a message apart from its name, and of what a program's own rule adds; a little more than the
/// codec needs.
const TENSOR_BYTES: usize = 112;
const OWN_RULE_BYTES: usize = 240;

/// A part of a tensor: chunk number, byte offset, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSpan {
    /// The chunk.
    pub id: ChunkId,
    /// Bytes before the chunk.
    pub offset: u64,
    /// Bytes of the chunk. Only the last chunk of a tensor is shorter than the chunk size.
    pub bytes: u64,
}

impl TensorSpec {
    /// An f32 tensor in the cluster's mode.
    #[must_use]
    pub fn f32(key: u64, elements: u64, optimizer: Optimizer) -> Self {
        Self::of(Dtype::F32, key, elements, optimizer)
    }

    /// A tensor of any type in the cluster's mode. f16 and bf16 gradients are summed in f32, and the server stores
    /// their weights in f32; only pulled values are rounded. Integers are summed in i64. If a sum does not fit i64, or
    /// a value does not fit its type, all contributors of the round get an error, and the weights of that chunk do not
    /// change.
    #[must_use]
    pub fn of(dtype: Dtype, key: u64, elements: u64, optimizer: Optimizer) -> Self {
        let (name, compression) = (String::new(), Compression::default());
        let (key, dynamic, mode, backup_workers) = (Key(key), false, None, None);
        Self { key, name, dtype, elements, dynamic, compression, optimizer, mode, backup_workers }
    }

    /// An f32 tensor whose length may differ in each round, up to `elements_max`. Its value is the sum of a round's
    /// contributions, which must have the same length. It is always in mode sync.
    #[must_use]
    pub fn dynamic_f32(key: u64, elements_max: u64) -> Self {
        Self { dynamic: true, ..Self::f32(key, elements_max, Optimizer::assign()).in_mode(Mode::Sync) }
    }

    /// The same tensor with encoded contributions. Only f32 tensors of fixed length can have a codec. With the rule
    /// `assign` a pull returns the sum of what was encoded, as in an all-reduce of gradients.
    #[must_use]
    pub fn compressed(self, compression: Compression) -> Self {
        Self { compression, ..self }
    }

    /// The tensor as messages name it: see [`label`].
    #[must_use]
    pub fn label(&self) -> String {
        label(self.key, &self.name)
    }

    /// An error about this tensor: `what` is not supported.
    #[must_use]
    pub fn unsupported(&self, what: String) -> TensorError {
        TensorError::Unsupported { key: self.key, name: self.name.clone(), what }
    }

    /// Bytes of its declaration in a message; a little more than the codec needs.
    #[must_use]
    pub fn message_bytes(&self) -> usize {
        let own = if matches!(self.optimizer.rule, Rule::Own(_)) { OWN_RULE_BYTES } else { 0 };
        TENSOR_BYTES + own + self.name.len()
    }

    /// Bytes of the whole tensor. For validated tensors this cannot overflow; for others it saturates.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.elements.saturating_mul(self.dtype.bytes() as u64)
    }

    /// The number of its chunks of `chunk_bytes`.
    #[must_use]
    #[inline]
    pub fn chunk_count(&self, chunk_bytes: u64) -> u64 {
        self.bytes().div_ceil(chunk_bytes)
    }

    /// One chunk; `None` past the end.
    #[must_use]
    #[inline]
    pub fn chunk(&self, index: ChunkIndex, chunk_bytes: u64) -> Option<ChunkSpan> {
        let offset = u64::from(index.0).checked_mul(chunk_bytes)?;
        let left = self.bytes().checked_sub(offset)?;
        let id = ChunkId { key: self.key, chunk: index };
        (left > 0).then(|| ChunkSpan { id, offset, bytes: left.min(chunk_bytes) })
    }

    /// All chunks in order.
    #[inline]
    pub fn chunks(&self, chunk_bytes: u64) -> impl Iterator<Item = ChunkSpan> + '_ {
        (0..).map_while(move |index| self.chunk(ChunkIndex(index), chunk_bytes))
    }

    /// Rejects a change of the rule that is not supported, with the reason.
    pub fn validate_change(&self, change: &RuleChange, chunk_bytes: u64) -> Result<(), TensorError> {
        if change.optimizer.needs_norms() != self.optimizer.needs_norms() {
            let what =
                "lamb has its tensors lie elsewhere than other rules do; declare another tensor for it"
                    .into();
            return Err(self.unsupported(what));
        }
        Self { optimizer: change.optimizer, ..self.clone() }.validate(chunk_bytes)
    }

    /// Rejects a tensor that is not supported, with the reason.
    pub fn validate(&self, chunk_bytes: u64) -> Result<(), TensorError> {
        let key = self.key;
        if self.elements == 0 {
            return Err(TensorError::Empty { key, name: self.name.clone() });
        }
        let bytes = self.elements.checked_mul(self.dtype.bytes() as u64).filter(|b| *b <= i64::MAX as u64);
        if bytes.is_none_or(|bytes| bytes.div_ceil(chunk_bytes) > CHUNKS_PER_TENSOR_MAX) {
            return Err(TensorError::TooLarge { key, name: self.name.clone(), elements: self.elements });
        }
        if self.name.len() > NAME_BYTES_MAX {
            return Err(TensorError::NameTooLong { key, bytes: self.name.len() });
        }
        let unsupported = |what: String| Err(self.unsupported(what));
        if self.dtype.is_integer() && !self.optimizer.is_exact() {
            let dtype = self.dtype;
            return unsupported(format!(
                "dtype {dtype} is summed exactly, and takes the rules sum and assign without average; use one of them, \
                 or f32"
            ));
        }
        if let Rule::Own(own) = &self.optimizer.rule
            && self.dtype.of_sums() != Dtype::F32
        {
            let (dtype, name) = (self.dtype, own.name);
            return unsupported(format!(
                "update rule {name} is one of the servers' program, which computes in f32: dtype {dtype} cannot have it; \
                 declare f32, f16 or bf16"
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

impl TensorSpec {
    /// The mode if it is set; otherwise sync.
    #[must_use]
    #[inline]
    pub fn settled_mode(&self) -> Mode {
        self.mode.unwrap_or_default()
    }

    /// The number of workers that a round does not wait for.
    #[must_use]
    #[inline]
    pub fn settled_backup(&self) -> u32 {
        self.backup_workers.unwrap_or(0)
    }

    /// May workers of one host add their contributions to it before they send them? Not if they have fewer bytes than a message about
    /// them.
    #[must_use]
    pub fn merges(&self) -> bool {
        let is_plain = self.compression.codec.is_plain() && !self.dynamic && home_of(self.key).is_none();
        let has_common_rounds = self.settled_mode().has_rounds() && self.settled_backup() == 0;
        is_plain && has_common_rounds && self.dtype.is_float() && self.bytes() >= MERGED_BYTES_MIN
    }

    /// The same tensor in this mode.
    #[must_use]
    pub fn in_mode(self, mode: Mode) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// The same tensor with this number of backup workers: rounds end without the contributions of so many workers.
    #[must_use]
    pub fn with_backup(self, backup_workers: u32) -> Self {
        Self { backup_workers: Some(backup_workers), ..self }
    }

    /// Fills in the cluster's values for what the declaration does not set. Backup workers apply to sync tensors only:
    /// other tensors have none, even if the cluster has some.
    #[must_use]
    pub fn settled(mut self, shape: &ClusterShape) -> Self {
        let mode = *self.mode.get_or_insert(shape.mode);
        let default = if mode.has_rounds() && !self.dynamic { shape.backup_workers } else { 0 };
        self.backup_workers.get_or_insert(default);
        self
    }

    /// Rejects what this cluster does not support, with the reason.
    pub fn validate_in(&self, shape: &ClusterShape) -> Result<(), TensorError> {
        self.validate(shape.chunk_bytes)?;
        match backup_fault(self.settled_backup(), shape.workers, shape.deterministic) {
            Some(what) => Err(self.unsupported(what)),
            None => Ok(()),
        }
    }

    /// What is wrong with the mode, if anything.
    fn mode_fault(&self) -> Option<String> {
        let (mode, backup) = (self.settled_mode(), self.settled_backup());
        if backup > 0 && !mode.has_rounds() {
            return Some(format!("mode {mode} has no rounds and therefore no backup workers; use mode sync"));
        }
        if mode.has_rounds() && (backup == 0 || !self.dynamic) {
            return None;
        }
        if self.dynamic && home_of(self.key).is_none() {
            // With backup workers, too: others may be a round further on some chunks while one pulls.
            return Some(format!(
                "a dynamic tensor has one length a round, and in mode {mode} with {backup} backup workers a pull could bring \
                 chunks of several; use mode sync without backup workers"
            ));
        }
        self.optimizer.needs_norms().then(|| {
            format!("lamb needs norms of a whole tensor of one version, and in mode {mode} each chunk has its own; use adam_w")
        })
    }
}

/// The 2^32 keys from here on are for homes. Trainers' tensors use the others.
pub const HOMES: u64 = 0x6772_7762 << 32;

/// The part whose home has this key; `None` for a tensor's key.
#[must_use]
#[inline]
pub const fn home_of(key: Key) -> Option<u32> {
    if key.0 >> 32 == HOMES >> 32 { Some(key.0 as u32 >> 8) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use crate::optimizer::{Adam, Lamb};
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
    fn names_take_the_place_of_keys_in_texts_of_those_who_know_none() {
        let name_of = |key: Key| (key == Key(7)).then(|| "fc1".to_owned());
        let text = "tensor 7: 3 chunks of tensor 77 are late, and tensor 7, not tensor x; tensor 99999999999999999999";
        let named = "tensor \"fc1\": 3 chunks of tensor 77 are late, and tensor \"fc1\", not tensor x; tensor 99999999999999999999";
        assert_eq!(with_labels(text, name_of), named);
        assert_eq!(with_labels("tensor 7", |_| Some(String::new())), "tensor 7");
        assert_eq!(with_labels("", name_of), "");
    }

    #[test]
    fn both_sides_of_each_bound() {
        let spec = |elements| TensorSpec::f32(1, elements, Optimizer::sum());
        assert_eq!(spec(0).validate(4096), Err(TensorError::Empty { key: Key(1), name: String::new() }));
        let most = CHUNKS_PER_TENSOR_MAX * 1024;
        assert!(spec(most).validate(4096).is_ok());
        assert!(matches!(spec(most + 1).validate(4096), Err(TensorError::TooLarge { .. })));
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
        let (adam, lamb) = (Adam::default(), Lamb::default());
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
        let lamb = Optimizer::mean(Lamb::default(), 0.1);
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
