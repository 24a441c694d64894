//! What a caller asks of an endpoint.

use crate::atomics::Atomic;
use crate::buffer::Segments;

/// Numbers the peers of an endpoint, from 0 in the order of their insertion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerId(pub u64);

/// Whether the success of an operation is reported. A failure always is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Completes {
    /// Success and failure are reported.
    #[default]
    Always,
    /// Only a failure is reported.
    OnError,
}

/// When a send is complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SendEnd {
    /// When the caller may change its buffer again. The message may not have been received yet.
    #[default]
    BufferFree,
    /// When the buffer is free and a receive matches the message.
    Matched,
    /// When the message is in the buffer of a receive as a whole, or was dropped by a probe.
    Received,
}

/// A message to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendRequest {
    /// The receiver.
    pub to: PeerId,
    /// The bytes.
    pub segments: Segments,
    /// The tag, or `None` for an untagged message.
    pub tag: Option<u64>,
    /// A word for the completion of the receive.
    pub data: Option<u64>,
    /// The caller's word for the operation.
    pub context: u64,
    /// Whether success is reported.
    pub completes: Completes,
    /// When the send is complete.
    pub end: SendEnd,
    /// True if the bytes are taken before the call returns, so that the caller may change the buffer at once.
    pub inject: bool,
}

/// Memory of a peer, without a length.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoteAddress {
    /// The key of the peer's region.
    pub key: u64,
    /// The address, as the region counts it.
    pub address: u64,
}

/// What an access does with the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessKind {
    /// It writes bytes there.
    Write {
        /// The bytes.
        from: Segments,
        /// A word for a completion of the peer, which has one only then, after the bytes are in its memory.
        data: Option<u64>,
    },
    /// It reads bytes there.
    Read {
        /// Where the bytes go.
        into: Segments,
    },
    /// It does an atomic operation on elements there. Atomic operations on a peer are done in the order of their calls.
    Atomic {
        /// The operation.
        atomic: Atomic,
        /// Bytes of the elements; at most [`Config::atomic_bytes`](crate::Config::atomic_bytes).
        len: u64,
        /// The operands, one for each element; none for a read.
        operands: Segments,
        /// The words to compare, one for each element, if the operation compares.
        compares: Segments,
        /// Where the elements go as they were before. Operations that read or compare need it.
        results: Option<Segments>,
    },
}

/// An access to the memory of a peer. It completes when the peer has done it, or refused it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessRequest {
    /// The peer.
    pub peer: PeerId,
    /// Where the peer's memory begins.
    pub remote: RemoteAddress,
    /// What is done.
    pub kind: AccessKind,
    /// The caller's word for the operation.
    pub context: u64,
    /// Whether success is reported.
    pub completes: Completes,
    /// True if the bytes to write, or the operands, are taken before the call returns, so that the caller may change
    /// the buffer at once.
    pub inject: bool,
}

/// The tags that a receive takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TagMatch {
    /// The tag.
    pub tag: u64,
    /// Bits that may differ.
    pub ignore: u64,
}

/// A buffer for messages to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiveRequest {
    /// The buffer. A buffer for many messages has one segment.
    pub segments: Segments,
    /// The sender, or `None` for any.
    pub from: Option<PeerId>,
    /// The tags, or `None` for untagged messages.
    pub tag: Option<TagMatch>,
    /// The caller's word for the operation.
    pub context: u64,
    /// Whether success is reported. The completion that releases a buffer for many messages always is.
    pub completes: Completes,
    /// `Some` for a buffer that receives messages one after the other, until fewer bytes than this are free.
    pub many: Option<u64>,
}

/// What a probe does with the message that it finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ProbeAction {
    /// It reports the message, which stays where it is.
    #[default]
    Look,
    /// It takes the message out of the matching. The caller receives or discards it by the probe's context.
    Claim,
    /// It drops the message.
    Discard,
}

/// A question whether a message has arrived. It never waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeRequest {
    /// The sender, or `None` for any.
    pub from: Option<PeerId>,
    /// The tags, or `None` for untagged messages.
    pub tag: Option<TagMatch>,
    /// The caller's word for the operation, and the name of the claimed message.
    pub context: u64,
    /// What happens to the message.
    pub action: ProbeAction,
}
