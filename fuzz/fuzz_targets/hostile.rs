//! Any bytes as calls against the modelled device; see `hostile.rs` above for the grammar.
#![no_main]

#[path = "../hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|input: &[u8]| hostile::play(input));
