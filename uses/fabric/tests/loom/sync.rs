//! The atomics of `src/sync.rs`, from loom.
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
