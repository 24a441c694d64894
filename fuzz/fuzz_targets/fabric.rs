//! Any bytes as a peer's writes to the memory of a connection; see `fabric.rs` above for the grammar.
#![no_main]

#[path = "../fabric.rs"]
mod fabric;

libfuzzer_sys::fuzz_target!(|input: &[u8]| fabric::play(input));
