//! Frame headers of the TCP driver: 40 bytes are refused, or a frame that encodes to the same bytes; never a
//! panic. Half of the inputs get the right magic, so that what lies behind it is reached.

use fabric::tcp_frame::{Frame, HEADER_BYTES};

crate::target!(|input: (bool, [u8; HEADER_BYTES])| {
    let (mend, mut bytes) = input;
    if mend {
        bytes[..2].copy_from_slice(&0x5747u16.to_le_bytes());
    }
    if let Ok(frame) = Frame::decode(&bytes) {
        assert_eq!(frame.encode(), bytes);
    }
});
