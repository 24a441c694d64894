//! The locks of the code that loom models; tests/loom_requests.rs replaces them.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
