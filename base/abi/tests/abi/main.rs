//! The tests of the layouts, one file a subject, in one binary: linking one takes longer than most tests.

#[path = "../../../../ci/skip.rs"]
mod skip;

mod decoding;
mod layout;
mod uapi;
mod value;
