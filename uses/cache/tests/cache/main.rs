//! The tests of the cache, one file a subject, in one binary: linking one takes longer than most tests.
#![cfg(not(loom))]

#[path = "../../../../path/mover/tests/common/mod.rs"]
mod common;
#[path = "../shelf/mod.rs"]
mod shelf;

mod answers;
mod changing;
mod faults;
mod model;
mod stress;
