#![doc = include_str!("../README.md")]
//!
//! # Map
//!
//! ```text
//! Endpoint            one address; sends and receives; ends each operation with one Completion
//!   request           what its callers ask
//!   state             its peers and their connections; one pass over everything that may move
//!   receives          posted receives, kept messages, and the completions of both
//!     matching        finds the receive for a message, and the message for a receive
//!   sender, receiver  the protocols of one connection: eager, and pieces through slots
//!     accesses        accesses to the receiver's memory, at the sender
//!     serving         the same at the receiver
//!     atomics         what atomic operations compute, and how they are done on memory
//!     output          what messages and accesses share at the sender: the ring and the slots
//!   regions           the memory of this process that peers may access
//!   access_counters   counters of these accesses
//!   operation_counters  counters of the operations of the callers
//!   reports           completions and counts of the operations
//!   stores            chooses the stores that fill slots, by the time that they took
//!   ways              chooses between pieces and pulls, by the time that they took
//!   pull              the bytes of a message that the receiver reads where the sender has them
//!   shown_files       the files in memory that this process maps and shows to a peer
//!   copier            copies the pieces: CPU with or without caches, or a device through a channel of the mover
//! Connector           the Unix socket of an endpoint: opens and accepts connections, notices peers that die
//!   Outgoing          the sender's side of a connection: pushes entries, fills slots, takes answers
//!   Incoming          the receiver's side: takes entries, empties slots, pushes answers
//!     ring            one producer, one consumer, entries of a cache line
//!     entry, wire     what an entry says, and its words; every field of a peer is checked in `wire`
//!     connection_memory  what both ends use of the memory, and the first rule that was broken
//!     layout, memory  where the parts of a connection's memory are; the file, and the checks of a peer's file
//!   peer_files        the files in memory that a peer shows
//!   helper            the connector's thread: waits in epoll for sockets and for processes that end
//!     handshake       the two packets that open a connection
//! Address, Buffer, Config, FabricError, Number  values
//! ```
#![deny(unsafe_code)]

mod access;
mod access_counters;
mod accesses;
pub mod address;
pub mod atomics;
pub mod buffer;
pub mod collective;
pub mod completion;
pub mod config;
mod connection_memory;
mod connector;
pub mod copier;
pub mod endpoint;
pub mod entry;
pub mod error;
mod events;
mod handshake;
mod helper;
mod incoming;
mod layout;
mod link;
mod matching;
mod memory;
pub mod number;
pub mod offered;
mod operation_counters;
mod outgoing;
mod output;
mod peer_files;
mod peers;
mod pull;
mod queue;
mod receiver;
mod receives;
pub mod regions;
mod reports;
pub mod request;
mod ring;
mod sender;
mod serving;
mod shown_files;
mod socket;
mod state;
pub mod stats;
mod stores;
mod sync;
mod ways;
mod wire;

pub use access_counters::AccessCounters;
pub use address::Address;
pub use atomics::{Atomic, AtomicForm, AtomicOp};
pub use buffer::{Buffer, Segments};
pub use completion::{Completion, Failure, Operation};
pub use config::{Config, ProgressBy};
pub use connection_memory::ConnectionMemory;
pub use connector::{Connector, check_address};
pub use copier::{Copier, CopyChannel};
pub use endpoint::{Endpoint, Successes};
pub use error::{Broken, FabricError, MemoryError, PushError};
pub use events::{ConnectionId, ConnectorEvent, ConnectorStats, Progress};
pub use incoming::{Arrived, Incoming, Payload};
pub use link::link;
pub use number::Number;
pub use offered::{Offered, OfferedFile, OfferedMemory};
pub use operation_counters::{OperationCounter, OperationCounters};
pub use outgoing::Outgoing;
pub use regions::{AccessError, Permissions, Region, Regions};
pub use request::{
    AccessKind, AccessRequest, Completes, PeerId, ProbeAction, ProbeRequest, ReceiveRequest, RemoteAddress, SendEnd,
    SendRequest, TagMatch,
};
pub use stats::Stats;
