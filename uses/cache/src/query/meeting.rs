//! Where the threads of a group wait for each other: a barrier that opens for good when the query is given up, so that nobody waits for
//! who will not come.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A barrier that is met again and again. Who waits sleeps: a query has more threads than the machine, and whoever is waited for needs
/// the CPU.
#[derive(Debug)]
pub(crate) struct Meeting {
    of: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Have come this time.
    here: u32,
    /// Times that all have come; wraps, which whoever waits does not notice: nobody is 2^32 times late.
    round: u32,
    given_up: bool,
}

impl Meeting {
    /// Of so many threads.
    pub(crate) fn new(of: u32) -> Self {
        Meeting { of, state: Mutex::default(), changed: Condvar::new() }
    }

    // Nothing panics under it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all are here, of whom this is one. False if nobody should go on.
    #[must_use]
    pub(crate) fn meet(&self) -> bool {
        let mut state = self.lock();
        let round = state.round;
        // Cannot overflow: who comes waits, and there are no more than `of`.
        state.here += 1;
        if state.here >= self.of {
            state.here = 0;
            state.round = round.wrapping_add(1);
            self.changed.notify_all();
        }
        while state.round == round && !state.given_up {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.given_up
    }

    /// Sends away all who wait or will come.
    pub(crate) fn give_up(&self) {
        self.lock().given_up = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn nobody_goes_on_before_all_have_come() {
        let (meeting, come) = (Meeting::new(3), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 1..=200 {
                        come.fetch_add(1, Ordering::Relaxed);
                        assert!(meeting.meet());
                        let come = come.load(Ordering::Relaxed);
                        assert!(come >= round * 3 && come <= round * 3 + 2, "{come} in round {round}");
                    }
                });
            }
        });
    }

    #[test]
    fn who_waits_for_one_that_will_not_come_is_sent_away() {
        let meeting = Meeting::new(3);
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..2).map(|_| scope.spawn(|| meeting.meet())).collect();
            meeting.give_up();
            assert!(waiting.into_iter().all(|thread| !thread.join().unwrap()));
        });
        assert!(!meeting.meet(), "and whoever comes later");
        assert!(Meeting::new(1).meet(), "one that waits for nobody goes on");
    }
}
