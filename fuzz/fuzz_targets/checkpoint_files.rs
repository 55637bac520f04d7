//! `checkpoint_files` of `gradwire_fuzz_targets` under libFuzzer. Must hold nothing else, because tests replay the target's own file
//! without libFuzzer, too.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gradwire_fuzz_targets::checkpoint_files::run(data));
