//! The only file that names an atomic.

#[cfg(loom)]
pub use loom::sync::atomic::AtomicU64;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::thread::yield_now as pause;
#[cfg(not(loom))]
pub(crate) use std::hint::spin_loop as pause;
#[cfg(not(loom))]
pub use std::sync::atomic::AtomicU64;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{Ordering, fence};
