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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Segments;
    use crate::limits::Limits;
    use crate::namespace::NamespaceOptions;
    use crate::storage::{NullStorage, Storage};
    use crate::subsystem::SubsystemOptions;

    const NQN: &str = "nqn.2026-01.org.example:disk";

    /// A backend that answers a flush in one way.
    #[derive(Debug)]
    enum Flushed {
        AtOnce(StorageResult),
        ByLoops(Arc<Target>, StorageResult),
        Never,
    }

    impl Storage for Flushed {
        fn start(&self, id: JobId, request: StorageRequest) -> Started {
            assert!(matches!(request, StorageRequest::Flush));
            match self {
                Flushed::AtOnce(result) => return Started::Done(result.clone()),
                Flushed::ByLoops(target, result) => {
                    target.loops().answer(id, result.clone());
                }
                Flushed::Never => {}
            }
            Started::Later
        }

        fn capacity(&self) -> u64 {
            1 << 20
        }
    }

    #[test]
    fn namespaces_that_were_not_flushed_are_named() {
        let target = Target::new(Limits::default()).unwrap();
        let options = SubsystemOptions { nqn: NQN.into(), serial: "1".into(), model: "test".into(), hosts: None };
        target.add_subsystem(options).unwrap();
        let failure = || Err(Status::INTERNAL_ERROR);
        let backends: [Arc<dyn Storage>; 6] = [
            Arc::new(NullStorage::new(1 << 20)),
            Arc::new(Flushed::AtOnce(Ok(Segments::new()))),
            Arc::new(Flushed::AtOnce(failure())),
            Arc::new(Flushed::ByLoops(Arc::clone(&target), Ok(Segments::new()))),
            Arc::new(Flushed::ByLoops(Arc::clone(&target), failure())),
            Arc::new(Flushed::Never),
        ];
        for (nsid, storage) in (1..).zip(backends) {
            let (uuid, nguid) = ([1; 16], [2; 16]);
            let options = NamespaceOptions {
                nsid,
                block_bytes: 4096,
                uuid,
                nguid,
                is_read_only: false,
                protection: None,
                storage,
            };
            target.add_namespace(NQN, options).unwrap();
        }
        let failed = flush_all(&target, Duration::ZERO);
        let named: Vec<_> = failed.iter().map(|failed| (failed.nsid, failed.status)).collect();
        let status = Some(Status::INTERNAL_ERROR);
        assert_eq!(named, [(3, status), (5, status), (6, None)]);
    }
}
