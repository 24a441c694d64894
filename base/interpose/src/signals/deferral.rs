//! Holds back the program's signal handlers while code of ours runs that they must not re-enter.

use crate::kernel::{self, Change};
use crate::thread::Thread;
use std::sync::atomic::{Ordering, compiler_fence};

/// Defers the program's signal handlers on this thread until it is dropped; nests. For code that the program's handlers
/// must not re-enter, such as our code that holds a lock.
#[derive(Debug)]
pub struct Deferral {
    /// Bound to one thread.
    _here: std::marker::PhantomData<*const ()>,
}

/// Creates a [`Deferral`].
#[must_use]
pub fn defer() -> Deferral {
    let inside = &Thread::current().inside;
    // Need not be atomic: a handler in between increments and decrements it again.
    inside.store(inside.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    Deferral { _here: std::marker::PhantomData }
}

impl Drop for Deferral {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let thread = Thread::current();
        // Already zero if a fault in between was the program's: see `deliver`.
        let inside = thread.inside.load(Ordering::Relaxed).saturating_sub(1);
        thread.inside.store(inside, Ordering::Relaxed);
        if inside == 0 && thread.deferred.load(Ordering::Relaxed) != 0 {
            thread.deferred.store(0, Ordering::Relaxed);
            let mask = thread.mask.load(Ordering::Relaxed);
            let blocked = thread.blocked(mask);
            // Deferred signals arrive here.
            kernel::mask(Some((Change::Set, mask)));
            thread.send_kept(blocked);
        }
    }
}
