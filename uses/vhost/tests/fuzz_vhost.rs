//! A guest that writes anything, between any calls, over a device that misbehaves, bounded: seeded inputs for
//! `TELPHER_SOAK_SECONDS`.
#![cfg(not(loom))]

#[path = "../../../fuzz/inputs.rs"]
mod inputs;
#[path = "../../../fuzz/vhost.rs"]
mod vhost;

#[test]
fn no_guest_input_crashes_the_backend_or_misdirects_writes() {
    // A few steps, or as many as an input may have.
    inputs::play_all([60, 400], vhost::play);
}
