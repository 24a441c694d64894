//! The only file that names an atomic.
pub(crate) use std::sync::atomic::{AtomicU32, Ordering, fence};
