//! How an operation ends.

use crate::address::Address;
use crate::regions::AccessError;

/// Which operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A send.
    Send,
    /// A receive.
    Receive,
    /// A probe (`peek`): it looked for a message and received nothing.
    Probe,
    /// A read of a peer's memory.
    Read,
    /// A write to a peer's memory.
    Write,
    /// An atomic operation on a peer's memory that returns nothing.
    Atomic,
    /// An atomic operation on a peer's memory that returns what was there before.
    FetchAtomic,
    /// A peer has written to the memory of this process, and attached a word.
    WrittenByPeer,
}

/// Why an operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The message was longer than the buffer; the first bytes were received.
    #[error("the message is longer than the receive buffer by {excess} bytes")]
    Truncated {
        /// Bytes that were dropped.
        excess: u64,
    },
    /// The caller canceled the receive.
    #[error("the receive was canceled")]
    Canceled,
    /// A probe found no message.
    #[error("no message matches")]
    NoMessage,
    /// The peer's process ended.
    #[error("the peer's process has ended")]
    PeerDied,
    /// The peer broke the protocol, so its connection was closed.
    #[error("the peer sent a message that breaks the protocol")]
    PeerBroken,
    /// The peer could not read its own buffer, so the rest of the message is missing.
    #[error("the sender could not read its own buffer")]
    SenderFailed,
    /// The peer did not take the connection.
    #[error("the peer refused the connection")]
    Refused,
    /// The peer did not permit the access to its memory, or could not do it.
    #[error("the peer did not access its memory: {0}")]
    Access(AccessError),
    /// The caller's buffer is not mapped, or not writable.
    #[error("the buffer at {address:#x} cannot be accessed")]
    BadBuffer {
        /// The first byte that could not be accessed.
        address: u64,
    },
}

/// The end of one operation. Every operation has exactly one, unless its caller asked for none on success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The caller's word for the operation.
    pub context: u64,
    /// Which operation it was.
    pub operation: Operation,
    /// True for tagged operations.
    pub is_tagged: bool,
    /// Bytes that were sent or received; for a probe, the length of the message.
    pub len: u64,
    /// The address of the received bytes: the start of the buffer, or a place within one for many messages.
    pub address: u64,
    /// The tag of the message that was received or found.
    pub tag: u64,
    /// The word that the sender attached.
    pub data: Option<u64>,
    /// The sender of a message that was received or found.
    pub source: Option<Address>,
    /// True if this completion releases a buffer for many messages.
    pub releases_buffer: bool,
    /// Success, or why not.
    pub result: Result<(), Failure>,
}
