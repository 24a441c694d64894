//! Why a call was refused.

use crate::address::Address;
use std::io;
use telpher_mem::{MapError, SharedError};

/// Why a call was refused. Nothing was started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The connection or the queue of waiting sends is full: call again after some completions.
    #[error("the connection to {to} is full; fetch completions and call again")]
    Full {
        /// The peer.
        to: Address,
    },
    /// The address belongs to another machine.
    #[error("{address} is on another machine; telpher carries messages within one machine only")]
    OtherMachine {
        /// The address.
        address: Address,
    },
    /// The address belongs to another user.
    #[error("{address} belongs to another user; both processes must have the same user")]
    OtherUser {
        /// The address.
        address: Address,
    },
    /// The peer has ended, or its connection was closed.
    #[error("{address} cannot be reached: its process has ended, or it closed the connection")]
    Unreachable {
        /// The address.
        address: Address,
    },
    /// The peer refused the connection.
    #[error("{address} refused the connection: {reason}")]
    Refused {
        /// The address.
        address: Address,
        /// Why.
        reason: &'static str,
    },
    /// No peer has this number.
    #[error("peer {number} is not known; insert its address first")]
    UnknownPeer {
        /// The number.
        number: u64,
    },
    /// No message is claimed under this context.
    #[error("no message is claimed with the context {context:#x}; probe for one first")]
    NotClaimed {
        /// The context.
        context: u64,
    },
    /// A message is claimed under this context already.
    #[error("a message is claimed with the context {context:#x} already; receive or discard it first")]
    AlreadyClaimed {
        /// The context.
        context: u64,
    },
    /// A region has this key already.
    #[error("a region has the key {key:#x} already; close it first, or choose another key")]
    KeyInUse {
        /// The key.
        key: u64,
    },
    /// The atomic operation does not exist, or its buffers have wrong lengths.
    #[error(
        "the type has no such atomic operation, or a buffer has another length than the elements; see Atomic::exists"
    )]
    WrongAtomic,
    /// A limit of the configuration would be exceeded.
    #[error("{what} would exceed the limit of {limit}; {advice}")]
    Limit {
        /// What was asked for.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// What helps.
        advice: &'static str,
    },
    /// A size of the configuration is outside its limits.
    #[error(
        "the {what} is {value}; it must be {}{least} to {most}",
        if *is_power_of_two { "a power of two from " } else { "from " }
    )]
    WrongSize {
        /// Which size.
        what: &'static str,
        /// Its value.
        value: u32,
        /// The least value.
        least: u32,
        /// The largest value.
        most: u32,
        /// True if it must be a power of two.
        is_power_of_two: bool,
    },
    /// The memory of the connection cannot be created or used.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The process was forked after it opened the endpoint.
    #[error("the endpoint belongs to the parent of this process; open one after the fork")]
    Forked,
    /// The endpoint was closed.
    #[error("the endpoint is closed")]
    Closed,
    /// The system refused a call.
    #[error("cannot {action}")]
    System {
        /// What was attempted.
        action: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl Address {
    /// Checks whether an endpoint with this address can reach another one.
    pub(crate) fn check_reaches(&self, to: &Address) -> Result<(), FabricError> {
        if to.boot != self.boot {
            return Err(FabricError::OtherMachine { address: *to });
        }
        if to.user != self.user {
            return Err(FabricError::OtherUser { address: *to });
        }
        Ok(())
    }
}

/// The peer broke a rule of the protocol, or the connection's memory was lost. The connection cannot be used any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the connection is broken: {rule}")]
pub struct Broken {
    /// What happened against the rules.
    pub rule: &'static str,
}

/// Why an entry was not pushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// The ring or its payload area is full. Push again later.
    #[error("the connection is full")]
    Full,
    /// The caller's buffer cannot be read.
    #[error("the buffer at {address:#x} cannot be accessed")]
    BadBuffer {
        /// The first byte that could not be read.
        address: u64,
    },
    /// The payload is not as long as the message says, or too long for an eager message.
    #[error("{len} bytes of payload were given for a message of another length, or the message is too long")]
    WrongLength {
        /// Bytes of the payload.
        len: u64,
    },
    /// The connection is broken.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// Why a file cannot be the memory of a connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The system refused a call.
    #[error("cannot {action} the memory of a connection")]
    System {
        /// What was attempted.
        action: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file can change its size, so the peer could take pages away.
    #[error("the file is not sealed against changes of its size, or sealed against writing")]
    WrongSeals,
    /// The file has another size than its layout needs.
    #[error("the file has {len} bytes instead of {expected}")]
    WrongLength {
        /// Bytes of the file.
        len: u64,
        /// Bytes of the layout.
        expected: u64,
    },
    /// The file cannot be mapped.
    #[error(transparent)]
    Shared(#[from] SharedError),
    /// The mapping cannot be kept out of forked children.
    #[error(transparent)]
    Map(#[from] MapError),
}
