//! A lock for which a thread waits a bounded time. A thread that finds it taken to the end leaves its work to the
//! holder, which looks again before it goes.
//!
//! Who leaves work counts itself and tries once more; the holder compares the count after letting go. With a sequentially
//! consistent fence on either side, one of them sees the other, so work that was brought before is never left undone.

use crate::sync::{AtomicU32, Ordering, TryLock, fence, yield_now};

/// Tries before a waiting thread gives its core away between two. Source: chosen; about a microsecond, a short copy.
const SPINS: u32 = 64;

/// Something that one thread at a time works with, for itself and for those who came meanwhile.
#[derive(Debug)]
pub(crate) struct Combiner<T> {
    /// With the count up to which what was left has been done.
    inner: TryLock<(T, u32)>,
    /// How often somebody found the lock taken.
    left: AtomicU32,
}

impl<T> Combiner<T> {
    pub(crate) fn new(inner: T) -> Self {
        Combiner { inner: TryLock::new((inner, 0)), left: AtomicU32::new(0) }
    }

    /// Calls `act` with the lock, told whether others may have left work; or, after so many more tries, leaves the
    /// caller's own to the thread that has the lock. `act` says whether to go on.
    ///
    /// A wait is bounded, so that a thread which waits for itself goes on: in a signal handler, or in a forked child in
    /// which the holder does not exist.
    #[inline]
    pub(crate) fn run(&self, tries: u32, mut act: impl FnMut(&mut T, bool) -> bool) {
        // One's own work first; afterwards only what others left, and that is everybody's.
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
            // Work that was brought by a round of one's own is not waited for: another thread brings it, and waits.
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
                // Release: pairs with the Acquire loads here; with the count goes the work.
                self.left.fetch_add(1, Ordering::Release);
                // SeqCst: the count before the second try; pairs with the fence below.
                fence(Ordering::SeqCst);
                result = self.inner.try_with(&mut work);
            }
            // Whoever has it will look at the count after letting go.
            let Some(go_on) = result else { return };
            // SeqCst: letting go before the look at the count; pairs with the fence above.
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
