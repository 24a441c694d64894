//! Work under way that any thread may advance, and its result, shared by all threads.
//!
//! In the thesis' design one thread submitted and another waited, with a pointer between them that was null, then set,
//! then taken; taken had to be told from null (Fürst, §5.1.3–5.1.4: three deadlocks found and fixed). Here all threads
//! are equal. The work is stored from the start, also before it is submitted. A thread that needs the result *takes a
//! turn*: it gets the work for one step, and leaves either the work for the next thread or the result. A state says
//! which of the two is stored, so there is never nothing stored. The state only moves forward, so no earlier state can
//! be mistaken for a later one.
//!
//! ```text
//!            turn                result
//! UNDER_WAY ──────► BEING_DONE ──────────► DONE
//!      ▲                │ not yet, or a panic
//!      └────────────────┘
//! ```
//!
//! A thread that is stopped in the middle of a step delays the *waiting* threads until it continues, as with any lock.
//! A step is one check of a completion record, or one submission. Threads that check without waiting are not delayed.
#![allow(unsafe_code, reason = "the state says which of two values is stored, and which thread may access it")]

use crate::sync::{AtomicU8, AtomicU32, Ordering, UnsafeCell};
use std::fmt::{self, Debug};
use std::mem::ManuallyDrop;
use std::task::Poll;

/// The work is stored; no thread is advancing it.
const UNDER_WAY: u8 = 0;
/// The work is stored, and one thread has it.
const BEING_DONE: u8 = 1;
/// The result is stored for good, and is only read.
const DONE: u8 = 2;

/// The stored value.
union Contents<W, R> {
    work: ManuallyDrop<W>,
    result: ManuallyDrop<R>,
}

/// Work `W` that becomes a result `R`.
pub(crate) struct SharedCopy<W, R> {
    state: AtomicU8,
    /// For the owner's use, without a meaning here. These and `word` start at zero; they fill what would be padding.
    pub(crate) bytes: [AtomicU8; 2],
    /// Like `bytes`.
    pub(crate) word: AtomicU32,
    place: UnsafeCell<Contents<W, R>>,
}

/// The outcome of asking for a turn.
#[derive(Debug)]
pub(crate) enum Turn<'a, R> {
    /// The result is available.
    Done(&'a R),
    /// This thread had its turn, and the work continues.
    NotYet,
    /// Another thread has the turn.
    Another,
}

// SAFETY: work and result move between threads, hence Send for both.
unsafe impl<W: Send, R: Send> Send for SharedCopy<W, R> {}
// SAFETY: one thread at a time has the work, so Send is enough; many read the result, hence Sync, and any may drop it.
unsafe impl<W: Send, R: Send + Sync> Sync for SharedCopy<W, R> {}

impl<W, R> SharedCopy<W, R> {
    pub(crate) fn new(work: W) -> Self {
        SharedCopy {
            state: AtomicU8::new(UNDER_WAY),
            bytes: [AtomicU8::new(0), AtomicU8::new(0)],
            word: AtomicU32::new(0),
            place: UnsafeCell::new(Contents { work: ManuallyDrop::new(work) }),
        }
    }

    /// Returns the result, if it is available.
    ///
    /// **Staleness**: none may be outdated; a result stays.
    #[inline]
    pub(crate) fn result(&self) -> Option<&R> {
        // Acquire: pairs with the Release in `turn` that published the result.
        (self.state.load(Ordering::Acquire) == DONE)
            .then(|| {
                // SAFETY: DONE says that a result is stored; from then on it is not written before `drop`, which is
                // exclusive.
                self.place.with(|place| unsafe { &(*place).result })
            })
            .map(|result| &**result)
    }

