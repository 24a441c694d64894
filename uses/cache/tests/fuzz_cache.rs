//! The fuzz target with a limited number of seeded inputs: random calls with a misbehaving device, for as long as
//! `TELPHER_SOAK_SECONDS` says.
#![cfg(not(loom))]

#[path = "../../../fuzz/cache.rs"]
mod cache;
#[path = "../../../fuzz/inputs.rs"]
mod inputs;

#[test]
fn random_calls_read_only_source_bytes_and_leak_nothing() {
    // Short inputs, and inputs of the maximum length.
    inputs::play_all([40, 250], cache::play);
}
