//! The atomics and locks of `src/sync.rs`, from loom.
#![allow(unused_imports, reason = "each test uses a part of it")]

pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use loom::sync::{Mutex, MutexGuard};
pub(crate) use std::sync::PoisonError;
