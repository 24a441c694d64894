//! Wakes a function's engine thread. A notification between two waits is not lost.

use crate::sync::{Condvar, Mutex, MutexGuard};
use std::sync::PoisonError;
use std::time::Duration;

#[derive(Debug, Default)]
struct State {
    pending: bool,
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

/// Tells one thread, the listener, that there may be work.
#[derive(Debug)]
pub(crate) struct WorkSignal {
    state: Mutex<State>,
    changed: Condvar,
}

impl WorkSignal {
    pub(crate) fn new() -> WorkSignal {
        WorkSignal { state: Mutex::new(State::default()), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the listener, or its next wait.
    pub(crate) fn notify(&self) {
        self.lock().pending = true;
        self.changed.notify_one();
    }

    /// Makes this and all later waits end.
    pub(crate) fn end(&self) {
        self.lock().ended = true;
        self.changed.notify_one();
    }

    /// Waits for a notification, at most for `limit` if there is one.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> Woken {
        let mut state = self.lock();
        while !state.pending && !state.ended {
            let Some(limit) = limit else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state = self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0;
            // Also if nothing notified it, or a wait ended early: the listener looks for work then.
            break;
        }
        state.pending = false;
        if state.ended { Woken::End } else { Woken::Work }
    }

    /// True if the listener has not seen the last notification yet.
    pub(crate) fn is_pending(&self) -> bool {
        self.lock().pending
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
    fn a_notification_before_the_wait_is_not_lost() {
        let work_signal = WorkSignal::new();
        work_signal.notify();
        work_signal.notify();
        assert_eq!(work_signal.wait(None), Woken::Work);
        std::thread::scope(|scope| {
            scope.spawn(|| work_signal.notify());
            assert_eq!(work_signal.wait(None), Woken::Work);
        });
        assert_eq!(work_signal.wait(Some(Duration::from_millis(1))), Woken::Work, "a limit");
        work_signal.end();
        assert_eq!((work_signal.wait(None), work_signal.has_ended()), (Woken::End, true));
    }
}
