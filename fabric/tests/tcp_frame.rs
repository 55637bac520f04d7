//! The TCP driver's wire format: frozen bytes, and a decoder that takes nothing but what is encoded.
#![allow(clippy::unwrap_used, reason = "tests")]

use fabric::tcp_frame::{Frame, HEADER_BYTES};
use proptest::prelude::*;

#[test]
fn bytes_are_frozen() {
    let write = Frame::Write { key: 0x11, offset: 0x2_2222_2222, length: 0x33, immediate: Some(0xAABB_CCDD) };
    let frozen = b"\x47\x57\x01\x01\xDD\xCC\xBB\xAA\x11\0\0\0\0\0\0\0\x22\x22\x22\x22\x02\0\0\0\x33\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    assert_eq!(&write.encode(), frozen);
    let silent = Frame::Write { key: 1, offset: 0, length: 2, immediate: None };
    assert_eq!(silent.encode()[..9], *b"\x47\x57\x01\x00\0\0\0\0\x01");
    let request = Frame::ReadRequest { key: 1, offset: 2, length: 3, id: 4 };
    let frozen =
        b"\x47\x57\x02\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0";
    assert_eq!(&request.encode(), frozen);
    let response = Frame::ReadResponse { length: 3, id: 4 };
    let frozen =
        b"\x47\x57\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0";
    assert_eq!(&response.encode(), frozen);
}

#[test]
fn each_refusal_has_its_name() {
    let good = Frame::Write { key: 1, offset: 2, length: 3, immediate: None }.encode();
    let with = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        Frame::decode(&bytes)
    };
    assert!(Frame::decode(&good).is_ok());
    assert_eq!(with(0, 0x48).unwrap_err(), "no frame begins with 0x5748");
    assert_eq!(with(2, 0).unwrap_err(), "unknown operation 0");
    assert_eq!(with(2, 4).unwrap_err(), "unknown operation 4");
    assert_eq!(with(3, 2).unwrap_err(), "unknown flags 0x02");
    assert_eq!(with(4, 1).unwrap_err(), "an unused field is not zero");
    assert_eq!(with(32, 1).unwrap_err(), "an unused field is not zero");
    let mut request = Frame::ReadRequest { key: 1, offset: 2, length: 3, id: 4 }.encode();
    request[3] = 1;
    assert_eq!(Frame::decode(&request).unwrap_err(), "unknown flags 0x01");
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let words = any::<(u64, u64, u64, u64, Option<u32>)>();
    (0..3, words).prop_map(|(op, (key, offset, length, id, immediate))| match op {
        0 => Frame::Write { key, offset, length, immediate },
        1 => Frame::ReadRequest { key, offset, length, id },
        _ => Frame::ReadResponse { length, id },
    })
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(frame in any_frame()) {
        prop_assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
    }

    #[test]
    fn what_is_decoded_has_no_other_encoding(mut bytes in any::<[u8; HEADER_BYTES]>(), op in 0u8..5, sparse in any::<bool>()) {
        bytes[..2].copy_from_slice(&0x5747u16.to_le_bytes());
        bytes[2] = op;
        bytes[3] &= 1;
        if sparse {
            bytes[4..24].fill(0);
        }
        if let Ok(frame) = Frame::decode(&bytes) {
            prop_assert_eq!(frame.encode(), bytes);
        }
    }
}
