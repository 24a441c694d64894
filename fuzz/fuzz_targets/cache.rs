//! Any bytes as calls on a cache over a faulty device; see `cache.rs` above for the grammar.
#![no_main]

#[path = "../cache.rs"]
mod cache;

libfuzzer_sys::fuzz_target!(|input: &[u8]| cache::play(input));
