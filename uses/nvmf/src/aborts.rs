//! Aborts on their way from the admin queue to the connection whose command is to be aborted.
//!
//! ```text
//! admin connection ─► AbortTable::ask ─► the loop of the I/O connection ─► AbortTable::take ─► abort or not
//!        ▲                                                                                        │
//!        └────────────────────────────── the loop of the admin connection ◄───────────────────────┘
//! ```

use crate::engine::JobId;
use crate::sync::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The slot in a [`JobId`] that is for the connection itself, which then looks for aborts.
pub(crate) const CONNECTION_SLOT: u32 = u32::MAX;

/// An Abort that waits for the connection of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AbortRequest {
    /// The connection that has the command.
    connection: u64,
    /// The command's identifier.
    pub(crate) cid: u16,
    /// The Abort command.
    pub(crate) asked_by: JobId,
}

#[derive(Debug, Default)]
struct Table {
    /// The connections of the I/O queues.
    connections: BTreeMap<u16, u64>,
    requests: Vec<AbortRequest>,
}

/// The aborts of a controller.
#[derive(Debug, Default)]
pub(crate) struct AbortTable {
    table: Mutex<Table>,
}

impl AbortTable {
    /// An I/O queue was connected.
    pub(crate) fn connected(&self, qid: u16, connection: u64) {
        lock(&self.table).connections.insert(qid, connection);
    }

    /// The connection of an I/O queue has ended. Returns the aborts that it has not looked at.
    pub(crate) fn disconnected(&self, qid: u16, connection: u64) -> Vec<AbortRequest> {
        let mut table = lock(&self.table);
        if table.connections.get(&qid) == Some(&connection) {
            table.connections.remove(&qid);
        }
        table.requests.extract_if(.., |request| request.connection == connection).collect()
    }

    /// Asks the connection of a queue to abort a command. Returns the number under which its loop is to be told; `None`
    /// if the queue has no connection.
    pub(crate) fn ask(&self, qid: u16, cid: u16, asked_by: JobId) -> Option<JobId> {
        let mut table = lock(&self.table);
        let connection = *table.connections.get(&qid)?;
        table.requests.push(AbortRequest { connection, cid, asked_by });
        Some(JobId { connection, slot: CONNECTION_SLOT, generation: 0, part: 0 })
    }

    /// Takes an abort back. Returns whether the connection has not taken it.
    pub(crate) fn take_back(&self, asked_by: JobId) -> bool {
        lock(&self.table).requests.extract_if(.., |request| request.asked_by == asked_by).count() > 0
    }

    /// Takes the aborts for a connection.
    pub(crate) fn take(&self, connection: u64) -> Vec<AbortRequest> {
        lock(&self.table).requests.extract_if(.., |request| request.connection == connection).collect()
    }
}
