//! Any calls in any order over a device that misbehaves, bounded: seeded inputs for as long as `TELPHER_SOAK_SECONDS` says.
#![cfg(not(loom))]

#[path = "../../../fuzz/cache.rs"]
mod cache;
#[path = "../../../fuzz/inputs.rs"]
mod inputs;

#[test]
fn whatever_is_called_every_byte_is_the_source_s_and_nothing_is_left_behind() {
    // A few calls, or as many as an input may have.
    inputs::play_all([40, 250], cache::play);
}
