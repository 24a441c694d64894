//! A damaged or hostile file, bounded: seeded inputs for `TELPHER_SOAK_SECONDS`.
#![cfg(not(loom))]

#[path = "../../../fuzz/inputs.rs"]
mod inputs;
#[path = "../../../fuzz/recording.rs"]
mod recording;

#[test]
fn no_file_makes_the_reader_panic_or_invent_entries() {
    // A few changes, or many.
    inputs::play_all([4, 400], recording::play);
}
