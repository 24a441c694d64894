//! A frontend that sends anything, with any files, between any bursts, bounded: seeded inputs for
//! `TELPHER_SOAK_SECONDS`.
#![cfg(not(loom))]

#[path = "../../../fuzz/control.rs"]
mod control;
#[path = "../../../fuzz/inputs.rs"]
mod inputs;

#[test]
fn no_frontend_input_crashes_the_backend_or_leaks() {
    // A few steps, or as many as an input may have.
    inputs::play_all([60, 400], control::play);
}
