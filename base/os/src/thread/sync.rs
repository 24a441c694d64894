//! The atomics, the lock and the barriers of the file that loom checks. A loom test includes that file with loom's in
//! this place.

use rustix::thread::{Timespec, nanosleep};

pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
pub(super) use std::sync::{Mutex, MutexGuard, PoisonError};

/// Looks at a flag before a thread sleeps between its looks. Source: chosen.
const LOOKS_BEFORE_SLEEP: u32 = 100;

/// How long it sleeps between two looks. Source: chosen.
const BETWEEN_LOOKS: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };

/// The favored thread's half of the barrier: the compiler keeps the order of the accesses before and after. The
/// processor need not, until another thread calls [`fence_all`].
#[inline]
pub(super) fn fence_favored() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// The other threads' half of the barrier: makes all running threads of the process execute one. False if the system
/// refuses; then there was none.
pub(super) fn fence_all() -> bool {
    // The registration of a parent may not hold for its forked child.
    fence_once() || prepare_fences()
}

/// Prepares [`fence_all`], and executes it once. False if the system has no such barrier, or refuses it.
pub(super) fn prepare_fences() -> bool {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) && fence_once()
}

fn fence_once() -> bool {
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the system call accesses no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Waits a moment before the next look at a flag. It sleeps after some looks: a thread with a real-time priority could
/// otherwise keep the processor from the thread that it waits for. The sleep is a system call of this crate's own:
/// those of the C library are points of cancellation, and a canceled thread would never give back its turn.
pub(super) fn pause(looks: u32) {
    if looks < LOOKS_BEFORE_SLEEP {
        std::thread::yield_now();
    } else {
        // If it is interrupted, the next look comes earlier.
        let _ = nanosleep(&BETWEEN_LOOKS);
    }
}
