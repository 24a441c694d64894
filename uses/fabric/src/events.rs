//! What a connector reports.

use crate::address::Address;
use crate::error::FabricError;
use crate::incoming::Incoming;
use crate::outgoing::Outgoing;
use crate::stats::published_words;
use telpher_metrics::{CellsOfObject, ObjectCells, metrics};
use telpher_os::Lineage;

/// Numbers a connection of a [`Connector`](crate::Connector); numbers are never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u64);

/// Does the work of an endpoint when a peer wakes it, when events wait for it, and when it has asked for it.
pub trait Progress: Send + Sync {
    /// Called on the helper thread, which holds no lock. It must not wait for the helper thread. True if there is more
    /// work, so that it must be called again.
    fn progress(&self) -> bool;
}

/// What happened to a connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectorEvent {
    /// A peer accepted a connection that this process asked for.
    Connected {
        /// The connection.
        id: ConnectionId,
        /// Its sending end.
        outgoing: Outgoing,
    },
    /// A connection that this process asked for was not opened.
    Refused {
        /// The connection.
        id: ConnectionId,
        /// Why.
        error: FabricError,
    },
    /// A peer opened a connection to this process.
    Accepted {
        /// The connection.
        id: ConnectionId,
        /// The peer, as it calls itself. Its user and machine were checked; so was its process, if it is in the same
        /// PID namespace.
        from: Address,
        /// The receiving end.
        incoming: Incoming,
    },
    /// The peer of a connection to this process waits: for room in the ring, or for an answer. However often it says
    /// so, there is no second event before [`Incoming::clear_wait`].
    PeerWaits {
        /// The connection.
        id: ConnectionId,
    },
    /// The peer's process has ended, or it closed the connection. Messages that it sent before may still be in the
    /// ring.
    Died {
        /// The connection.
        id: ConnectionId,
    },
}

metrics! {
    /// What a connector has counted since it was opened.
    pub struct ConnectorStats {
        /// Connections to peers, which accepted them.
        pub connected: u64 = counter "telpher_fabric_opened_connections_total",
        /// Connections from peers that were accepted.
        pub accepted: u64 = counter "telpher_fabric_accepted_connections_total",
        /// Connections from other users, which were refused.
        pub refused_users: u64 = counter "telpher_fabric_refused_connections_total" by reason ["other user"] => REFUSED,
        /// Connections that were refused for other reasons, such as another version or a file that can shrink.
        pub refused: u64 = counter "telpher_fabric_refused_connections_total" by reason ["other"] => REFUSED,
        /// Connections that ended because the peer ended or closed them.
        pub died: u64 = counter "telpher_fabric_ended_connections_total",
        /// How often peers woke the helper thread.
        pub woken: u64 = counter "telpher_fabric_wakes_total",
    }
}

/// The help of refused connections.
const REFUSED: &str = "Connections from peers that were refused, by reason.";

/// What all connectors of this process have counted.
static PUBLISHED: ObjectCells<ConnectorStats> = ObjectCells::new(published_words);

/// The counters of a connector, which other processes can read.
#[derive(Debug)]
pub(crate) struct ConnectorCounters {
    stats: ConnectorStats,
    /// Some until the drop.
    cells: Option<CellsOfObject<ConnectorStats>>,
    created_in: Lineage,
}

impl Default for ConnectorCounters {
    fn default() -> Self {
        let (stats, cells) = (ConnectorStats::default(), Some(PUBLISHED.claim(1)));
        ConnectorCounters { stats, cells, created_in: Lineage::current() }
    }
}

impl ConnectorCounters {
    pub(crate) fn stats(&self) -> ConnectorStats {
        self.stats
    }

    pub(crate) fn count(&mut self, count: impl FnOnce(&mut ConnectorStats)) {
        count(&mut self.stats);
        if let Some(cells) = &self.cells {
            cells.store(0, &self.stats);
        }
    }
}

impl Drop for ConnectorCounters {
    fn drop(&mut self) {
        if let Some(cells) = self.cells.take()
            && self.created_in.is_current()
        {
            cells.end();
        }
    }
}
