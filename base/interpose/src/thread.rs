//! The state of one thread, reachable in any signal handler.
//!
//! Rust's thread-locals in a shared library go through `__tls_get_addr`, which may allocate in the middle of a signal
//! after a `dlopen`. So assembly declares the block with the initial-exec model: one load from the GOT and an addition.
//! A library loaded at the start (`LD_PRELOAD`) or an executable may use this model; a library loaded later takes space
//! from the C library's small reserve.
#![allow(unsafe_code, reason = "a thread-local block that assembly reaches too")]

use crate::decode::{Instruction, Segment};
use crate::fault::Fault;
use crate::kernel::{self, Errno};
use crate::signals::{PROTECTED, PROTECTED_SIGNALS, bit};
use std::arch::{asm, global_asm};
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

/// A signal of the C library itself (32, which cancels threads), which a program can block only by a handler's mask. We
/// block it together with the protected signals that a program's handler blocks. If the program then leaves the handler
/// by a jump (`siglongjmp`, `setcontext`) that restores the mask, the missing mark shows that these signals are no
/// longer blocked either.
pub(crate) const MARK: u64 = 1 << 31;

/// Flag in `blocked_by_handler`: a handler was entered with the mark, even if it has unblocked everything. (The bit of
/// SIGKILL, which cannot be blocked.)
const IN_USE: u64 = bit(libc::SIGKILL);

/// A cache line armed by UMONITOR.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Monitor {
    /// Start of the watched 64-byte line.
    pub address: u64,
    /// Its contents when it was armed; other contents end the wait.
    pub line: [u64; 8],
}

/// An instruction that trapped and is emulated as soon as the signal handler has returned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trapped {
    pub(crate) instruction: Instruction,
    /// Its address.
    pub(crate) site: u64,
    /// The data of a [`Store64`](crate::decode::Operation::Store64).
    pub(crate) data: [u64; 8],
}

/// Returns the base address of a segment.
pub(crate) fn segment_base(segment: Segment) -> u64 {
    match segment {
        Segment::Fs => Thread::fs_base(),
        Segment::Gs => kernel::gs_base(),
        Segment::Flat | Segment::Stack => 0,
    }
}

/// One thread's state. A new thread's state is all zero. Where signals are not blocked, a signal handler of this very
/// thread may change any of it. The atomics serve only that, so `Relaxed` and a compiler fence are enough.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Thread {
    /// Emulations and deferrals in progress; while not zero, the program's handlers are deferred. Assembly counts it,
    /// too.
    pub(crate) inside: AtomicU32,
    /// Not zero: a signal was deferred, all signals are blocked, and `mask` is the mask to restore.
    pub(crate) deferred: AtomicU32,
    /// The alternate stack on which a handler of the program ran last: start and length.
    pub(crate) alternate: [AtomicUsize; 2],
    /// The address at which the program continues after the emulated instruction.
    pub(crate) resume: AtomicU64,
    /// See `deferred`.
    pub(crate) mask: AtomicU64,
    /// Protected signals that the program believes it has blocked, outside of handlers.
    blocked: AtomicU64,
    /// The same while the kernel's mask has [`MARK`].
    blocked_by_handler: AtomicU64,
    /// Protected signals that were sent and wait for the program to unblock them, or for the emulation to end.
    sent: AtomicU64,
    sent_infos: UnsafeCell<[MaybeUninit<libc::siginfo_t>; 3]>,
    /// The emulation ended with `fault`.
    pub(crate) faulted: Cell<bool>,
    /// The last fault of the guarded accesses.
    pub(crate) fault: UnsafeCell<MaybeUninit<Fault>>,
    /// True if `trapped` is set: the trap handler sets it, the emulation takes it.
    has_trapped: Cell<bool>,
    trapped: UnsafeCell<MaybeUninit<Trapped>>,
    /// True if the emulated instruction trapped; false for a rewritten site.
    pub(crate) by_trap: Cell<bool>,
    /// `monitor` was armed by UMONITOR.
    armed: Cell<bool>,
    monitor: Cell<Monitor>,
}

global_asm!(
    r#"
    .section .tbss.telpher_interpose_thread,"awT",@nobits
    .p2align 6
    .globl telpher_interpose_thread
    .hidden telpher_interpose_thread
    .type telpher_interpose_thread, @tls_object
    telpher_interpose_thread:
    .zero {size}
    .size telpher_interpose_thread, {size}
    .text
    "#,
    size = const size_of::<Thread>(),
);

const _: () = assert!(align_of::<Thread>() <= 64);

