//! Accepted requests that wait for a thread.

use super::contents::Admitted;
use crate::engine::JobId;
use crate::storage::StorageRequest;
use crate::subsystem::lock;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};

/// A request, the file that it uses, and the command that waits for its result.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) admitted: Admitted,
    pub(super) id: JobId,
    pub(super) request: StorageRequest,
}

/// Tasks in the order in which they came. The open commands of all connections bound their number.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Debug, Default)]
struct State {
    tasks: VecDeque<Task>,
    is_stopping: bool,
    /// The thread that takes tasks without waiting here needs a call to learn of the next one.
    needs_call: bool,
}

/// What [`Queue::take`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    /// Tasks are left.
    Some,
    /// No task is left, but more may come.
    All,
    /// No task is left, and none will come.
    Ended,
}

impl Queue {
    /// Adds a task. Returns true if the thread that uses [`Queue::take`] must be called.
    pub(super) fn push(&self, task: Task) -> bool {
        let mut state = lock(&self.state);
        state.tasks.push_back(task);
        let needs_call = std::mem::take(&mut state.needs_call);
        drop(state);
        self.ready.notify_one();
        needs_call
    }

    /// No more tasks will come.
    pub(super) fn stop(&self) {
        lock(&self.state).is_stopping = true;
        self.ready.notify_all();
    }

    /// Waits for a task. `None` if the queue is stopped and empty.
    pub(super) fn wait(&self) -> Option<Task> {
        let mut state = lock(&self.state);
        loop {
            if let Some(task) = state.tasks.pop_front() {
                return Some(task);
            }
            if state.is_stopping {
                return None;
            }
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes up to `most` tasks without waiting. If it leaves none, the next [`Queue::push`] asks for a call.
    pub(super) fn take(&self, most: usize, taken: &mut Vec<Task>) -> Taken {
        let mut state = lock(&self.state);
        let count = state.tasks.len().min(most);
        taken.extend(state.tasks.drain(..count));
        state.needs_call = state.tasks.is_empty();
        match (state.tasks.is_empty(), state.is_stopping) {
            (false, _) => Taken::Some,
            (true, false) => Taken::All,
            (true, true) => Taken::Ended,
        }
    }
}
