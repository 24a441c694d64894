//! The locks of what is modelled: tests/loom_desk.rs has others.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
