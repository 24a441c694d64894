//! The atomics of the files that loom checks. A loom test includes those files with loom's atomics in this place.
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
