//! A lock that nobody waits for: who finds it taken leaves its work to the holder, who looks again before going.
//!
//! Who leaves work counts itself and tries once more; the holder compares the count after letting go. With a sequentially
//! consistent fence on either side, one of them sees the other, so work that was brought before is never left undone.

use crate::sync::{AtomicU32, Ordering, TryLock, fence};

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

    /// Calls `act` with the lock, told whether others may have left work; or leaves one's own to who has the lock. `act` says
    /// whether to go on.
    #[inline]
    pub(crate) fn run(&self, mut act: impl FnMut(&mut T, bool) -> bool) {
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
