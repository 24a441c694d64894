//! Recorded sessions of NVMe/TCP with changes; see `nvmf_streams.rs` above for the grammar.
#![no_main]

#[path = "../nvmf_streams.rs"]
mod nvmf_streams;

libfuzzer_sys::fuzz_target!(|input: &[u8]| nvmf_streams::play(input));
