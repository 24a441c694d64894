//! Any file for the reader of recordings; see `recording.rs` above for the grammar.
#![no_main]

#[path = "../recording.rs"]
mod recording;

libfuzzer_sys::fuzz_target!(|input: &[u8]| recording::play(input));
