//! Flushes the backends of a target outside of any connection: when a server stops.

use crate::engine::JobId;
use crate::loops::LoopInbox;
use crate::status::Status;
use crate::storage::{Started, StorageRequest, StorageResult};
use crate::subsystem::lock;
use crate::target::Target;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The answers that came, by the number of the request.
#[derive(Debug, Default)]
struct Answers {
    results: Mutex<HashMap<u32, StorageResult>>,
    came: Condvar,
}

impl LoopInbox for Answers {
    fn answer(&self, id: JobId, result: StorageResult) {
        lock(&self.results).insert(id.slot, result);
        self.came.notify_all();
    }

    fn target_changed(&self) {}
}

/// A namespace whose backend was not flushed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotFlushed {
    /// The NQN of its subsystem.
    pub subsystem: String,
    /// NSID.
    pub nsid: u32,
    /// The backend's answer; `None` if it did not come in time.
    pub status: Option<Status>,
}

/// Flushes all namespaces, and waits for the answers at most for this time. Returns those that failed.
#[must_use]
pub fn flush_all(target: &Target, within: Duration) -> Vec<NotFlushed> {
    let (answers, connection) = (Arc::<Answers>::default(), target.next_connection());
    let inbox: Arc<dyn LoopInbox> = Arc::<Answers>::clone(&answers);
    target.loops().register(connection, inbox);
    let mut waiting = Vec::new();
    let mut failed = Vec::new();
    for subsystem in target.subsystems().all() {
        for nsid in subsystem.namespaces_above(0) {
            let Some(namespace) = subsystem.namespace(nsid) else { continue };
            let slot = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
            let id = JobId { connection, slot, generation: 0, part: 0 };
            let missing = NotFlushed { subsystem: subsystem.options().nqn.clone(), nsid, status: None };
            match namespace.start(id, StorageRequest::Flush) {
                Started::Done(Ok(_)) => {}
                Started::Done(Err(status)) => failed.push(NotFlushed { status: Some(status), ..missing }),
                Started::Later => waiting.push(missing),
            }
        }
    }
    let until = Instant::now() + within;
    let mut results = lock(&answers.results);
    while results.len() < waiting.len() {
        let rest = until.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            break;
        }
        (results, _) = answers.came.wait_timeout(results, rest).unwrap_or_else(PoisonError::into_inner);
    }
    for (slot, missing) in (0..).zip(waiting) {
        match results.get(&slot) {
            Some(Ok(_)) => {}
            Some(Err(status)) => failed.push(NotFlushed { status: Some(*status), ..missing }),
            None => failed.push(missing),
        }
    }
    drop(results);
    target.loops().forget(connection);
    failed
}
