//! What of a peer's memory may be reached, and the one message that peers send each other beside writes: the key of an
//! extent of a region that they expose.

use crate::error::PostError;
use std::collections::HashMap;

/// Bytes of a message.
pub const MESSAGE_BYTES: usize = 64;
const MAGIC: u32 = 0x4D57_5747;
/// Extents that one peer may tell.
const EXTENTS_MAX: usize = 1 << 13;

/// An extent of a peer's region: a stretch with a key of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Bytes from the region's start.
    pub offset: u64,
    /// Its length, never 0.
    pub bytes: u64,
    /// Where it begins, as the peer's device knows it.
    pub address: u64,
    /// Its rkey.
    pub key: u32,
}

/// The message that tells an extent of the region of this name.
#[must_use]
pub fn encode_told(name: u64, told: &Told) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    message[4..8].copy_from_slice(&told.key.to_le_bytes());
    for (i, word) in [name, told.offset, told.bytes, told.address].into_iter().enumerate() {
        message[8 + 8 * i..16 + 8 * i].copy_from_slice(&word.to_le_bytes());
    }
    message
}

/// What a message tells, where that means something.
#[must_use]
pub fn decode_told(message: &[u8; MESSAGE_BYTES]) -> Option<(u64, Told)> {
    let (words, _) = message.as_chunks::<4>();
    let (longs, _) = message.as_chunks::<8>();
    let long = |at: usize| u64::from_le_bytes(longs[at]);
    let (offset, bytes, address) = (long(2), long(3), long(4));
    let is_sound = address.checked_add(bytes).is_some() && offset.checked_add(bytes).is_some() && bytes > 0;
    let is_ours = u32::from_le_bytes(words[0]) == MAGIC && is_sound;
    is_ours.then(|| (long(1), Told { offset, bytes, address, key: u32::from_le_bytes(words[1]) }))
}

/// A peer's regions by name, as far as it told them.
#[derive(Debug, Default)]
pub struct Reach {
    /// The extents of each, by offset.
    regions: HashMap<u64, Vec<Told>>,
    extents: usize,
}

impl Reach {
    /// Takes a peer's message; what is wrong with it.
    pub fn hear(&mut self, message: &[u8; MESSAGE_BYTES]) -> Result<(), &'static str> {
        let (name, told) = decode_told(message).ok_or("a message that means nothing")?;
        if self.regions.len() == EXTENTS_MAX && !self.regions.contains_key(&name) {
            return Err("it exposes too many regions");
        }
        let extents = self.regions.entry(name).or_default();
        match extents.binary_search_by_key(&told.offset, |other| other.offset) {
            Ok(at) => extents[at] = told,
            Err(_) if self.extents == EXTENTS_MAX => return Err("it exposes too much memory"),
            Err(at) => {
                extents.insert(at, told);
                self.extents += 1;
            }
        }
        Ok(())
    }

    #[cfg(feature = "sim")]
    /// What was told of a region's beginning.
    #[must_use]
    pub fn first(&self, name: u64) -> Option<Told> {
        self.regions.get(&name)?.first().copied()
    }

    /// Where a place of a region lies: its address and key, and the bytes from there to the end of its extent.
    pub fn at(&self, name: u64, offset: u64) -> Result<(u64, u32, u64), PostError> {
        let extents = self.regions.get(&name).ok_or(PostError::RemoteAccess)?;
        let after = extents.partition_point(|told| told.offset <= offset);
        let told = after.checked_sub(1).map(|at| extents[at]).ok_or(PostError::RemoteAccess)?;
        let within = offset - told.offset;
        match told.bytes.checked_sub(within) {
            Some(left) if left > 0 => Ok((told.address + within, told.key, left)),
            _ => Err(PostError::RemoteAccess),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(told: &[(u64, Told)]) -> Reach {
        let mut reach = Reach::default();
        told.iter().for_each(|(name, told)| reach.hear(&encode_told(*name, told)).unwrap());
        reach
    }

    #[test]
    fn a_key_survives_its_message_and_nonsense_does_not() {
        let told = Told { offset: 64, bytes: 4096, address: 0x7F00_1234_0000, key: 7 };
        let message = encode_told(9, &told);
        assert_eq!(decode_told(&message), Some((9, told)));
        let mut other = message;
        other[0] ^= 1;
        assert_eq!(decode_told(&other), None);
        for bytes in [u64::MAX, 0] {
            assert_eq!(decode_told(&encode_told(9, &Told { bytes, ..told })), None, "{bytes} bytes");
        }
        assert!(Reach::default().hear(&[0; MESSAGE_BYTES]).is_err());
    }

    #[test]
    fn a_place_must_lie_in_an_extent_that_was_told() {
        let first = Told { offset: 0, bytes: 10, address: 1000, key: 7 };
        let third = Told { offset: 20, bytes: 5, address: 1020, key: 8 };
        let reach = reach(&[(1, third), (1, first)]);
        assert_eq!(reach.at(1, 0), Ok((1000, 7, 10)));
        assert_eq!(reach.at(1, 9), Ok((1009, 7, 1)));
        assert_eq!(reach.at(1, 22), Ok((1022, 8, 3)));
        for (name, offset) in [(1, 10), (1, 19), (1, 25), (1, u64::MAX), (2, 0)] {
            assert_eq!(reach.at(name, offset), Err(PostError::RemoteAccess), "{name} at {offset}");
        }
    }

    #[test]
    fn what_a_peer_may_tell_is_bounded_and_repeating_it_is_not_counted() {
        let mut reach = Reach::default();
        let told = |offset| Told { offset, bytes: 1, address: 0, key: 0 };
        for offset in 0..EXTENTS_MAX as u64 {
            reach.hear(&encode_told(3, &told(offset))).unwrap();
        }
        reach.hear(&encode_told(3, &told(5))).unwrap();
        let mut many = Reach::default();
        for name in 0..EXTENTS_MAX as u64 {
            many.hear(&encode_told(name, &told(0))).unwrap();
        }
        many.hear(&encode_told(5, &told(0))).unwrap();
        assert!(many.hear(&encode_told(EXTENTS_MAX as u64, &told(0))).is_err());
        assert!(reach.hear(&encode_told(3, &told(EXTENTS_MAX as u64))).is_err());
    }
}
