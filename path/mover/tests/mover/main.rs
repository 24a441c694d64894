//! The mover's tests, one file a subject, in one binary: linking one takes longer than most tests.
#![cfg(not(loom))]

#[path = "../common/mod.rs"]
mod common;

mod array_device;
mod arrays;
mod batches;
mod calls;
mod channels;
mod coalesce;
mod copies;
mod durable;
mod faults_offsets;
mod faults_silent;
mod faults_stopped;
mod learning;
mod lists;
mod model;
mod notifier;
mod ownership;
mod properties;
mod queues;
mod recovery;
mod routes;
mod scopes;
mod split;
mod unwinding;
mod waits;
