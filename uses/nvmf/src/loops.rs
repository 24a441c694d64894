//! How backends and changes of the target reach the loops that serve connections.

use crate::engine::JobId;
use crate::storage::StorageResult;
use crate::sync::lock;
use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};

/// What reaches a loop from other threads. No method may wait.
pub trait LoopInbox: Send + Sync + fmt::Debug {
    /// Takes a backend's answer, which is to be passed to `Connection::storage_done`.
    fn answer(&self, id: JobId, result: StorageResult);

    /// The target changed: `Connection::poll` is to be called for all connections.
    fn target_changed(&self);
}

/// The inboxes of all loops, and which connection each of them serves.
#[derive(Debug, Default)]
pub struct Loops {
    connections: Mutex<HashMap<u64, Arc<dyn LoopInbox>>>,
    loops: Mutex<Vec<Weak<dyn LoopInbox>>>,
    /// What must exist until the backend has answered, although the connection has ended.
    kept: Mutex<HashMap<JobId, Box<dyn Any + Send>>>,
}

impl Loops {
    /// A loop that is told of changes until its inbox is dropped.
    pub fn add_loop(&self, inbox: &Arc<dyn LoopInbox>) {
        lock(&self.loops).push(Arc::downgrade(inbox));
    }

    /// Answers for this connection go to `inbox` from now on.
    pub fn register(&self, connection: u64, inbox: Arc<dyn LoopInbox>) {
        lock(&self.connections).insert(connection, inbox);
    }

    /// The connection has ended. What its unfinished requests need was kept before.
    pub fn forget(&self, connection: u64) {
        lock(&self.connections).remove(&connection);
    }

    /// Passes an answer on. It is dropped if its connection has ended. Returns whether a loop got it.
    pub fn answer(&self, id: JobId, result: StorageResult) -> bool {
        let inbox = lock(&self.connections).get(&id.connection).cloned();
        match inbox {
            Some(inbox) => inbox.answer(id, result),
            None => {
                self.release(id);
                return false;
            }
        }
        true
    }

    /// Keeps a value until the backend has answered a request of a command that has ended before.
    pub(crate) fn keep(&self, id: JobId, value: Box<dyn Any + Send>) {
        lock(&self.kept).insert(id, value);
    }

    /// The backend has answered a request whose command has ended before.
    pub fn release(&self, id: JobId) {
        let released = lock(&self.kept).remove(&id);
        // Dropping it may send answers to other connections, so no lock is held.
        drop(released);
    }

    /// Tells all loops that the target changed.
    pub fn target_changed(&self) {
        let mut loops = lock(&self.loops);
        loops.retain(|inbox| inbox.strong_count() > 0);
        let inboxes: Vec<_> = loops.iter().filter_map(Weak::upgrade).collect();
        drop(loops);
        for inbox in inboxes {
            inbox.target_changed();
        }
    }
}
