//! Any messages and files for a backend's control plane, between bursts; see `control.rs` above for the grammar.
#![no_main]

#[path = "../control.rs"]
mod control;

libfuzzer_sys::fuzz_target!(|input: &[u8]| control::play(input));
