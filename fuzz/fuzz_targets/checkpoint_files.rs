//! What lies in a directory of checkpoints: manifests and headers of parts. Whatever the bytes, an answer and no panic; and a
//! header that is taken has entries that cover the data exactly.
#![no_main]

use checkpoint::{Header, Manifest};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, &[u8])| {
    let (data_bytes, bytes) = input;
    let _ = Manifest::parse(bytes, "fuzzed");
    if let Some(first) = bytes.first_chunk::<8>() {
        let _ = Header::length(*first, bytes.len() as u64, "fuzzed");
    }
    if let Ok(header) = Header::parse(bytes, u64::from(data_bytes), "fuzzed") {
        let covered: u64 =
            header.entries.values().map(|entry| entry.data_offsets[1] - entry.data_offsets[0]).sum();
        assert_eq!(covered, u64::from(data_bytes));
    }
});
