//! What a server reports: counters of its loop and queues, and events for a log.

use super::socket_engine::SocketEngine;
use crate::connection::Ending;
use crate::digest::Digests;
use crate::stats::{LoopStats, Stats};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

/// The queue that a host has connected.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct QueueName {
    /// The NQN of the subsystem.
    pub subsystem: String,
    /// The NQN of the host.
    pub host: String,
    /// CNTLID.
    pub controller: u16,
    /// The queue; 0 for the admin queue.
    pub qid: u16,
}

/// A connection that is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueReport {
    /// The host's address.
    pub peer: SocketAddr,
    /// The queue, if the host has connected one.
    pub queue: Option<QueueName>,
    /// The digests.
    pub digests: Digests,
    /// Entries of the queue.
    pub entries: u32,
    /// Commands that have not completed.
    pub open_commands: u32,
    /// Its counters.
    pub stats: Stats,
}

/// The counters of one loop.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LoopReport {
    /// Those of the loop itself.
    pub stats: LoopStats,
    /// What moves the bytes of its sockets, never [`SocketEngine::Auto`].
    pub socket_engine: SocketEngine,
    /// The open connections.
    pub queues: Vec<QueueReport>,
    /// The sums of the connections that have ended, by the NQN of their subsystem; the empty name for connections
    /// without a queue.
    pub ended: BTreeMap<String, Stats>,
}

/// What happens to connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerEvent {
    /// A host has connected a queue.
    Connected {
        /// The host's address.
        peer: SocketAddr,
        /// The queue.
        queue: QueueName,
        /// The digests.
        digests: Digests,
    },
    /// A host was refused because it may not use the subsystem.
    HostRefused {
        /// The host's address.
        peer: SocketAddr,
        /// The NQN of the host.
        host: String,
    },
    /// An error of a host ended its connection.
    Failed {
        /// The host's address.
        peer: SocketAddr,
        /// The queue, if the host had connected one.
        queue: Option<QueueName>,
        /// The error.
        ending: Ending,
    },
    /// A connection with a queue has closed.
    Closed {
        /// The host's address.
        peer: SocketAddr,
        /// The queue.
        queue: QueueName,
        /// Why the target closed it; `None` if the host did.
        ending: Option<Ending>,
    },
    /// A connection was closed because there were as many as allowed.
    TooMany {
        /// The host's address.
        peer: SocketAddr,
    },
    /// The loop starts with epoll, because the kernel refuses it the io_uring that [`Server::use_sockets`] has tried.
    ///
    /// [`Server::use_sockets`]: super::Server::use_sockets
    NoRing {
        /// The kernel's error.
        error: String,
    },
    /// The kernel refused a socket for a connection, or to wait for the next one. It is asked again after a pause.
    NotAccepted {
        /// The kernel's error.
        error: String,
    },
}

/// Gets the events of a server, on the thread of its loop. It may not wait.
pub trait Observer: Send + Sync + fmt::Debug {
    /// Takes an event.
    fn observe(&self, event: ServerEvent);
}
