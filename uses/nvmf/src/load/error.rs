//! How a load ends early.

use super::stamp::StampError;
use crate::initiator::HostError;
use crate::status::Status;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Why a load did not start, or why one of its connections ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No TCP connection.
    #[error("cannot connect to {address}")]
    Connect {
        /// The target's address.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// The connection failed.
    #[error("the connection to the target failed")]
    Io(#[from] io::Error),
    /// The target closed the connection.
    #[error("the target closed the connection")]
    Closed,
    /// The target did not answer in time.
    #[error("the target did not complete {what} within {} seconds", patience.as_secs_f64())]
    Late {
        /// The command.
        what: &'static str,
        /// How long the load waited.
        patience: Duration,
    },
    /// The target violated the protocol.
    #[error("the target violated the protocol")]
    Protocol(#[from] HostError),
    /// The target ended the connection with C2HTermReq.
    #[error("the target ended the connection: C2HTermReq with FES {fes:02x}h and FEI {fei:08x}h")]
    Terminated {
        /// FES.
        fes: u16,
        /// FEI.
        fei: u32,
    },
    /// A command failed.
    #[error("{what} failed with {status:?}")]
    Status {
        /// The command.
        what: &'static str,
        /// Its status.
        status: Status,
    },
    /// The target cannot be used as the options ask.
    #[error("{0}")]
    Unusable(String),
    /// The digest of a read's data does not match, or data is missing although the status is good.
    #[error("the data of the read of {blocks} blocks from block {first} is incomplete or does not match its digest")]
    Damaged {
        /// The first block.
        first: u64,
        /// The number of blocks.
        blocks: u32,
    },
    /// A block has other bytes than those that were written.
    #[error("block {block} is wrong")]
    WrongBlock {
        /// The block.
        block: u64,
        /// What is wrong.
        source: StampError,
    },
}
