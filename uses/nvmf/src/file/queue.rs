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

    /// Removes the task of a command. Returns false if no task of it waits.
    pub(super) fn cancel(&self, id: JobId) -> bool {
        let mut state = lock(&self.state);
        let found = state.tasks.iter().position(|task| task.id == id);
        let task = found.and_then(|index| state.tasks.remove(index));
        // The end of an admitted request may wake others, so it comes after the lock.
        drop(state);
        task.is_some()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::contents::Contents;
    use std::sync::Arc;

    #[test]
    fn a_task_is_taken_back_until_a_thread_takes_it() {
        let path = std::env::temp_dir().join(format!("telpher-nvmf-{}-cancel", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let contents = Arc::new(Contents::of_size(file, 4096));
        let queue = Queue::default();
        let id = |slot| JobId { connection: 1, slot, generation: 0, part: 0 };
        for slot in 0..3 {
            let request = StorageRequest::Read { start: 0, len: 512 };
            queue.push(Task { admitted: contents.admit(&request).unwrap(), id: id(slot), request });
        }
        assert_eq!(queue.wait().map(|task| task.id), Some(id(0)));
        assert_eq!([0, 1, 1, 3].map(|slot| queue.cancel(id(slot))), [false, true, false, false]);
        assert_eq!(queue.wait().map(|task| task.id), Some(id(2)));
        assert!(!queue.cancel(id(2)));
    }
}
