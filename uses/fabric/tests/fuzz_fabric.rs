//! A peer that writes anything into the memory of a connection, between any calls, bounded: seeded inputs for
//! `TELPHER_SOAK_SECONDS`.
#![cfg(not(loom))]

#[path = "../../../fuzz/fabric.rs"]
mod fabric;
#[path = "../../../fuzz/inputs.rs"]
mod inputs;

#[test]
fn no_write_of_a_peer_crashes_an_end_or_changes_its_limits() {
    // A few steps, or as many as an input may have.
    inputs::play_all([60, 500], fabric::play);
}
