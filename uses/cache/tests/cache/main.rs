//! The tests of the cache, one file a subject, in one binary: linking one takes longer than most tests.
#![cfg(not(loom))]

#[path = "../../../../path/mover/tests/common/mod.rs"]
mod common;

mod answers;
mod changing;
mod faults;
mod model;
mod shelf;
mod stress;
