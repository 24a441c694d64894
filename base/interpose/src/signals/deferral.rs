//! Holds back the program's signal handlers while code of ours runs that they must not re-enter.

use crate::joined::is_joined;
use crate::kernel::{self, ALL, Change};
use crate::thread::{MARK, Thread};
use std::sync::atomic::{Ordering, compiler_fence};

/// Defers the program's signal handlers on this thread until it is dropped; nests. For code that the program's handlers
/// must not re-enter, such as our code that holds a lock.
///
/// In a library that has [joined](crate::join) another one, all signals are blocked meanwhile, because their handlers
/// are not this library's.
#[derive(Debug)]
pub struct Deferral {
    /// False for a deferral within another one that has blocked the signals.
    ends: bool,
    /// Bound to one thread.
    _here: std::marker::PhantomData<*const ()>,
}

/// Creates a [`Deferral`].
#[must_use]
pub fn defer() -> Deferral {
    let thread = Thread::current();
    let ends = if is_joined() {
        let ends = thread.deferred.load(Ordering::Relaxed) == 0;
        if ends {
            block(thread);
        }
        ends
    } else {
        // Need not be atomic: a handler in between increments and decrements it again.
        thread.inside.store(thread.inside.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        true
    };
    compiler_fence(Ordering::SeqCst);
    Deferral { ends, _here: std::marker::PhantomData }
}

impl Deferral {
    /// Lets the deferral go on without its value, for code that may have nothing to drop. The result is for
    /// [`take_over`](Deferral::take_over).
    #[must_use]
    pub fn leave_open(self) -> bool {
        let ends = self.ends;
        std::mem::forget(self);
        ends
    }

    /// Takes over a deferral of this thread that was left open.
    #[must_use]
    pub fn take_over(ends: bool) -> Deferral {
        Deferral { ends, _here: std::marker::PhantomData }
    }
}

/// Ends all deferrals of this thread, whose values will never be dropped: the C library unwinds the thread, because it
/// has been cancelled. Does nothing if none goes on.
pub fn end_deferrals() {
    let thread = Thread::current();
    if is_joined() {
        if thread.deferred.load(Ordering::Relaxed) != 0 {
            unblock(thread);
        }
    } else {
        thread.inside.store(0, Ordering::Relaxed);
        deliver_deferred(thread);
    }
}

/// Lets the C library's signal of pthread_cancel arrive within a deferral that blocks signals. The thread has disabled
/// cancellation, so the signal's handler only notes it. Without that note, functions that are cancellation points wait
/// for it (glibc 2.36, `__pthread_disable_asynccancel`).
pub fn note_cancellations() {
    let before = Thread::current().mask.load(Ordering::Relaxed);
    // The mark is the bit of this signal. Where it is set, the thread had the signal blocked before, too.
    if is_joined() && before & MARK == 0 {
        kernel::mask(Some((Change::Unblock, MARK)));
    }
}

/// Blocks all signals of the thread, and notes it.
fn block(thread: &Thread) {
    let mask = kernel::mask(Some((Change::Block, ALL)));
    thread.mask.store(mask, Ordering::Relaxed);
    thread.deferred.store(1, Ordering::Relaxed);
}

/// Restores the mask of before `block`.
fn unblock(thread: &Thread) {
    thread.deferred.store(0, Ordering::Relaxed);
    kernel::mask(Some((Change::Set, thread.mask.load(Ordering::Relaxed))));
}

impl Drop for Deferral {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        let thread = Thread::current();
        if is_joined() {
            if self.ends {
                unblock(thread);
            }
            return;
        }
        // Already zero if a fault in between was the program's: see `deliver`.
        let inside = thread.inside.load(Ordering::Relaxed).saturating_sub(1);
        thread.inside.store(inside, Ordering::Relaxed);
        if inside == 0 {
            deliver_deferred(thread);
        }
    }
}

/// Lets the signals arrive that were deferred. Their handlers may leave this function for good.
fn deliver_deferred(thread: &Thread) {
    if thread.deferred.load(Ordering::Relaxed) != 0 {
        thread.deferred.store(0, Ordering::Relaxed);
        let mask = thread.mask.load(Ordering::Relaxed);
        let blocked = thread.blocked(mask);
        kernel::mask(Some((Change::Set, mask)));
        thread.send_kept(blocked);
    }
}
