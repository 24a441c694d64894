//! The tests of vhost, one file a subject, in one binary: linking one takes longer than most tests.
#![cfg(not(loom))]

#[path = "../../../../path/mover/tests/common/mod.rs"]
mod common;
#[path = "../frontend/mod.rs"]
mod frontend;

mod client;
mod control;
mod hostile;
mod paths;
mod slow_device;
mod socket;
