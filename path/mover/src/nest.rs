//! Signal handlers: a mark that says this thread is inside a portal right now.
//!
//! A handler interrupts its thread anywhere, also while a portal is in the middle of taking a descriptor, with its locks held
//! and its instructions half done. A copy that begins there must not enter a portal again. Everything else on the way of
//! [`copy_slices`](crate::Mover::copy_slices) (slots, credits, records) is lock-free, so that the marked stretches are all
//! there is to avoid.

use crate::sync::same_thread_fence;
use std::cell::Cell;

thread_local! {
    /// Portals entered and not left. Without a destructor and without lazy initialisation, so that a handler may look.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// This thread is inside a portal as long as it lives.
#[derive(Debug)]
pub(crate) struct Inside(());

impl Inside {
    #[inline]
    pub(crate) fn enter() -> Inside {
        // Cannot overflow: one for each stack frame that holds one.
        DEPTH.with(|depth| depth.set(depth.get() + 1));
        // The mark before what it guards; a handler runs on this thread, so the compiler's order is all that matters.
        same_thread_fence();
        Inside(())
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        // See `enter`.
        same_thread_fence();
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}

/// True if this code has interrupted a portal on its own thread.
#[inline]
pub(crate) fn is_inside() -> bool {
    DEPTH.with(|depth| depth.get() > 0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_the_threads_own_and_nests() {
        assert!(!is_inside());
        let outer = Inside::enter();
        drop(Inside::enter());
        assert!(is_inside());
        assert!(!std::thread::spawn(is_inside).join().unwrap());
        drop(outer);
        assert!(!is_inside());
    }
}
