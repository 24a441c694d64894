//! The only file that names an atomic.
pub(crate) use std::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
