//! Hosts and targets that send anything, bounded: seeded inputs for `TELPHER_SOAK_SECONDS`.
#![allow(clippy::cast_possible_truncation, reason = "numbers of tests are small")]

#[path = "../../../fuzz/inputs.rs"]
mod inputs;
#[path = "../../../fuzz/nvmf.rs"]
mod nvmf;
#[path = "../../../fuzz/nvmf_streams.rs"]
mod nvmf_streams;

#[test]
fn no_host_input_harms_the_target_or_another_host() {
    // A few steps, or as many as an input may have.
    inputs::play_all([60, 400], nvmf::play);
}

#[test]
fn no_changed_session_crashes_a_side_or_damages_data_unnoticed() {
    // A few changes, or as many as an input may have.
    inputs::play_all([3, 30], nvmf_streams::play);
}
