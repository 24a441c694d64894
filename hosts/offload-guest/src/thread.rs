//! What this library keeps for each thread: words in the thread's static storage.
//!
//! They exist in every thread of the program from its first instruction, and reading them calls nothing. Rust's
//! `thread_local!` would call the dynamic linker, which may allocate.
#![allow(unsafe_code, reason = "defines and reads thread-local storage in assembly")]

use std::cell::Cell;
use std::sync::atomic::{Ordering, compiler_fence};

/// Defines a word of each thread and the function that returns it. In a new thread it is zero, or the address of the
/// static variable that is given.
macro_rules! thread_word {
    ($(#[$doc:meta])* $name:ident: $type:ty) => {
        thread_word!($(#[$doc])* $name: $type, ".tbss", "@nobits", ".zero 8",);
    };
    ($(#[$doc:meta])* $name:ident: $type:ty = $initial:path) => {
        // The dynamic linker writes the address into the storage that it copies for each thread.
        thread_word!($(#[$doc])* $name: $type, ".tdata", "@progbits", ".quad {initial}", initial = sym $initial);
    };
    ($(#[$doc:meta])* $name:ident: $type:ty, $section:literal, $kind:literal, $value:literal, $($symbol:tt)*) => {
        const _: () = assert!(size_of::<$type>() == 8);

        // Initial-exec: the offset from the thread pointer is known when the library is loaded with the program.
        std::arch::global_asm!(
            concat!(".section ", $section, ".", stringify!($name), ", \"awT\", ", $kind),
            ".p2align 3",
            concat!(".globl ", stringify!($name)),
            concat!(".hidden ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @tls_object"),
            concat!(stringify!($name), ":"),
            $value,
            concat!(".size ", stringify!($name), ", 8"),
            ".text",
            $($symbol)*
        );

        $(#[$doc])*
        #[inline]
        fn $name() -> &'static std::cell::Cell<$type> {
            let address: *const std::cell::Cell<$type>;
            // SAFETY: reads the thread pointer and the offset of the word, which the dynamic linker has written.
            unsafe {
                std::arch::asm!(
                    concat!("mov {address}, qword ptr [rip + ", stringify!($name), "@GOTTPOFF]"),
                    "add {address}, qword ptr fs:[0]",
                    address = out(reg) address,
                    options(pure, readonly, nostack),
                );
            }
            // SAFETY: the word lives as long as the thread, and a reference to a cell stays on its thread.
            unsafe { &*address }
        }
    };
}
pub(crate) use thread_word;

thread_word!(
    /// Returns the word of this thread: the stack address of the long call that runs, or 0 if none does.
    telpher_offload_frame: usize
);

thread_word!(
    /// Returns the word of this thread: the children of `vfork` that run on its storage, the one that reads it
    /// included.
    telpher_offload_vforked: u64
);

/// Children of `vfork` that run on the storage of this thread.
#[inline]
pub(crate) fn vforked() -> &'static Cell<u64> {
    telpher_offload_vforked()
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
        if LongCall::surrounds(here) {
            return None;
        }
        let frame = telpher_offload_frame();
        frame.set(here);
        // A signal handler of this thread must see the mark before anything else of the call.
        compiler_fence(Ordering::SeqCst);
        Some(LongCall { frame })
    }

    /// Returns whether the thread is in a long call already.
    #[inline]
    pub(crate) fn is_inside() -> bool {
        let mark = 0_u8;
        LongCall::surrounds((&raw const mark).addr())
    }

    /// Returns whether a long call has called the function that has a variable at this address.
    #[inline]
    fn surrounds(here: usize) -> bool {
        telpher_offload_frame().get() > here
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
