//! What peers say to each other before a channel is there, over shared memory and TCP, and the first message of a control
//! connection, of any version: refused, or it encodes to the same bytes; never a panic. Most inputs get the right magic.

use proto_common::message::{opening_of, speaker_of};

/// Of shm offers and greetings, and of tcp offers, open and sealed.
const MAGICS: [&[u8; 4]; 4] = [b"GWSO", b"GWS2", b"GWO3", b"GWS3"];

crate::target!(|input: (u8, Vec<u8>)| {
    let (which, mut bytes) = input;
    if let (Some(magic), Some(first)) = (MAGICS.get(usize::from(which % 8)), bytes.first_chunk_mut::<4>()) {
        *first = **magic;
    }
    for again in [fabric::shm_words_again(&bytes), fabric::tcp_words_again(&bytes)].into_iter().flatten() {
        assert_eq!(again, bytes);
    }
    if let Some(build) = speaker_of(&bytes) {
        assert_eq!(speaker_of(&opening_of(&build)), Some(build));
    }
});
