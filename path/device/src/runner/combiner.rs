//! A lock with a bounded wait. A thread that does not get it leaves its work to the holder, which checks for such work
//! before it finishes.
//!
//! A thread that leaves work increments a counter and tries once more. The holder compares the counter after it has
//! released the lock. With a sequentially consistent fence on either side, at least one of them sees the other. So work
//! that was submitted before is never left undone.

use crate::sync::{AtomicU32, Ordering, TryLock, fence, yield_now};

/// Tries before a waiting thread yields its core between tries. Source: chosen; about a microsecond, a short copy.
const SPINS: u32 = 64;

/// A value that one thread at a time works on, for itself and for threads that left work meanwhile.
#[derive(Debug)]
pub(crate) struct Combiner<T> {
    /// The value, and the counter up to which the left work has been done.
    inner: TryLock<(T, u32)>,
    /// How often a thread found the lock taken.
    left: AtomicU32,
}

impl<T> Combiner<T> {
    pub(crate) fn new(inner: T) -> Self {
        Combiner { inner: TryLock::new((inner, 0)), left: AtomicU32::new(0) }
    }

    /// Calls `act` with the lock; its second argument is true if other threads may have left work. If the lock stays
    /// taken for `tries` more tries, the caller's work is left to the holder. `act` returns whether to continue.
    ///
    /// The wait is bounded, so that a thread that waits for itself continues: in a signal handler, or in a forked child
    /// in which the holder does not exist.
    #[inline]
    pub(crate) fn run(&self, tries: u32, mut act: impl FnMut(&mut T, bool) -> bool) {
        // The thread's own work comes first; after that only work that others left, which any holder may do.
        let mut own = true;
        loop {
            let mut seen = 0;
            let mut work = |(inner, done): &mut (T, u32)| {
                seen = self.left.load(Ordering::Acquire);
                let others = seen != *done || !own;
                *done = seen;
                act(inner, others)
            };
            let mut result = self.inner.try_with(&mut work);
            let mut tried = 0;
            // The work of a holder's later rounds is not waited for: the thread that left it waits itself.
            while own && result.is_none() && tried < tries {
                if tried < SPINS {
                    std::hint::spin_loop()
                } else {
                    yield_now()
                }
                tried += 1;
                result = self.inner.try_with(&mut work);
            }
            if result.is_none() {
                // Release: pairs with the Acquire loads here, and publishes the work with the count.
                self.left.fetch_add(1, Ordering::Release);
                // SeqCst: orders the count before the second try; pairs with the fence below.
                fence(Ordering::SeqCst);
                result = self.inner.try_with(&mut work);
            }
            // The holder will read the count after it has released the lock.
            let Some(go_on) = result else { return };
            // SeqCst: orders the release of the lock before the read of the count; pairs with the fence above.
            fence(Ordering::SeqCst);
            if !go_on || self.left.load(Ordering::Acquire) == seen {
                return;
            }
            own = false;
        }
    }

    /// Waits for the lock, and calls `act` once.
    pub(crate) fn exclusively<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        self.inner.with(|(inner, _)| act(inner))
    }
}
