//! Any PDUs of a host; see `nvmf.rs` above for the grammar.
#![no_main]

#[path = "../nvmf.rs"]
mod nvmf;

libfuzzer_sys::fuzz_target!(|input: &[u8]| nvmf::play(input));
