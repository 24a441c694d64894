//! Sleeping without missing a wake-up. A worker announces its sleep, checks for work once more, and only then parks. A
//! submitter checks for the announcement after its work is visible. Dekker's pattern with a sequentially consistent
//! fence on either side.

use crate::sync::{AtomicU32, Ordering, fence};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// Whether a worker sleeps.
#[derive(Debug)]
pub(crate) struct Sleeper {
    state: AtomicU32,
}

impl Sleeper {
    pub(crate) fn new() -> Self {
        Sleeper { state: AtomicU32::new(AWAKE) }
    }

    /// Announces sleep, and parks unless there is work. `park` may return early.
    pub(crate) fn sleep(&self, has_work: impl Fn() -> bool, park: impl Fn()) {
        self.state.store(ASLEEP, Ordering::Relaxed);
        // SeqCst: orders the announcement before the check for work; pairs with the fence in `wake`.
        fence(Ordering::SeqCst);
        if !has_work() {
            // Acquire: pairs with the Release of the swap in `wake`.
            while self.state.load(Ordering::Acquire) == ASLEEP {
                park();
            }
        }
        self.state.store(AWAKE, Ordering::Relaxed);
        // SeqCst: orders being awake before the worker's next reads.
        fence(Ordering::SeqCst);
    }

    /// Wakes the worker if it sleeps; `unpark` makes its `park` return. The caller must have stored the work before.
    #[inline]
    pub(crate) fn wake(&self, unpark: impl FnOnce()) -> bool {
        // SeqCst: orders the work before the check of the announcement; pairs with the fence in `sleep`.
        fence(Ordering::SeqCst);
        if self.state.load(Ordering::Relaxed) == ASLEEP && self.state.swap(AWAKE, Ordering::AcqRel) == ASLEEP {
            unpark();
            return true;
        }
        false
    }
}
