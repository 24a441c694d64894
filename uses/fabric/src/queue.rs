//! A queue between threads that costs one load to ask when it is empty.

use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering, PoisonError};

/// Values from several threads, in order. The lock is never held while other code runs.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    values: Mutex<Vec<T>>,
    /// True if there may be values. Changed while the lock is held, so it is false only if there are none.
    is_filled: AtomicBool,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Queue<T> {
        Queue { values: Mutex::new(Vec::new()), is_filled: AtomicBool::new(false) }
    }

    pub(crate) fn push(&self, value: T) {
        let mut values = self.lock();
        values.push(value);
        // Relaxed: the lock orders the values; a thread that sees the old flag takes them the next time.
        self.is_filled.store(true, Ordering::Relaxed);
    }

    /// Moves all values to the end of `into`.
    #[inline]
    pub(crate) fn take(&self, into: &mut Vec<T>) {
        if self.is_filled.load(Ordering::Relaxed) {
            let mut values = self.lock();
            self.is_filled.store(false, Ordering::Relaxed);
            into.append(&mut values);
        }
    }

    /// Returns how many values wait.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
