//! Signal handlers: a thread-local count that is non-zero while this thread is inside a portal.
//!
//! A handler interrupts its thread anywhere, also while a portal is taking a descriptor, with its locks held and its
//! instructions half done. A copy that begins in the handler must not enter a portal again. Everything else on the path
//! of [`copy_slices`](crate::Mover::copy_slices) (slots, credits, records) is lock-free, so the counted sections are
//! the only ones to avoid.

use crate::sync::same_thread_fence;
use std::cell::Cell;

thread_local! {
    /// Portals entered and not left. Without a destructor and without lazy initialisation, so that a handler may read
    /// it.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// While this value lives, this thread is inside a portal.
#[derive(Debug)]
pub(crate) struct InPortal(());

impl InPortal {
    #[inline]
    pub(crate) fn enter() -> InPortal {
        // Cannot overflow: one for each stack frame that holds a guard.
        DEPTH.with(|depth| depth.set(depth.get() + 1));
        // The count is set before the section it guards. A handler runs on this thread, so only the compiler's order
        // matters.
        same_thread_fence();
        InPortal(())
    }
}

impl Drop for InPortal {
    #[inline]
    fn drop(&mut self) {
        // See `enter`.
        same_thread_fence();
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}

/// Returns true if this code has interrupted a portal on its own thread.
#[inline]
pub(crate) fn is_in_portal() -> bool {
    DEPTH.with(|depth| depth.get() > 0)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_thread_local_and_nests() {
        assert!(!is_in_portal());
        let outer = InPortal::enter();
        drop(InPortal::enter());
        assert!(is_in_portal());
        assert!(!std::thread::spawn(is_in_portal).join().unwrap());
        drop(outer);
        assert!(!is_in_portal());
    }
}