    /// Makes one step in this thread, unless another thread is making one. `step` is not called again after it was
    /// ready.
    pub(crate) fn turn(&self, step: impl FnOnce(&mut W) -> Poll<R>) -> Turn<'_, R> {
        if let Some(result) = self.result() {
            return Turn::Done(result);
        }
        // Acquire: pairs with the Release of `TurnGuard::drop`, so that this thread sees what the last step left.
        // Relaxed on failure, because nothing is read then.
        if self.state.compare_exchange(UNDER_WAY, BEING_DONE, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return self.result().map_or(Turn::Another, Turn::Done);
        }
        /// The turn, given back however it ends; after a panic the work is as the panic left it.
        struct TurnGuard<'a>(&'a AtomicU8, u8);
        impl Drop for TurnGuard<'_> {
            fn drop(&mut self) {
                // Release: pairs with the Acquire of the next turn, and of `result`.
                self.0.store(self.1, Ordering::Release);
            }
        }
        let mut mine = TurnGuard(&self.state, UNDER_WAY);
        let spent = self.place.with_mut(|place| {
            // SAFETY: the state is not DONE, so the work is stored. It is BEING_DONE by this thread, which excludes all
            // others.
            let work = unsafe { &mut *(*place).work };
            let Poll::Ready(result) = step(work) else { return None };
            // SAFETY: as above; the work is taken out, and the value is overwritten before any read, without a panic in
            // between.
            let work = unsafe { ManuallyDrop::take(&mut (*place).work) };
            // SAFETY: this thread has the value; the old content was taken out.
            unsafe { place.write(Contents { result: ManuallyDrop::new(result) }) };
            Some(work)
        });
        if spent.is_some() {
            mine.1 = DONE;
        }
        drop(mine);
        // After the result is published, so that no thread waits for this drop.
        drop(spent);
        self.result().map_or(Turn::NotYet, Turn::Done)
    }
}

impl<W, R> Drop for SharedCopy<W, R> {
    fn drop(&mut self) {
        // Relaxed: exclusive; the drops of all other references have been released.
        let state = self.state.load(Ordering::Relaxed);
        self.place.with_mut(|place| {
            // SAFETY: exclusive, so no thread has a turn; the state says which of the two is stored.
            unsafe {
                match state {
                    DONE => ManuallyDrop::drop(&mut (*place).result),
                    _ => ManuallyDrop::drop(&mut (*place).work),
                }
            }
        });
    }
}

impl<W, R: Debug> Debug for SharedCopy<W, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedCopy").field(&self.result()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn work_and_result_are_each_dropped_once() {
        let (work, result) = (Arc::new(()), Arc::new(()));
        let counts = || (Arc::strong_count(&work) - 1, Arc::strong_count(&result) - 1);
        let shared_copy = SharedCopy::new(Arc::clone(&work));
        assert!(matches!(shared_copy.turn(|_| Poll::Pending), Turn::NotYet));
        assert_eq!((counts(), shared_copy.result()), ((1, 0), None));
        assert!(matches!(shared_copy.turn(|_| Poll::Ready(Arc::clone(&result))), Turn::Done(_)));
        assert_eq!(counts(), (0, 1));
        assert!(matches!(shared_copy.turn(|_| unreachable!("it is done")), Turn::Done(_)));
        drop(shared_copy);
        assert_eq!(counts(), (0, 0));
        drop(SharedCopy::<_, ()>::new(Arc::clone(&work)));
        assert_eq!(counts(), (0, 0));
    }

    #[test]
    fn after_a_panic_in_a_step_other_threads_can_continue() {
        let shared_copy = SharedCopy::new(1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            shared_copy.turn(|work| -> Poll<()> {
                *work = 2;
                panic!("injected by the test")
            });
        }));
        assert!(panicked.is_err());
        assert!(matches!(shared_copy.turn(|work| Poll::Ready(*work == 2).map(|_| ())), Turn::Done(())));
    }

    #[test]
    fn a_thread_that_comes_during_a_step_is_told_so() {
        let shared_copy = SharedCopy::<(), u8>::new(());
        let outer = shared_copy.turn(|()| {
            assert!(matches!(shared_copy.turn(|()| unreachable!("one at a time")), Turn::Another));
            assert_eq!(shared_copy.result(), None);
            Poll::Ready(7)
        });
        assert!(matches!(outer, Turn::Done(7)));
    }
}