impl Thread {
    /// Returns this thread's state. It must not outlive the thread; it cannot be sent to another thread.
    #[inline]
    pub(crate) fn current() -> &'static Thread {
        let thread: *const Thread;
        // SAFETY: the C library keeps the thread pointer at fs:0. The block is zero when the thread starts, which is a
        // valid `Thread`: numbers, false flags, and cells that are read only after a flag or count was set. Only this
        // thread makes references to it.
        unsafe {
            asm!(
                "mov {0}, qword ptr fs:[0]",
                "add {0}, qword ptr [rip + telpher_interpose_thread@GOTTPOFF]",
                out(reg) thread, options(pure, readonly, nostack),
            );
            &*thread
        }
    }

    /// Returns the base of FS.
    pub(crate) fn fs_base() -> u64 {
        let base: u64;
        // SAFETY: reads the thread pointer at the address that the ABI defines.
        unsafe { asm!("mov {0}, qword ptr fs:[0]", out(reg) base, options(pure, readonly, nostack, preserves_flags)) };
        base
    }

    /// True while the program's handlers are deferred.
    pub(crate) fn is_inside(&self) -> bool {
        self.inside.load(Ordering::Relaxed) != 0
    }

    /// Returns the protected signals that the program believes it has blocked when the kernel's mask is `mask`;
    /// includes [`MARK`] if a handler's mask set it.
    pub(crate) fn blocked(&self, mask: u64) -> u64 {
        let blocked = if mask & MARK == 0 { &self.blocked } else { &self.blocked_by_handler };
        blocked.load(Ordering::Relaxed) & (PROTECTED | MARK)
    }

    /// Sets the result of [`blocked`](Self::blocked).
    pub(crate) fn set_blocked(&self, mask: u64, blocked: u64) {
        if mask & MARK == 0 {
            self.blocked.store(blocked & PROTECTED, Ordering::Relaxed);
            self.blocked_by_handler.store(0, Ordering::Relaxed);
        } else {
            self.blocked_by_handler.store(blocked & (PROTECTED | MARK) | IN_USE, Ordering::Relaxed);
        }
    }

    /// True if the kernel's mask may contain [`MARK`].
    pub(crate) fn may_be_marked(&self) -> bool {
        self.blocked_by_handler.load(Ordering::Relaxed) != 0
    }

    /// Stores an instruction for the emulation.
    pub(crate) fn set_trapped(&self, trapped: Trapped) {
        // SAFETY: no reference to it exists.
        unsafe { (*self.trapped.get()).write(trapped) };
        self.has_trapped.set(true);
    }

    /// Takes the instruction that a trap handler stored.
    pub(crate) fn take_trapped(&self) -> Option<Trapped> {
        // SAFETY: it was written before the flag was set.
        self.has_trapped.replace(false).then(|| unsafe { (*self.trapped.get()).assume_init() })
    }

    /// Arms the monitor (UMONITOR).
    pub(crate) fn arm(&self, monitor: Monitor) {
        self.monitor.set(monitor);
        self.armed.set(true);
    }

    /// Disarms and returns the armed line.
    pub(crate) fn disarm(&self) -> Option<Monitor> {
        self.armed.replace(false).then(|| self.monitor.get())
    }

    /// Keeps a protected signal that was sent; a second signal of the same number is lost, as in the kernel.
    pub(crate) fn keep_sent(&self, signal: i32, info: &libc::siginfo_t) {
        let bit = bit(signal);
        if self.sent.load(Ordering::Relaxed) & bit == 0 {
            // SAFETY: one thread; handlers that could interrupt this are blocked or find the bit still clear.
            unsafe { (*self.sent_infos.get())[slot(signal)].write(*info) };
            compiler_fence(Ordering::Release);
            self.sent.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Returns the protected signals that were sent and not delivered.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Drops a kept signal.
    pub(crate) fn drop_sent(&self, signal: i32) {
        self.sent.fetch_and(!bit(signal), Ordering::Relaxed);
    }

    /// In the child of a fork: drops the signals that were kept for the parent.
    pub(crate) fn forget_sent(&self) {
        self.sent.store(0, Ordering::Relaxed);
    }

    /// Sends one kept signal that is not in `blocked` again. The next follows when this one has been delivered, since
    /// they do not block one another. It arrives at once unless the kernel's mask blocks it.
    pub(crate) fn send_kept(&self, blocked: u64) {
        let due = |signal: &i32| self.sent() & bit(*signal) & !blocked != 0;
        if let Some(signal) = PROTECTED_SIGNALS.into_iter().find(due) {
            // SAFETY: the bit shows that it was written; the copy is made before another can be kept.
            let info = unsafe { (*self.sent_infos.get())[slot(signal)].assume_init() };
            self.drop_sent(signal);
            let _: Result<(), Errno> = kernel::send_again(signal, &info);
        }
    }
}

/// Returns the index of a protected signal.
fn slot(signal: i32) -> usize {
    match signal {
        libc::SIGILL => 0,
        libc::SIGBUS => 1,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_thread_is_all_zero_with_nothing_in_progress() {
        std::thread::spawn(|| {
            let thread = Thread::current();
            assert!(!thread.is_inside() && thread.take_trapped().is_none() && thread.disarm().is_none());
            assert_eq!(
                (thread.blocked(0), thread.blocked(MARK), thread.sent(), thread.faulted.get()),
                (0, 0, 0, false)
            );
        })
        .join()
        .unwrap();
    }
}
