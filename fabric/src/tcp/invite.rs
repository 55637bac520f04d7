//! What peers say to each other before a channel carries frames: the offer (sent over an authenticated
//! connection) and the preamble of each channel's socket. Pure encode and strict, bounded decode.

use crate::error::FabricError;
use crate::random::Secret;
use ring::hmac;

/// Longest advertised host name (a DNS name has at most 253 characters).
pub(super) const HOST_BYTES_MAX: usize = 255;
/// Most channels of one offer.
pub(super) const CHANNELS_MAX: usize = 1024;
/// Bytes of a preamble.
pub(super) const PREAMBLE_BYTES: usize = 40;

const OFFER_MAGIC: [u8; 4] = *b"GWO3";
/// Of an offer whose channels are encrypted where they go over TCP.
const SEALED_MAGIC: [u8; 4] = *b"GWS3";
const PREAMBLE_MAGIC: [u8; 4] = *b"GWP2";
/// Names what a preamble shows, so that it tells nothing of what else the secret is for.
const PURPOSE: &[u8] = b"gradwire tcp preamble 2";

/// Bytes of an offer before the host's name.
const FIXED_BYTES: usize = 40;

/// Stands for no name.
const NO_NAME: [u8; 16] = [0; 16];

impl Secret {
    /// What shows that its sender knows the secret, and may open this channel: anybody may read it on its way.
    fn proof(&self, index: [u8; 2]) -> hmac::Tag {
        hmac::sign(&self.key(), &[PURPOSE, &index].concat())
    }

    /// Is this that? It takes as long whatever it is.
    fn is_shown_by(&self, proof: &[u8], index: [u8; 2]) -> bool {
        hmac::verify(&self.key(), &[PURPOSE, &index].concat(), proof).is_ok()
    }

    fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

/// Where and with what secret to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) channels: u16,
    pub(super) secret: Secret,
    /// Frames are sealed where they go over TCP.
    pub(super) sealed: bool,
    /// What the unix socket is called that peers of the same host and user may use instead of the port. Not a secret: the system
    /// shows such names to everybody.
    pub(super) unix: Option<[u8; 16]>,
}

impl Offer {
    /// The bytes for the peer; the host's length must have been checked.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FIXED_BYTES + self.host.len());
        bytes.extend_from_slice(if self.sealed { &SEALED_MAGIC } else { &OFFER_MAGIC });
        bytes.extend_from_slice(&self.port.to_le_bytes());
        bytes.extend_from_slice(&self.channels.to_le_bytes());
        bytes.extend_from_slice(&self.secret.0);
        bytes.extend_from_slice(&self.unix.unwrap_or(NO_NAME));
        bytes.extend_from_slice(self.host.as_bytes());
        bytes
    }

    /// Reads a peer's offer.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, FabricError> {
        let refuse = |why: &str| Err(FabricError::Peer(format!("its tcp offer {why}")));
        let Some((fixed, host)) = bytes.split_first_chunk::<FIXED_BYTES>() else {
            return refuse("is too short");
        };
        let sealed = match &fixed[..4] {
            magic if magic == OFFER_MAGIC => false,
            magic if magic == SEALED_MAGIC => true,
            _ => return refuse("is of another kind or version"),
        };
        if host.is_empty() || host.len() > HOST_BYTES_MAX {
            return refuse("has a host name that is empty or too long");
        }
        let Ok(host) = std::str::from_utf8(host) else {
            return refuse("has a host name that is not UTF-8");
        };
        let port = u16::from_le_bytes([fixed[4], fixed[5]]);
        let channels = u16::from_le_bytes([fixed[6], fixed[7]]);
        if port == 0 || channels == 0 || usize::from(channels) > CHANNELS_MAX {
            return refuse("has no port or no channels");
        }
        let (mut secret, mut name) = ([0; 16], [0; 16]);
        secret.copy_from_slice(&fixed[8..24]);
        name.copy_from_slice(&fixed[24..]);
        let unix = (name != NO_NAME).then_some(name);
        Ok(Self { host: host.to_owned(), port, channels, secret: Secret(secret), sealed, unix })
    }
}

/// An offer read and encoded again: for the fuzz target.
#[cfg(feature = "sim")]
#[must_use]
pub fn again(bytes: &[u8]) -> Option<Vec<u8>> {
    Offer::decode(bytes).ok().map(|offer| offer.encode())
}

/// The preamble of a channel of an offer: for tests.
#[cfg(feature = "sim")]
#[must_use]
pub fn preamble_of(offer: &[u8], index: u16) -> Option<Vec<u8>> {
    Offer::decode(offer).ok().map(|offer| encode_preamble(&offer.secret, index).to_vec())
}

/// The first bytes on a channel's socket, from the connecting side.
pub(super) fn encode_preamble(secret: &Secret, index: u16) -> [u8; PREAMBLE_BYTES] {
    let mut bytes = [0; PREAMBLE_BYTES];
    bytes[..4].copy_from_slice(&PREAMBLE_MAGIC);
    bytes[4..6].copy_from_slice(&index.to_le_bytes());
    bytes[8..].copy_from_slice(secret.proof(index.to_le_bytes()).as_ref());
    bytes
}

