//! Where a thread of the program has the library's own thread do something, and waits until that is done.
//!
//! A thread of the program must not do it itself. It has other descriptors; and with a lock of the library's, it might touch its stack while that is on its
//! way, and wait for who brings it back, who waits for the lock. Here it has but this desk's, which nobody takes who moves pages or answers faults.
//!
//! Modelled in tests/loom_desk.rs.

// By its path, as the model takes this file in from elsewhere, and has tests of its own.
#[cfg(all(test, not(loom)))]
#[path = "desk/tests.rs"]
mod tests;

use crate::sync::{Condvar, Mutex, MutexGuard};
use std::sync::{OnceLock, PoisonError};
use std::time::{Duration, Instant};
use telpher_os::Lineage;

/// Threads and mutexes that may begin before the library does. Source: chosen; few in the model, whose threads have small
/// stacks.
const MOST_EARLY: usize = if cfg!(loom) { 2 } else { 256 };

/// One thing to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Errand {
    /// These pages are not moved as long as this thread lives.
    LetGo { start: u64, end: u64, thread: i32 },
    /// Nor is the mapping that has this address: the stack of a thread of the library's.
    LetStackGo { at: u64, thread: i32 },
    /// These pages, which were let go for this thread, may be taken over again.
    MayTake { start: u64, end: u64, thread: i32 },
    /// The program ends.
    End,
}

/// How far the library is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It has not begun: what is to be done is noted.
    Early,
    Open,
    /// Nobody does anything any more, or ever will.
    Closed,
}

/// What is to be done.
#[derive(Debug)]
pub(crate) struct State {
    stage: Stage,
    early: [Option<Errand>; MOST_EARLY],
    /// As many as there were, also those for which there was no room.
    noted: usize,
    errand: Option<Errand>,
}

/// The desk.
#[derive(Debug)]
pub(crate) struct Desk {
    /// One asks at a time.
    turn: Mutex<()>,
    state: Mutex<State>,
    rung: Condvar,
    answered: Condvar,
    process: OnceLock<Lineage>,
}

impl State {
    /// Nothing is noted.
    pub(crate) const fn new() -> State {
        State { stage: Stage::Early, early: [None; MOST_EARLY], noted: 0, errand: None }
    }
}

impl Desk {
    /// Not open yet, of a new state, and what waits.
    pub(crate) const fn new(turn: Mutex<()>, state: Mutex<State>, [rung, answered]: [Condvar; 2]) -> Desk {
        Desk { turn, state, rung, answered, process: OnceLock::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has it done, and waits until it is, for so long at most, if not for as long as it takes. In a forked child nothing is.
    pub(crate) fn ask(&self, errand: Errand, most: Option<Duration>) {
        // Before any lock: a thread that this process has not may have it.
        if self.process.get().is_some_and(|process| !process.is_current()) {
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        match state.stage {
            Stage::Closed => return,
            Stage::Early => {
                let at = state.noted;
                if let Some(early) = state.early.get_mut(at) {
                    *early = Some(errand);
                }
                state.noted += 1;
                return;
            }
            Stage::Open => state.errand = Some(errand),
        }
        self.rung.notify_one();
        let end = most.map(|most| Instant::now() + most);
        while state.errand.is_some() && state.stage == Stage::Open {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            state = match left {
                None => self.answered.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return,
                Some(left) => self.answered.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    /// Opens it, for this process. Returns what was noted before; none if that was too much.
    pub(crate) fn open(&self) -> Option<Vec<Errand>> {
        let _ = self.process.set(Lineage::current());
        let mut state = self.state();
        if state.noted > MOST_EARLY {
            state.stage = Stage::Closed;
            return None;
        }
        state.stage = Stage::Open;
        Some(state.early.iter().flatten().copied().collect())
    }

    /// It is this process', and somebody does what is asked for, or did.
    pub(crate) fn is_open(&self) -> bool {
        self.process.get().is_some_and(Lineage::is_current)
    }

    /// Nobody does anything any more.
    pub(crate) fn close(&self) {
        self.state().stage = Stage::Closed;
        self.answered.notify_all();
    }

    /// Does what is asked, and waits for more, each time for as long as there is left, until there is nothing left.
    pub(crate) fn serve(&self, mut left: impl FnMut() -> Option<Duration>, mut each: impl FnMut(Errand)) {
        let mut state = self.state();
        loop {
            if let Some(errand) = state.errand {
                drop(state);
                each(errand);
                state = self.state();
                state.errand = None;
                self.answered.notify_all();
            }
            let Some(left) = left() else { return };
            state = self.rung.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What is left of this time from now on.
pub(crate) fn left_of(time: Duration) -> impl FnMut() -> Option<Duration> {
    let end = Instant::now() + time;
    move || Some(end.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
}
