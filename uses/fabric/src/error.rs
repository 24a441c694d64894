//! Why a call was refused.

use crate::address::Address;
use std::io;

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
    /// The process was forked after it opened the endpoint.
    #[error("the endpoint belongs to the parent of this process; open one after the fork")]
    Forked,
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
