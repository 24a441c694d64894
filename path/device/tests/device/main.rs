//! The tests of devices, one file a subject, in one binary: linking one takes longer than most tests.
#![cfg(not(loom))]

mod auto;
mod counts;
mod fast_path;
mod health;
mod imposed;
mod in_process;
mod inline;
mod lifecycle;
mod model;
mod observer;
mod replica;
