//! What a connector reports.

use crate::address::Address;
use crate::error::FabricError;
use crate::incoming::Incoming;
use crate::outgoing::Outgoing;

/// Numbers a connection of a [`Connector`]; numbers are never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u64);

/// Does the work of an endpoint when a peer wakes it.
pub trait Progress: Send + Sync {
    /// Called on the helper thread, which holds no lock. It must not wait for the helper thread.
    fn progress(&self);
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
        /// The peer, as it calls itself. Its user and machine were checked.
        from: Address,
        /// The receiving end.
        incoming: Incoming,
    },
    /// The peer's process has ended, or it closed the connection. Messages that it sent before may still be in the
    /// ring.
    Died {
        /// The connection.
        id: ConnectionId,
    },
}

/// What a connector has counted since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ConnectorStats {
    /// Connections that peers accepted.
    pub connected: u64,
    /// Connections that were accepted from peers.
    pub accepted: u64,
    /// Attempts of other users that were refused.
    pub refused_users: u64,
    /// Attempts that were refused for other reasons, such as another version or a file that can shrink.
    pub refused: u64,
    /// Connections that ended because the peer ended or closed them.
    pub died: u64,
    /// Times that peers woke the helper thread.
    pub woken: u64,
}
