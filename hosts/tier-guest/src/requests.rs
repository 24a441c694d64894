//! Requests that a program thread sends to the library's thread and waits for.
//!
//! A program thread must not do the work itself. It has other descriptors. And while it holds a lock of the library, it
//! might touch its own stack while that is in flight: it would wait for the thread that brings the stack back, which
//! waits for the lock. The only lock it takes here is the queue's, which threads that move pages or answer faults never
//! take.
//!
//! Modelled in tests/loom_requests.rs.

// By path, because the model includes this file from elsewhere and has its own tests.
#[cfg(all(test, not(loom)))]
#[path = "requests/tests.rs"]
mod tests;

use crate::sync::{Condvar, Mutex, MutexGuard};
use std::sync::{OnceLock, PoisonError};
use std::time::{Duration, Instant};
use telpher_os::Lineage;

/// The most requests before the library starts: threads and mutexes. Source: chosen; few in the model, whose threads
/// have small stacks.
const MOST_EARLY: usize = if cfg!(loom) { 2 } else { 256 };

/// A request from a program thread to the library's thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// Do not move these pages as long as this thread lives.
    Release { start: u64, end: u64, thread: i32 },
    /// Do not move the mapping that contains this address either: the stack of a library thread.
    ReleaseStack { at: u64, thread: i32 },
    /// These pages, released for this thread, may be adopted again.
    MayAdopt { start: u64, end: u64, thread: i32 },
    /// The program ends.
    End,
}

/// The state of the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Not started yet: requests are stored.
    EarlyMappings,
    Open,
    /// Closed for good: no request is accepted.
    Closed,
}

/// The requests.
#[derive(Debug)]
pub(crate) struct State {
    stage: Stage,
    early: [Option<Request>; MOST_EARLY],
    /// The number of requests before the start, including those for which there was no room.
    noted: usize,
    request: Option<Request>,
}

/// The queue of requests.
#[derive(Debug)]
pub(crate) struct RequestQueue {
    /// Held by the requesting thread: one at a time.
    turn: Mutex<()>,
    state: Mutex<State>,
    sent: Condvar,
    done: Condvar,
    process: OnceLock<Lineage>,
}

impl State {
    /// Creates a state without requests.
    pub(crate) const fn new() -> State {
        State { stage: Stage::EarlyMappings, early: [None; MOST_EARLY], noted: 0, request: None }
    }
}

impl RequestQueue {
    /// Creates a queue that is not open yet.
    pub(crate) const fn new(turn: Mutex<()>, state: Mutex<State>, [sent, done]: [Condvar; 2]) -> RequestQueue {
        RequestQueue { turn, state, sent, done, process: OnceLock::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request and waits until it is done, at most for `most` if that is given. In a forked child it does
    /// nothing.
    pub(crate) fn send(&self, request: Request, most: Option<Duration>) {
        // Before any lock, which may be held by a thread that this process does not have.
        if self.process.get().is_some_and(|process| !process.is_current()) {
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        match state.stage {
            Stage::Closed => return,
            Stage::EarlyMappings => {
                let at = state.noted;
                if let Some(early) = state.early.get_mut(at) {
                    *early = Some(request);
                }
                state.noted += 1;
                return;
            }
            Stage::Open => state.request = Some(request),
        }
        self.sent.notify_one();
        let end = most.map(|most| Instant::now() + most);
        while state.request.is_some() && state.stage == Stage::Open {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            state = match left {
                None => self.done.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return,
                Some(left) => self.done.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    /// Opens the queue for this process. Returns the stored requests; none if there were too many.
    pub(crate) fn open(&self) -> Option<Vec<Request>> {
        let _ = self.process.set(Lineage::current());
        let mut state = self.state();
        if state.noted > MOST_EARLY {
            state.stage = Stage::Closed;
            return None;
        }
        state.stage = Stage::Open;
        Some(state.early.iter().flatten().copied().collect())
    }

    /// Returns whether the queue has been opened by this process.
    pub(crate) fn is_open(&self) -> bool {
        self.process.get().is_some_and(Lineage::is_current)
    }

    /// Closes the queue for good.
    pub(crate) fn close(&self) {
        self.state().stage = Stage::Closed;
        self.done.notify_all();
    }

    /// Serves requests and waits for more, each time for as long as `left` returns, until it returns none.
    pub(crate) fn serve(&self, mut left: impl FnMut() -> Option<Duration>, mut each: impl FnMut(Request)) {
        let mut state = self.state();
        loop {
            if let Some(request) = state.request {
                drop(state);
                each(request);
                state = self.state();
                state.request = None;
                self.done.notify_all();
            }
            let Some(left) = left() else { return };
            state = self.sent.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Returns a function that returns the rest of this time from now on.
pub(crate) fn left_of(time: Duration) -> impl FnMut() -> Option<Duration> {
    let end = Instant::now() + time;
    move || Some(end.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
}
