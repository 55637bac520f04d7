//! What peers of the verbs driver say: offers, endpoints and told extents are refused, or mean what encodes to the same
//! bytes; what was told is never reached beyond. Never a panic. Half of the inputs get the right magic.

use fabric::verbs_reach::{MESSAGE_BYTES, Reach, decode_told, encode_told};
use fabric::verbs_words::{ENDPOINT_BYTES, Endpoint, decode_offer};

type Input = (bool, [u8; ENDPOINT_BYTES], Vec<[u8; MESSAGE_BYTES]>, Vec<u8>, u64);

crate::target!(|input: Input| {
    let (mend, mut endpoint, mut messages, offer, offset) = input;
    if mend {
        endpoint[..4].copy_from_slice(&0x5642_5747u32.to_le_bytes());
        messages.iter_mut().for_each(|message| message[..4].copy_from_slice(&0x4D57_5747u32.to_le_bytes()));
    }
    if let Ok(read) = Endpoint::decode(&endpoint) {
        assert_eq!(Endpoint::decode(&read.encode()).ok(), Some(read));
    }
    for index in [0, 1, u16::MAX] {
        let _ = decode_offer(&offer, index);
    }
    let mut reach = Reach::default();
    for message in &messages {
        let Some((name, told)) = decode_told(message) else {
            assert!(reach.hear(message).is_err());
            continue;
        };
        assert_eq!(decode_told(&encode_told(name, &told)), Some((name, told)));
        if reach.hear(message).is_ok() {
            for offset in [offset, told.offset, told.offset + told.bytes - 1, told.offset + told.bytes] {
                if let Ok((address, _, left)) = reach.at(name, offset) {
                    assert!(left > 0 && address.checked_add(left).is_some());
                }
            }
        }
    }
});
