//! What belongs to one thread, reachable in any signal handler.
//!
//! Rust's thread-locals in a shared library go through `__tls_get_addr`, which may allocate in the middle of a signal after
//! a `dlopen`. So the block is declared in assembly with the initial-exec model: one load from the GOT and an addition. A
//! library that is there from the start (`LD_PRELOAD`) or an executable may use it; one loaded later takes of the C
//! library's small reserve.
#![allow(unsafe_code, reason = "a thread-local block that assembly reaches too")]

use crate::decode::Instruction;
use crate::guarded::Fault;
use crate::handler::Monitor;
use crate::kernel::{self, Errno};
use crate::signals::{PROTECTED, PROTECTED_SIGNALS, bit};
use std::arch::{asm, global_asm};
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence};

/// A signal of the C library's own (32, which cancels threads), which no program can block but by a handler's mask. We block it
/// with the protected signals that a handler of the program blocks, so that whoever leaves the handler by a jump
/// (`siglongjmp`, `setcontext`) and restores the mask, tells us that these are no longer blocked either.
pub(crate) const MARK: u64 = 1 << 31;

/// In `blocked_by_handler`: a handler has been entered with the mark, even if it has unblocked everything. (The bit of
/// SIGKILL, which nobody blocks.)
const IN_USE: u64 = bit(libc::SIGKILL);

/// An instruction that trapped and is to be emulated as soon as the signal handler has returned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trapped {
    pub(crate) instruction: Instruction,
    /// Where it is.
    pub(crate) site: u64,
    /// What a [`Store64`](crate::decode::Operation::Store64) stores.
    pub(crate) data: [u64; 8],
}

/// One thread's state. All-zero is the state of a new thread. Everything may be changed by a signal handler of this very thread
/// wherever signals are not blocked; atomics are for that alone, so `Relaxed` and a compiler fence are enough.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Thread {
    /// Emulations and deferrals under way; while not zero, the program's handlers are put off. Assembly counts it too.
    pub(crate) inside: AtomicU32,
    /// Not zero: a signal has been put off, all are blocked, and `mask` is what the kernel's mask is to be again.
    pub(crate) deferred: AtomicU32,
    /// The alternate stack on which a handler of the program ran last: start and length.
    pub(crate) alternate: [AtomicUsize; 2],
    /// Where the program goes on after the instruction that is emulated.
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
    /// What the guarded accesses ran into last.
    pub(crate) fault: UnsafeCell<MaybeUninit<Fault>>,
    /// `trapped` is there: set by the trap handler, taken by the emulation.
    has_trapped: Cell<bool>,
    trapped: UnsafeCell<MaybeUninit<Trapped>>,
    /// What is emulated came by a trap, not by a rewritten site.
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
    /// This thread's. Not to be kept by anybody who outlives the thread; it cannot be sent to another.
    #[inline]
    pub(crate) fn current() -> &'static Thread {
        let thread: *const Thread;
        // SAFETY: the C library keeps the thread pointer at fs:0. The block is zero when the thread starts, which is a
        // valid `Thread`: numbers, flags that are false, and cells that are read only after a flag or count says so. Only
        // this thread makes references to it.
        unsafe {
            asm!(
                "mov {0}, qword ptr fs:[0]",
                "add {0}, qword ptr [rip + telpher_interpose_thread@GOTTPOFF]",
                out(reg) thread, options(pure, readonly, nostack),
            );
            &*thread
        }
    }

    /// The base of FS.
    pub(crate) fn fs_base() -> u64 {
        let base: u64;
        // SAFETY: reads the thread pointer where the ABI keeps it.
        unsafe { asm!("mov {0}, qword ptr fs:[0]", out(reg) base, options(pure, readonly, nostack, preserves_flags)) };
        base
    }

    /// True while the program's handlers are put off.
    pub(crate) fn is_inside(&self) -> bool {
        self.inside.load(Ordering::Relaxed) != 0
    }

    /// Protected signals that the program believes it has blocked, where the kernel's mask is `mask`; and [`MARK`], if that
    /// is one that a handler asked for.
    pub(crate) fn blocked(&self, mask: u64) -> u64 {
        let blocked = if mask & MARK == 0 { &self.blocked } else { &self.blocked_by_handler };
        blocked.load(Ordering::Relaxed) & (PROTECTED | MARK)
    }

    /// Replaces what [`blocked`](Self::blocked) says.
    pub(crate) fn set_blocked(&self, mask: u64, blocked: u64) {
        if mask & MARK == 0 {
            self.blocked.store(blocked & PROTECTED, Ordering::Relaxed);
            self.blocked_by_handler.store(0, Ordering::Relaxed);
        } else {
            self.blocked_by_handler.store(blocked & (PROTECTED | MARK) | IN_USE, Ordering::Relaxed);
        }
    }

    /// True if the kernel's mask may have [`MARK`].
    pub(crate) fn may_be_marked(&self) -> bool {
        self.blocked_by_handler.load(Ordering::Relaxed) != 0
    }

    /// Leaves an instruction for the emulation.
    pub(crate) fn set_trapped(&self, trapped: Trapped) {
        // SAFETY: no reference to it is kept.
        unsafe { (*self.trapped.get()).write(trapped) };
        self.has_trapped.set(true);
    }

    /// The instruction that a trap handler left.
    pub(crate) fn take_trapped(&self) -> Option<Trapped> {
        // SAFETY: it was written before the flag was set.
        self.has_trapped.replace(false).then(|| unsafe { (*self.trapped.get()).assume_init() })
    }

    /// UMONITOR.
    pub(crate) fn arm(&self, monitor: Monitor) {
        self.monitor.set(monitor);
        self.armed.set(true);
    }

    /// The line that is armed, which it then no longer is.
    pub(crate) fn disarm(&self) -> Option<Monitor> {
        self.armed.replace(false).then(|| self.monitor.get())
    }

    /// Keeps a protected signal that was sent; a second one of the same number is lost, as in the kernel.
    pub(crate) fn keep_sent(&self, signal: i32, info: &libc::siginfo_t) {
        let bit = bit(signal);
        if self.sent.load(Ordering::Relaxed) & bit == 0 {
            // SAFETY: one thread; handlers that could come in between are blocked or find the bit still clear.
            unsafe { (*self.sent_infos.get())[slot(signal)].write(*info) };
            compiler_fence(Ordering::Release);
            self.sent.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Protected signals that were sent and not delivered.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Forgets one that was kept.
    pub(crate) fn drop_sent(&self, signal: i32) {
        self.sent.fetch_and(!bit(signal), Ordering::Relaxed);
    }

    /// In the child of a fork: what waited for the parent does not wait for it.
    pub(crate) fn forget_sent(&self) {
        self.sent.store(0, Ordering::Relaxed);
    }

    /// Sends one of those that were kept and are not in `blocked` once more; the next follows when it has been delivered, since
    /// they do not block one another. It arrives at once unless the kernel's mask has it.
    pub(crate) fn send_kept(&self, blocked: u64) {
        let due = |signal: &i32| self.sent() & bit(*signal) & !blocked != 0;
        if let Some(signal) = PROTECTED_SIGNALS.into_iter().find(due) {
            // SAFETY: the bit says that it was written; the copy is made before another can be kept.
            let info = unsafe { (*self.sent_infos.get())[slot(signal)].assume_init() };
            self.drop_sent(signal);
            let _: Result<(), Errno> = kernel::send_again(signal, &info);
        }
    }
}

/// Index of a protected signal.
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
    fn a_new_thread_is_all_zero_and_nothing_is_under_way() {
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
