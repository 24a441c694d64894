//! Wakes a function's engine thread. A ring between two waits is not lost.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Debug, Default)]
struct State {
    rung: bool,
    ended: bool,
}

/// What woke the thread.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Woken {
    /// There may be work.
    Work,
    /// The thread shall end.
    End,
}

/// A bell with one listener.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    state: Mutex<State>,
    changed: Condvar,
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the listener, or its next wait.
    pub(crate) fn ring(&self) {
        self.lock().rung = true;
        self.changed.notify_one();
    }

    /// Makes this and all later waits end.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_one();
    }

    /// Waits for a ring, at most for `limit` if there is one.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> Woken {
        let mut state = self.lock();
        while !state.rung && !state.ended {
            state = match limit {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(limit) => {
                    let (state, _) = self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner);
                    let ended = state.ended;
                    let mut state = state;
                    state.rung = false;
                    return if ended { Woken::End } else { Woken::Work };
                }
            };
        }
        state.rung = false;
        if state.ended { Woken::End } else { Woken::Work }
    }

    /// True if the listener shall end.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_before_the_wait_is_not_lost() {
        let bell = Bell::default();
        bell.ring();
        bell.ring();
        assert_eq!(bell.wait(None), Woken::Work);
        std::thread::scope(|scope| {
            scope.spawn(|| bell.ring());
            assert_eq!(bell.wait(None), Woken::Work);
        });
        assert_eq!(bell.wait(Some(Duration::from_millis(1))), Woken::Work, "a limit");
        bell.end();
        assert_eq!((bell.wait(None), bell.has_ended()), (Woken::End, true));
    }
}
