//! Encoded contributions: checked whole before anything is decided about them, and decoded into a buffer of the lane's
//! own when they are reduced. It must not trust the bytes for having been checked: a peer can write them at any time.

use super::cells::Place;
use super::error::StorageError;
use crate::engine::Addend;
use fabric::simd::{Pass, widest};
use fabric::{Exclusive, Pool};
use proto_common::codec::{Codec, Malformed};
use zerocopy::FromBytes;

/// One encoded chunk and one decoded one, as large as the largest; nothing where all tensors are plain.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    encoded: Vec<u8>,
    numbers: Option<Exclusive>,
}

impl Decoder {
    /// Makes room for chunks of so many elements.
    pub(super) fn reserve(&mut self, pool: &Pool, codec: Codec, elements: usize) -> Result<(), StorageError> {
        if codec.is_plain() {
            return Ok(());
        }
        let encoded_bytes = codec.encoded_bytes(elements);
        if self.encoded.len() < encoded_bytes {
            self.encoded.resize(encoded_bytes, 0);
        }
        let bytes = elements * size_of::<f32>();
        if self.numbers.as_ref().is_none_or(|numbers| numbers.len() < bytes) {
            self.numbers = Some(pool.allocate(bytes as u64)?);
        }
        Ok(())
    }

    /// The contribution as plain numbers: in place, or decoded. What it is added to is a sum where contributions are
    /// encoded, because the engine takes those out of slots only.
    pub(super) fn plain<'a>(
        &'a mut self,
        (codec, elements): (Codec, usize),
        addend: Addend<Place<'a>>,
    ) -> Result<Addend<Place<'a>>, StorageError> {
        let Self { encoded, numbers: Some(numbers) } = self else { return Ok(addend) };
        if codec.is_plain() {
            return Ok(addend);
        }
        // Invariant: both have room for every chunk that was added.
        let encoded = read(encoded, codec, elements, addend.from)?;
        let into = <[f32]>::mut_from_bytes(&mut numbers[..elements * size_of::<f32>()]);
        let into = into.map_err(|_| StorageError::Elements)?;
        widest(Decode { codec, encoded, into });
        Ok(Addend { from: Place::Decoded(numbers), ..addend })
    }

    /// Does the codec make so many elements of the contribution?
    pub(super) fn check(
        &mut self,
        (codec, elements): (Codec, usize),
        from: Place<'_>,
    ) -> Result<Result<(), Malformed>, StorageError> {
        let encoded = read(&mut self.encoded, codec, elements, from)?;
        let mut result = Ok(());
        widest(Check { codec, elements, encoded, result: &mut result });
        Ok(result)
    }
}

/// Copies an encoded chunk out of memory that a peer can write.
fn read<'a>(
    into: &'a mut [u8],
    codec: Codec,
    elements: usize,
    from: Place<'_>,
) -> Result<&'a [u8], StorageError> {
    let encoded = &mut into[..codec.encoded_bytes(elements)];
    from.read(encoded)?;
    Ok(encoded)
}

struct Decode<'a> {
    codec: Codec,
    encoded: &'a [u8],
    into: &'a mut [f32],
}

impl Pass for Decode<'_> {
    #[inline(always)]
    fn run(self) {
        self.codec.decode(self.encoded, self.into);
    }
}

struct Check<'a> {
    codec: Codec,
    elements: usize,
    encoded: &'a [u8],
    result: &'a mut Result<(), Malformed>,
}

impl Pass for Check<'_> {
    #[inline(always)]
    fn run(self) {
        *self.result = self.codec.check(self.elements, self.encoded);
    }
}