/// The index of the channel that a preamble opens, or why it opens none.
pub(super) fn decode_preamble(bytes: &[u8; PREAMBLE_BYTES], secret: &Secret) -> Result<u16, &'static str> {
    if bytes[..4] != PREAMBLE_MAGIC || bytes[6..8] != [0, 0] {
        return Err("not a channel's first bytes");
    }
    let index = [bytes[4], bytes[5]];
    if !secret.is_shown_by(&bytes[8..], index) {
        return Err("it does not know the offer's secret");
    }
    Ok(u16::from_le_bytes(index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offer() -> Offer {
        let (secret, unix) = (Secret([9; 16]), Some([6; 16]));
        Offer { host: "node-7".into(), port: 0x1234, channels: 3, secret, sealed: false, unix }
    }

    #[test]
    fn bytes_are_frozen() {
        let mut bytes = b"GWO3\x34\x12\x03\x00".to_vec();
        bytes.extend_from_slice(&[9; 16]);
        bytes.extend_from_slice(&[6; 16]);
        bytes.extend_from_slice(b"node-7");
        assert_eq!(offer().encode(), bytes);
        assert_eq!(Offer::decode(&bytes).unwrap(), offer());
        let nameless = Offer { unix: None, ..offer() };
        bytes[24..40].fill(0);
        assert_eq!(nameless.encode(), bytes);
        assert_eq!(Offer::decode(&bytes).unwrap(), nameless);
        let sealed = Offer { sealed: true, ..nameless };
        bytes[..4].copy_from_slice(b"GWS3");
        assert_eq!(sealed.encode(), bytes);
        assert_eq!(Offer::decode(&bytes).unwrap(), sealed);
        assert_eq!(encode_preamble(&Secret([9; 16]), 0x102)[..8], *b"GWP2\x02\x01\x00\x00");
    }

    #[test]
    fn a_host_name_is_bounded_on_both_sides() {
        for (bytes, good) in [(0, false), (1, true), (HOST_BYTES_MAX, true), (HOST_BYTES_MAX + 1, false)] {
            let offer = Offer { host: "h".repeat(bytes), ..offer() };
            assert_eq!(Offer::decode(&offer.encode()).is_ok(), good, "{bytes}");
        }
    }

    #[test]
    fn an_offer_of_the_version_before_is_refused() {
        let mut bytes = offer().encode();
        bytes[..4].copy_from_slice(b"GWO2");
        assert!(Offer::decode(&bytes).is_err());
        assert!(Offer::decode(&offer().encode()[..FIXED_BYTES - 1]).is_err());
    }

    #[test]
    fn a_preamble_needs_the_secret() {
        let good = encode_preamble(&Secret([9; 16]), 5);
        assert_eq!(decode_preamble(&good, &Secret([9; 16])), Ok(5));
        assert!(decode_preamble(&good, &Secret([8; 16])).is_err());
        for at in 0..PREAMBLE_BYTES {
            let mut bad = good;
            bad[at] ^= 1;
            assert!(decode_preamble(&bad, &Secret([9; 16])).is_err(), "byte {at}");
        }
    }

    /// Keys of sealed channels are drawn from the secret: whoever reads preambles must not learn it, nor another channel's.
    #[test]
    fn a_preamble_tells_neither_the_secret_nor_another_channel_s() {
        let secret = Secret::random().unwrap();
        let preambles = [0, 1, u16::MAX].map(|index| encode_preamble(&secret, index));
        for (at, preamble) in preambles.iter().enumerate() {
            assert!(
                !preamble.windows(4).any(|bytes| secret.0.windows(4).any(|of_secret| of_secret == bytes))
            );
            assert!(preambles[..at].iter().all(|other| other[8..] != preamble[8..]));
            let mut moved = *preamble;
            moved[4] ^= 1;
            assert!(decode_preamble(&moved, &secret).is_err(), "one channel's proof is no other's");
        }
    }

    #[test]
    fn secrets_differ_and_stay_out_of_logs() {
        assert_ne!(Secret::random().unwrap(), Secret::random().unwrap());
        assert!(!format!("{:?}", offer()).contains('9'));
    }

    proptest! {
        #[test]
        fn decoding_anything_is_safe_and_canonical(
            mut bytes in prop::collection::vec(any::<u8>(), 0..320),
            plausible in any::<bool>(),
        ) {
            if plausible && bytes.len() > FIXED_BYTES {
                bytes[..8].copy_from_slice(&offer().encode()[..8]);
                bytes[FIXED_BYTES..].iter_mut().for_each(|b| *b &= 0x7F);
            }
            if let Ok(offer) = Offer::decode(&bytes) {
                prop_assert_eq!(offer.encode(), bytes);
            }
        }
    }
}
