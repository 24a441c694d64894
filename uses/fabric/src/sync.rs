//! The atomics and locks of the files that loom checks. A loom test includes those files with loom's in this place.
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError};
