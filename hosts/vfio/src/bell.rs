//! Wakes a function's engine thread. A ring between two waits is not lost.

use crate::sync::{Condvar, Mutex, MutexGuard};
use std::sync::PoisonError;
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
#[derive(Debug)]
pub(crate) struct Bell {
    state: Mutex<State>,
    changed: Condvar,
}

impl Bell {
    pub(crate) fn new() -> Bell {
        Bell { state: Mutex::new(State::default()), changed: Condvar::new() }
    }

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
            let Some(limit) = limit else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state = self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0;
            // Also if nothing rang, or a wait ended early: the listener looks for work then.
            break;
        }
        state.rung = false;
        if state.ended { Woken::End } else { Woken::Work }
    }

    /// True if the listener has not seen a ring yet.
    pub(crate) fn is_rung(&self) -> bool {
        self.lock().rung
    }

    /// True if the listener shall end.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_ring_before_the_wait_is_not_lost() {
        let bell = Bell::new();
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
