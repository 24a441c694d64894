//! The tests of the layouts, one file a subject, in one binary: linking one takes longer than most tests.

#[path = "../../../../ci/skip.rs"]
mod skip;
#[path = "../value/mod.rs"]
mod value;

mod decoding;
mod layout;
mod uapi;
