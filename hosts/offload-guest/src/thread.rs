//! What this library keeps for each thread: three words in the thread's static storage.
//!
//! They exist in every thread of the program from its first instruction, and reading them calls nothing. Rust's
//! `thread_local!` would call the dynamic linker, which may allocate.
#![allow(unsafe_code, reason = "defines and reads thread-local storage in assembly")]

use std::arch::{asm, global_asm};
use std::cell::Cell;
use std::mem::offset_of;
use std::sync::atomic::{Ordering, compiler_fence};

// Initial-exec: the offset from the thread pointer is known when the library is loaded with the program.
global_asm!(
    ".section .tbss.telpher_offload, \"awT\", @nobits",
    ".p2align 3",
    ".globl telpher_offload_thread",
    ".hidden telpher_offload_thread",
    ".type telpher_offload_thread, @tls_object",
    "telpher_offload_thread:",
    ".zero 24",
    ".size telpher_offload_thread, 24",
    ".text",
);

/// The words of a thread.
#[repr(C)]
struct Words {
    /// The stack address of the long call that runs, or 0 if none does.
    frame: Cell<usize>,
    /// Ticks that the CPU worked on the current call, if calls are counted by size.
    cpu_ticks: Cell<u64>,
    /// Children of `vfork` that run on this thread's storage, the one that reads it included.
    vforked: Cell<u64>,
}

/// The offset of the third word.
pub(crate) const VFORKED: usize = offset_of!(Words, vforked);

/// Returns the words of this thread.
#[inline]
fn words() -> &'static Words {
    let address: *const Words;
    // SAFETY: reads the thread pointer and the offset of the words, which the dynamic linker has written.
    unsafe {
        asm!(
            "mov {address}, qword ptr [rip + telpher_offload_thread@GOTTPOFF]",
            "add {address}, qword ptr fs:[0]",
            address = out(reg) address,
            options(pure, readonly, nostack),
        );
    }
    // SAFETY: the words live as long as the thread, and a reference to cells stays on its thread.
    unsafe { &*address }
}

/// Ticks that the CPU worked on the current call of this thread.
#[inline]
pub(crate) fn cpu_ticks() -> &'static Cell<u64> {
    &words().cpu_ticks
}

/// Children of `vfork` that run on the storage of this thread.
#[inline]
pub(crate) fn vforked() -> &'static Cell<u64> {
    &words().vforked
}

/// While this value lives, this thread is inside a long call.
#[derive(Debug)]
pub(crate) struct LongCall {
    frame: &'static Cell<usize>,
}

impl LongCall {
    /// Enters; `None` if the thread is in a long call already, because a signal handler or this library's own work
    /// copies.
    ///
    /// A handler may leave a long call by `siglongjmp`. That call's frame is then below the stack pointer of the next
    /// one, and no longer counts. A handler on an alternate stack may be taken for such a case; its call then begins as
    /// if there were no other, which is legal.
    #[inline]
    pub(crate) fn enter() -> Option<LongCall> {
        let mark = 0_u8;
        let here = (&raw const mark).addr();
        let frame = &words().frame;
        if frame.get() > here {
            return None;
        }
        frame.set(here);
        // A signal handler of this thread must see the mark before anything else of the call.
        compiler_fence(Ordering::SeqCst);
        Some(LongCall { frame })
    }
}

impl Drop for LongCall {
    #[inline]
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.frame.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_inside_a_call_is_noticed_and_other_threads_are_not() {
        /// A call from deeper in the stack, as a signal handler makes it.
        #[inline(never)]
        fn inner() -> bool {
            std::hint::black_box(LongCall::enter().is_some())
        }
        let outer = LongCall::enter().expect("the first call");
        assert!(!inner());
        assert!(std::thread::spawn(|| LongCall::enter().is_some()).join().unwrap());
        drop(outer);
        assert!(LongCall::enter().is_some(), "the outer call has ended");
    }

    #[test]
    fn a_call_that_was_left_by_a_jump_no_longer_counts() {
        #[inline(never)]
        fn deeper() {
            let padding = std::hint::black_box([0_u8; 4096]);
            std::mem::forget(LongCall::enter());
            std::hint::black_box(&padding);
        }
        deeper();
        assert!(LongCall::enter().is_some());
    }
}
