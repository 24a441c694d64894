//! Something under way that any thread may further, and what came of it, for all.
//!
//! The thesis' design had one thread submit and another wait, with a pointer between them that was null, then set, then taken, and
//! had to be told from null before (Fürst, §5.1.3–5.1.4: three deadlocks found and mended). Here nobody is special. What is under
//! way lies in the effort from the start, also before it was submitted; whoever wants the result *takes a turn*: it gets the work
//! for one step, and leaves it for the next thread, or leaves the result. A state says which of the two lies there, so nothing is ever
//! absent, and it only goes forward, so nothing can be mistaken for what was there before.
//!
//! ```text
//!            turn                result
//! UNDER_WAY ──────► BEING_DONE ──────────► DONE
//!      ▲                │ not yet, or a panic
//!      └────────────────┘
//! ```
//!
//! A thread that is stopped in the middle of a step holds up those who *wait* until it goes on, as with any lock; a step is one look
//! at a completion record, or one submission. Nobody who looks without waiting is held up.
#![allow(unsafe_code, reason = "the state says which of two values lies in one place, and who may touch it")]

use crate::sync::{AtomicU8, AtomicU32, Ordering, UnsafeCell};
use std::fmt::{self, Debug};
use std::mem::ManuallyDrop;
use std::task::Poll;

/// The work lies there; nobody furthers it at the moment.
const UNDER_WAY: u8 = 0;
/// The work lies there, and one thread has it.
const BEING_DONE: u8 = 1;
/// The result lies there, for ever, and is only read.
const DONE: u8 = 2;

/// What lies there.
union Place<W, R> {
    work: ManuallyDrop<W>,
    result: ManuallyDrop<R>,
}

/// Work `W` that becomes a result `R`.
pub(crate) struct Effort<W, R> {
    state: AtomicU8,
    /// Its owner's, which mean nothing here; they and `word` begin at zero, and lie where the state would leave a gap before the place.
    pub(crate) bytes: [AtomicU8; 2],
    /// As `bytes`.
    pub(crate) word: AtomicU32,
    place: UnsafeCell<Place<W, R>>,
}

/// What became of asking for a turn.
#[derive(Debug)]
pub(crate) enum Turn<'a, R> {
    /// The result is there.
    Done(&'a R),
    /// This thread had its turn, and the work goes on.
    NotYet,
    /// Another thread has it.
    Another,
}

// SAFETY: work and result are handed from thread to thread, hence Send of both.
unsafe impl<W: Send, R: Send> Send for Effort<W, R> {}
// SAFETY: the work is with one thread at a time, hence Send is enough; the result is read by many, hence Sync, and dropped by any.
unsafe impl<W: Send, R: Send + Sync> Sync for Effort<W, R> {}

impl<W, R> Effort<W, R> {
    pub(crate) fn new(work: W) -> Self {
        Effort {
            state: AtomicU8::new(UNDER_WAY),
            bytes: [AtomicU8::new(0), AtomicU8::new(0)],
            word: AtomicU32::new(0),
            place: UnsafeCell::new(Place { work: ManuallyDrop::new(work) }),
        }
    }

    /// The result, if it is there.
    ///
    /// **Staleness**: nothing may be old; a result stays.
    #[inline]
    pub(crate) fn result(&self) -> Option<&R> {
        // Acquire: pairs with the Release in `turn` that published the result.
        (self.state.load(Ordering::Acquire) == DONE)
            .then(|| {
                // SAFETY: DONE says that a result lies there; from then on nobody writes the place before `drop`, which is exclusive.
                self.place.with(|place| unsafe { &(*place).result })
            })
            .map(|result| &**result)
    }

    /// One step by this thread, unless another is at it. `step` is not called again once it was ready.
    pub(crate) fn turn(&self, step: impl FnOnce(&mut W) -> Poll<R>) -> Turn<'_, R> {
        if let Some(result) = self.result() {
            return Turn::Done(result);
        }
        // Acquire: pairs with the Release of `Mine::drop`, so that this thread sees what the last step left. Relaxed if it fails:
        // nothing is read then.
        if self.state.compare_exchange(UNDER_WAY, BEING_DONE, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return self.result().map_or(Turn::Another, Turn::Done);
        }
        /// The turn: given back however it ends, also by a panic, after which the work is as the panic left it.
        struct Mine<'a>(&'a AtomicU8, u8);
        impl Drop for Mine<'_> {
            fn drop(&mut self) {
                // Release: pairs with the Acquire of the next turn, and of `result`.
                self.0.store(self.1, Ordering::Release);
            }
        }
        let mut mine = Mine(&self.state, UNDER_WAY);
        let spent = self.place.with_mut(|place| {
            // SAFETY: not DONE, so it is the work that lies there, and the state is BEING_DONE by this thread, which no other
            // thread passes.
            let work = unsafe { &mut *(*place).work };
            let Poll::Ready(result) = step(work) else { return None };
            // SAFETY: as above; the work is taken out, and the place is written before anybody reads it, without a panic between.
            let work = unsafe { ManuallyDrop::take(&mut (*place).work) };
            // SAFETY: the place is this thread's; what lay there was taken out.
            unsafe { place.write(Place { result: ManuallyDrop::new(result) }) };
            Some(work)
        });
        if spent.is_some() {
            mine.1 = DONE;
        }
        drop(mine);
        // After the result is there for all: what dropping it does is nobody's wait.
        drop(spent);
        self.result().map_or(Turn::NotYet, Turn::Done)
    }
}

impl<W, R> Drop for Effort<W, R> {
    fn drop(&mut self) {
        // Relaxed: exclusive, and whoever dropped the last reference but this one has released it.
        let state = self.state.load(Ordering::Relaxed);
        self.place.with_mut(|place| {
            // SAFETY: exclusive, so nobody has a turn; the state says which of the two lies there.
            unsafe {
                match state {
                    DONE => ManuallyDrop::drop(&mut (*place).result),
                    _ => ManuallyDrop::drop(&mut (*place).work),
                }
            }
        });
    }
}

impl<W, R: Debug> Debug for Effort<W, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Effort").field(&self.result()).finish()
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
        let effort = Effort::new(Arc::clone(&work));
        assert!(matches!(effort.turn(|_| Poll::Pending), Turn::NotYet));
        assert_eq!((counts(), effort.result()), ((1, 0), None));
        assert!(matches!(effort.turn(|_| Poll::Ready(Arc::clone(&result))), Turn::Done(_)));
        assert_eq!(counts(), (0, 1));
        assert!(matches!(effort.turn(|_| unreachable!("it is done")), Turn::Done(_)));
        drop(effort);
        assert_eq!(counts(), (0, 0));
        drop(Effort::<_, ()>::new(Arc::clone(&work)));
        assert_eq!(counts(), (0, 0));
    }

    #[test]
    fn a_panic_in_a_step_leaves_the_work_to_others() {
        let effort = Effort::new(1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            effort.turn(|work| -> Poll<()> {
                *work = 2;
                panic!("as the test wants it")
            });
        }));
        assert!(panicked.is_err());
        assert!(matches!(effort.turn(|work| Poll::Ready(*work == 2).map(|_| ())), Turn::Done(())));
    }

    #[test]
    fn who_comes_in_the_middle_of_a_step_is_told_so() {
        let effort = Effort::<(), u8>::new(());
        let outer = effort.turn(|()| {
            assert!(matches!(effort.turn(|()| unreachable!("one at a time")), Turn::Another));
            assert_eq!(effort.result(), None);
            Poll::Ready(7)
        });
        assert!(matches!(outer, Turn::Done(7)));
    }
}
