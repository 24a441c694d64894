//! Any bytes as a guest's memory and a backend's calls; see `vhost.rs` above for the grammar.
#![no_main]

#[path = "../vhost.rs"]
mod vhost;

libfuzzer_sys::fuzz_target!(|input: &[u8]| vhost::play(input));
