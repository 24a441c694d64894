//! The only file that names an atomic.
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Returns a number that is unique in this process. Not modelled by loom: only the number itself matters.
pub(crate) fn unique() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    // Relaxed: only the number counts.
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// Keeps the compiler from moving memory accesses across it; enough between a thread and the handlers that interrupt
/// it. Not modelled: loom has no signals.
#[inline]
pub(crate) fn same_thread_fence() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// Returns a number for the calling thread that no other thread got; numbers count up. Not modelled by loom either.
pub(crate) fn thread_number() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    // Relaxed: only the number counts.
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
