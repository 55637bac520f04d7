//! `server_copies` of `gradwire_fuzz_targets` under libFuzzer. Must hold nothing else: the target's own file is replayed without it, too.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gradwire_fuzz_targets::server_copies::run(data));
