//! The one message that peers send each other beside writes: the key of a region that is exposed.

use crate::error::PostError;

/// Bytes of a message.
pub(super) const MESSAGE_BYTES: usize = 32;
const MAGIC: u32 = 0x4D57_5747;

/// A peer's region that was told to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) key: u32,
}

pub(super) fn encode_told(name: u64, told: &Told) -> [u8; MESSAGE_BYTES] {
    let mut message = [0; MESSAGE_BYTES];
    message[0..4].copy_from_slice(&MAGIC.to_le_bytes());
    message[4..8].copy_from_slice(&told.key.to_le_bytes());
    message[8..16].copy_from_slice(&name.to_le_bytes());
    message[16..24].copy_from_slice(&told.address.to_le_bytes());
    message[24..32].copy_from_slice(&told.bytes.to_le_bytes());
    message
}

pub(super) fn decode_told(message: &[u8; MESSAGE_BYTES]) -> Option<(u64, Told)> {
    let (words, _) = message.as_chunks::<4>();
    let (longs, _) = message.as_chunks::<8>();
    let told = Told {
        key: u32::from_le_bytes(words[1]),
        address: u64::from_le_bytes(longs[2]),
        bytes: u64::from_le_bytes(longs[3]),
    };
    let is_ours = u32::from_le_bytes(words[0]) == MAGIC && told.address.checked_add(told.bytes).is_some();
    is_ours.then(|| (u64::from_le_bytes(longs[1]), told))
}

impl Told {
    pub(super) fn at(&self, offset: u64, bytes: u64) -> Result<u64, PostError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.address + offset),
            _ => Err(PostError::RemoteAccess),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_message_and_nonsense_does_not() {
        let told = Told { key: 7, address: 0x7F00_1234_0000, bytes: 4096 };
        let message = encode_told(9, &told);
        assert_eq!(decode_told(&message), Some((9, told)));
        let mut other = message;
        other[0] ^= 1;
        assert_eq!(decode_told(&other), None);
        let overflowing = encode_told(9, &Told { bytes: u64::MAX, ..told });
        assert_eq!(decode_told(&overflowing), None);
    }

    #[test]
    fn a_stretch_must_lie_within() {
        let told = Told { key: 7, address: 1000, bytes: 10 };
        assert_eq!((told.at(0, 10), told.at(10, 0), told.at(3, 4)), (Ok(1000), Ok(1010), Ok(1003)));
        for (offset, bytes) in [(0, 11), (11, 0), (u64::MAX, 2)] {
            assert_eq!(told.at(offset, bytes), Err(PostError::RemoteAccess), "{bytes} at {offset}");
        }
    }
}
