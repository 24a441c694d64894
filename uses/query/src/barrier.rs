//! The barrier of a group of threads. It opens for good when the query is abandoned, so that no thread waits for one
//! that will not come.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A reusable barrier. Waiting threads sleep: a query has more threads than the machine, and the awaited thread needs
/// the CPU.
#[derive(Debug)]
pub(crate) struct GroupBarrier {
    of: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Threads that have come in this round.
    here: u32,
    /// The round; it wraps, which waiting threads do not notice, because none is 2^32 rounds late.
    round: u32,
    given_up: bool,
}

impl GroupBarrier {
    /// Creates a barrier for this many threads.
    pub(crate) fn new(of: u32) -> Self {
        GroupBarrier { of, state: Mutex::default(), changed: Condvar::new() }
    }

    // No code under this lock panics.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all threads are here, including this one. Returns false if the query is abandoned.
    #[must_use]
    pub(crate) fn wait(&self) -> bool {
        let mut state = self.lock();
        let round = state.round;
        // Cannot overflow: each thread waits, and there are at most `of`.
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

    /// Releases all threads that wait or will come.
    pub(crate) fn abandon(&self) {
        self.lock().given_up = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn no_thread_continues_before_all_have_arrived() {
        let (barrier, come) = (GroupBarrier::new(3), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 1..=200 {
                        come.fetch_add(1, Ordering::Relaxed);
                        assert!(barrier.wait());
                        let come = come.load(Ordering::Relaxed);
                        assert!(come >= round * 3 && come <= round * 3 + 2, "{come} in round {round}");
                    }
                });
            }
        });
    }

    #[test]
    fn threads_waiting_for_one_that_abandoned_are_sent_away() {
        let barrier = GroupBarrier::new(3);
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (0..2).map(|_| scope.spawn(|| barrier.wait())).collect();
            barrier.abandon();
            assert!(waiting.into_iter().all(|thread| !thread.join().unwrap()));
        });
        assert!(!barrier.wait(), "threads that come later are sent away as well");
        assert!(GroupBarrier::new(1).wait(), "a single thread does not wait");
    }
}
