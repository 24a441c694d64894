//! A frontend that says anything, with any files, between any bursts, bounded: seeded inputs for as long as
//! `TELPHER_SOAK_SECONDS` says.
#![cfg(not(loom))]

#[path = "../../../fuzz/control.rs"]
mod control;
#[path = "../../../fuzz/inputs.rs"]
mod inputs;

#[test]
fn whatever_a_frontend_says_the_backend_lives_and_keeps_nothing_of_it() {
    // A few steps, or as many as an input may have.
    inputs::play_all([60, 400], control::play);
}
