//! What two sides say of their queue pairs while a channel is set up, as bytes: pure, bounded, and known to every build, so
//! that it is fuzzed in all of them.

use crate::error::FabricError;

const MAGIC: u32 = 0x5642_5747;
/// Bytes of an endpoint.
pub const ENDPOINT_BYTES: usize = 48;
/// Bytes of the memory that notices by flags come in by.
pub const FLAGS_BYTES: u64 = 257 * 8;
/// Beside the largest packet: notices by flags are wanted.
const TAIL_FLAGS: u32 = 1 << 8;

/// One side's queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Which.
    pub remote: Remote,
    /// The largest packet of its port, an `ibv_mtu`.
    pub mtu: u32,
    /// Reads that it answers at once.
    pub reads: u8,
    /// Where it would have notices by flags, and the key of that memory.
    pub flags: Option<(u64, u32)>,
}

impl Endpoint {
    /// As it travels.
    #[must_use]
    pub fn encode(&self) -> [u8; ENDPOINT_BYTES] {
        let mut bytes = [0; ENDPOINT_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.remote.queue_pair.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.remote.first_packet.to_le_bytes());
        let mtu = self.mtu | if self.flags.is_some() { TAIL_FLAGS } else { 0 };
        let (address, key) = self.flags.unwrap_or_default();
        bytes[12..16].copy_from_slice(&mtu.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.remote.gid);
        bytes[32..40].copy_from_slice(&address.to_le_bytes());
        bytes[40..44].copy_from_slice(&key.to_le_bytes());
        bytes[44] = self.reads;
        bytes
    }

    /// What a peer said, where that means something.
    pub fn decode(bytes: &[u8; ENDPOINT_BYTES]) -> Result<Self, FabricError> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[16..32]);
        let (queue_pair, first_packet, mtu) = (word(4), word(8), word(12) & !TAIL_FLAGS);
        let fits = queue_pair < 1 << 24 && first_packet < 1 << 24 && (1..=5).contains(&mtu) && bytes[44] > 0;
        if word(0) != MAGIC || !fits {
            return Err(FabricError::Peer("what it said is no verbs endpoint".into()));
        }
        let address = u64::from(word(36)) << 32 | u64::from(word(32));
        let flags = (word(12) & TAIL_FLAGS != 0).then_some((address, word(40)));
        if flags.is_some_and(|(address, _)| address.checked_add(FLAGS_BYTES).is_none()) {
            return Err(FabricError::Peer("its flags lie nowhere".into()));
        }
        Ok(Self { remote: Remote { gid, queue_pair, first_packet }, mtu, reads: bytes[44], flags })
    }
}

/// The other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its address.
    pub gid: [u8; 16],
    /// Its number, of 24 bits.
    pub queue_pair: u32,
    /// The number of its first packet, of 24 bits.
    pub first_packet: u32,
}

/// Of an offer: the queue pairs, then what the TCP driver says.
#[must_use]
pub fn encode_offer(endpoints: &[Endpoint], tcp: &[u8]) -> Vec<u8> {
    let mut offer = (endpoints.len() as u16).to_le_bytes().to_vec();
    endpoints.iter().for_each(|endpoint| offer.extend_from_slice(&endpoint.encode()));
    offer.extend_from_slice(tcp);
    offer
}

/// The queue pair of a channel of an offer, and what is for the TCP driver.
pub fn decode_offer(offer: &[u8], index: u16) -> Result<(Endpoint, &[u8]), FabricError> {
    let torn = || FabricError::Peer("its verbs offer is torn".into());
    let (count, rest) = offer.split_first_chunk::<2>().ok_or_else(torn)?;
    let count = u16::from_le_bytes(*count);
    if index >= count {
        return Err(FabricError::Misuse(format!("channel {index} of an offer of {count} channels")));
    }
    let (endpoints, tcp) = rest.split_at_checked(usize::from(count) * ENDPOINT_BYTES).ok_or_else(torn)?;
    let (endpoints, _) = endpoints.as_chunks::<{ ENDPOINT_BYTES }>();
    Ok((Endpoint::decode(&endpoints[usize::from(index)])?, tcp))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_endpoint_survives_and_nonsense_does_not() {
        let remote = Remote { gid: [7; 16], queue_pair: 0x00AB_CDEF, first_packet: 0x0012_3456 };
        for flags in [None, Some((0x7F00_1234_5678_9AB0, 0xABCD_EF01))] {
            let endpoint = Endpoint { remote, mtu: 3, reads: 16, flags };
            assert_eq!(Endpoint::decode(&endpoint.encode()).ok(), Some(endpoint));
        }
        let bytes = Endpoint { remote, mtu: 3, reads: 16, flags: None }.encode();
        for (at, value) in [(0, 0), (7, 1), (11, 1), (12, 6), (12, 0), (13, 2), (44, 0)] {
            let mut bad = bytes;
            bad[at] = value;
            assert!(matches!(Endpoint::decode(&bad), Err(FabricError::Peer(_))), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn whatever_an_offer_holds_it_is_refused_or_means_something(
            offer in prop::collection::vec(any::<u8>(), 0..200),
            (count, index) in (0u16..5, 0u16..5),
        ) {
            let mut mended = count.to_le_bytes().to_vec();
            mended.extend_from_slice(&MAGIC.to_le_bytes());
            mended.extend_from_slice(&offer);
            for offer in [&offer, &mended] {
                if let Ok((endpoint, tcp)) = decode_offer(offer, index) {
                    prop_assert_eq!(Endpoint::decode(&endpoint.encode()).ok(), Some(endpoint));
                    prop_assert!(tcp.len() + ENDPOINT_BYTES < offer.len());
                }
            }
        }
    }
}
