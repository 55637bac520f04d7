//! The frame of a call as a worker may write it: refused, or its pieces lie within payload and body.

use proto_common::call::{Frame, PieceAt};

crate::target!(|input: (u64, &[u8])| {
    let (body_bytes, payload) = input;
    let Ok(frame) = Frame::read(payload, body_bytes) else { return };
    let mut total = 0u64;
    for piece in frame.pieces() {
        total = total.checked_add(piece.bytes()).expect("the sum of the pieces was checked");
        if let PieceAt::Frame { offset, bytes } = piece {
            assert!(payload.get(offset..).is_some_and(|rest| rest.len() >= bytes), "past the payload");
        }
    }
    assert_eq!(total, body_bytes);
});
