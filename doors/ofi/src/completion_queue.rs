//! Completion queues: they fetch completions from the endpoints that are bound to them, when a program reads.

use crate::abi::errors;
use crate::bound::{BoundEndpoint, Direction};
use crate::domain::Domain;
use crate::failure::{AGAIN, Errno};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use telpher_fabric::{Completion, Endpoint};

/// What an entry of a queue has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// The context only.
    Context,
    /// Also flags and length.
    Msg,
    /// Also the buffer and the sender's word.
    Data,
    /// Also the tag.
    Tagged,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    domain: Arc<Domain>,
    format: Format,
    /// True while a thread that waits in this queue shall return.
    signaled: AtomicBool,
    /// The endpoint whose completions all go to this queue, if it was bound first. Nearly all queues have one endpoint,
    /// and are then read without a lock of their own.
    sole: OnceLock<Arc<Endpoint>>,
    /// True while `sole` is the only endpoint, and no completion waits.
    is_sole: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    endpoints: Vec<Bound>,
    /// True if `sole` is the only endpoint.
    is_sole: bool,
    /// Completions that are not read yet, and the endpoint of each. Most often it is empty: a read takes completions
    /// from the endpoint only if it can hand them out.
    waiting: VecDeque<(Completion, Weak<dyn BoundEndpoint>)>,
    scratch: Vec<Completion>,
    /// The endpoint that is asked first; they take turns.
    next: usize,
}

#[derive(Clone, Debug)]
struct Bound {
    endpoint: Weak<dyn BoundEndpoint>,
    direction: Direction,
}

impl CompletionQueue {
    pub(crate) fn new(domain: Arc<Domain>, format: Format) -> CompletionQueue {
        CompletionQueue {
            domain,
            format,
            signaled: AtomicBool::new(false),
            sole: OnceLock::new(),
            is_sole: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Returns what an entry has.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// Returns the version of the interface that the program was compiled for.
    pub(crate) fn api_version(&self) -> u32 {
        self.domain.fabric.api_version
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fetches completions of this endpoint, too. `direct` is the endpoint below, if all its completions are for this
    /// queue.
    pub(crate) fn bind(&self, endpoint: &Arc<dyn BoundEndpoint>, direction: Direction, direct: Option<&Arc<Endpoint>>) {
        let mut state = self.state();
        state.endpoints.retain(|known| known.endpoint.strong_count() > 0);
        state.endpoints.push(Bound { endpoint: Arc::downgrade(endpoint), direction });
        let is_first = direct.is_some_and(|direct| self.sole.set(Arc::clone(direct)).is_ok());
        state.is_sole = is_first && state.endpoints.len() == 1;
        // Release: pairs with the Acquire in `read_sole`.
        self.is_sole.store(state.is_sole && state.waiting.is_empty(), Ordering::Release);
    }

    /// Reads like [`read`](CompletionQueue::read) from the only endpoint. `None` if that is not possible now. `take`
    /// must not call an endpoint.
    #[inline]
    pub(crate) fn read_sole(&self, most: usize, take: impl FnMut(&Completion)) -> Option<Result<usize, Errno>> {
        // Acquire: pairs with the Release in `bind` and `read`.
        if !self.is_sole.load(Ordering::Acquire) {
            return None;
        }
        let taken = self.sole.get()?.take_successes(most, take);
        match taken.count {
            0 if taken.is_failure_next => None,
            0 => Some(Err(AGAIN)),
            count => Some(Ok(count)),
        }
    }

    /// Moves messages, and passes at most `most` successful completions to `take`. Returns how many.
    ///
    /// # Errors
    /// `EAGAIN` if there is none, `EAVAIL` if a failure is the first.
    pub(crate) fn read(
        &self,
        most: usize,
        mut take: impl FnMut(&Completion, &Weak<dyn BoundEndpoint>),
    ) -> Result<usize, Errno> {
        let mut state = self.state();
        let mut count = 0;
        if state.waiting.is_empty() {
            count = state.fetch(most, &mut take);
        }
        while count < most
            && let Some((completion, endpoint)) = state.waiting.front()
            && completion.result.is_ok()
        {
            take(completion, endpoint);
            state.waiting.pop_front();
            count += 1;
        }
        // Release: pairs with the Acquire in `read_sole`.
        self.is_sole.store(state.is_sole && state.waiting.is_empty(), Ordering::Release);
        match state.waiting.front() {
            _ if count > 0 => Ok(count),
            None => Err(AGAIN),
            Some((completion, _)) if completion.result.is_err() => Err(Errno(errors::EAVAIL)),
            Some(_) => Ok(0),
        }
    }

    /// Reads like [`read`](CompletionQueue::read), and waits for the first completion; for ever without a timeout.
    pub(crate) fn read_waiting(
        &self,
        most: usize,
        timeout: Option<Duration>,
        mut take: impl FnMut(&Completion, &Weak<dyn BoundEndpoint>),
    ) -> Result<usize, Errno> {
        let start = Instant::now();
        loop {
            match self.read(most, &mut take) {
                Err(AGAIN) => {}
                answer => return answer,
            }
            let timed_out = timeout.is_some_and(|timeout| start.elapsed() >= timeout);
            if timed_out || self.signaled.swap(false, Ordering::Relaxed) {
                return Err(AGAIN);
            }
            std::thread::yield_now();
        }
    }

    /// Makes a thread return that waits in this queue, or the next that would wait.
    pub(crate) fn signal(&self) {
        self.signaled.store(true, Ordering::Relaxed);
    }

    /// Takes the failed operation at the front.
    ///
    /// # Errors
    /// `EAGAIN` if there is none.
    pub(crate) fn read_failure(&self) -> Result<Completion, Errno> {
        let mut state = self.state();
        let is_failure = state.waiting.front().is_some_and(|(completion, _)| completion.result.is_err());
        let front = if is_failure { state.waiting.pop_front() } else { None };
        front.map(|(completion, _)| completion).ok_or(AGAIN)
    }
}

impl State {
    /// Moves messages of all endpoints, and passes at most `most` successful completions to `take`. Returns how many. A
    /// failure waits, and so do the completions after it.
    fn fetch(&mut self, most: usize, mut take: impl FnMut(&Completion, &Weak<dyn BoundEndpoint>)) -> usize {
        let State { endpoints, waiting, scratch, next, .. } = self;
        let mut taken = 0;
        for turn in 0..endpoints.len() {
            let bound = &endpoints[(*next + turn) % endpoints.len()];
            let Some(endpoint) = bound.endpoint.upgrade() else { continue };
            // Also with no room left: the messages of the other endpoints move, too.
            endpoint.take(bound.direction, scratch, most.saturating_sub(taken + waiting.len()));
            for completion in scratch.drain(..) {
                if waiting.is_empty() && completion.result.is_ok() {
                    take(&completion, &bound.endpoint);
                    taken += 1;
                } else {
                    waiting.push_back((completion, bound.endpoint.clone()));
                }
            }
        }
        *next = if endpoints.is_empty() { 0 } else { (*next + 1) % endpoints.len() };
        taken
    }
}
