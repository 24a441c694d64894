//! What the entries of a connection's two rings say. An entry is one cache line; its first word belongs to the ring.
//!
//! ```text
//! messages, sender to receiver:   Eager | Announce | Offer | Piece | Abort
//! accesses, sender to receiver:   Write | WritePiece | ReadPiece | ReadEnd | Atomic
//! answers, receiver to sender:    Matched | SlotsFree | Received | Prefers | Accessed
//! ```
//!
//! A longer message: `Announce` ─► (some `Piece`s ahead of the answer) ─► `Matched` ─► `Piece`… ─► `Received`.
//! Each `Piece` is freed by `SlotsFree`. Pieces may come in any order, since devices finish in any order.
//!
//! An offered message: `Offer` ─► the receiver reads the bytes ─► `Received`; or `Matched`, and on as above.
//!
//! An access to the receiver's memory: each entry names the whole range, is done at once, and is answered with
//! `Accessed`. So the receiver remembers nothing of it. The slot of a piece is the sender's again after the answer.
//! A receiver that counts accesses says so in the answers to pieces. Then a `Write` of no bytes, or a `ReadEnd`,
//! follows the last answer, and the receiver counts that.

use crate::atomics::{Atomic, AtomicForm};
use crate::offered::Offered;
use crate::regions::{AccessError, RemoteRange};

/// Bytes of a message that an entry can carry itself.
pub const INLINE_BYTES: usize = 32;

/// Bytes of an access that an entry can carry itself.
pub const ACCESS_INLINE_BYTES: usize = 24;

/// Numbers the longer messages of a connection; the sender chooses, and reuses it after `Received`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MessageId(pub u32);

/// What matching needs to know of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// True for tagged messages; they match tagged receives only.
    pub is_tagged: bool,
    /// The tag; 0 for untagged messages.
    pub tag: u64,
    /// A word that the sender attached for the completion of the receive.
    pub data: Option<u64>,
    /// Length of the message in bytes.
    pub len: u64,
}

/// From the sender to the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    /// A whole message. Up to [`INLINE_BYTES`] bytes are in the entry, otherwise all are in the payload area.
    Eager {
        /// The message.
        envelope: Envelope,
        /// The number by which it is answered with `Received` when it is matched; `None` for most messages.
        wants_answer: Option<MessageId>,
    },
    /// A longer message; its bytes follow in pieces.
    Announce {
        /// The message.
        envelope: Envelope,
        /// Its number.
        id: MessageId,
    },
    /// A longer message; its bytes wait where they are until it is answered.
    Offer {
        /// The message.
        envelope: Envelope,
        /// Its number.
        id: MessageId,
        /// Where the bytes are.
        at: Offered,
    },
    /// Bytes of an announced message, in a slot.
    Piece {
        /// The message.
        id: MessageId,
        /// The slot that holds them, from its start.
        slot: u16,
        /// Bytes in the slot; not 0.
        len: u32,
        /// The position of the first byte in the message.
        offset: u64,
    },
    /// The sender cannot read its own buffer, so an announced message ends here.
    Abort {
        /// The message.
        id: MessageId,
    },
    /// Bytes for the receiver's memory. Up to [`ACCESS_INLINE_BYTES`] bytes are in the entry, otherwise all are in the
    /// payload area. Without bytes it may be the end of a write that went in pieces.
    Write {
        /// The access.
        id: AccessId,
        /// The memory.
        range: RemoteRange,
        /// A word for the completion of the receiver, which has one only then.
        data: Option<u64>,
    },
    /// Bytes for a part of a range of the receiver's memory, in a slot.
    WritePiece(AccessPiece),
    /// The receiver shall put a part of a range of its memory into a slot.
    ReadPiece(AccessPiece),
    /// A read of no bytes, or the end of one that went in pieces.
    ReadEnd {
        /// The access.
        id: AccessId,
    },
    /// The receiver shall do an atomic operation. Up to [`ACCESS_INLINE_BYTES`] bytes of operands are in the entry,
    /// otherwise all are in the payload area.
    Atomic(AtomicEntry),
}

/// An atomic operation on the receiver's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEntry {
    /// The access.
    pub id: AccessId,
    /// The memory; a multiple of the size of the type.
    pub range: RemoteRange,
    /// The operation.
    pub atomic: Atomic,
    /// The slot for the elements as they were before, if the sender wants them.
    pub slot: Option<u16>,
}

impl AtomicEntry {
    /// Returns how the operation is called.
    #[must_use]
    pub fn form(&self) -> AtomicForm {
        match self.slot {
            None => AtomicForm::Plain,
            Some(_) if self.atomic.op.compares() => AtomicForm::Compare,
            Some(_) => AtomicForm::Fetch,
        }
    }
}

/// Numbers the accesses of a connection; the sender chooses, and reuses it after the last answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AccessId(pub u32);

/// A part of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessPiece {
    /// The access.
    pub id: AccessId,
    /// The memory of the whole access.
    pub range: RemoteRange,
    /// The slot with the bytes, from its start.
    pub slot: u16,
    /// Bytes; not 0.
    pub len: u32,
    /// The position of the first byte in the range. The piece ends within it.
    pub offset: u64,
}

impl Message {
    /// Returns the bytes that travel with the message, and how many of these its entry can carry.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> (u64, usize) {
        match self {
            Message::Eager { envelope, .. } => (envelope.len, INLINE_BYTES),
            Message::Write { range, .. } => (range.len, ACCESS_INLINE_BYTES),
            Message::Atomic(entry) => (entry.atomic.operand_bytes(entry.range.len), ACCESS_INLINE_BYTES),
            _ => (0, 0),
        }
    }
}

/// From the receiver to the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// A receive matches the message; it takes this many bytes. The sender sends no byte from there on.
    Matched {
        /// The message.
        id: MessageId,
        /// Bytes that the receiver takes: the length of the message, or less if its buffer is shorter.
        len: u64,
    },
    /// The slots were emptied.
    SlotsFree {
        /// How many; 1 to [`MOST_SLOTS_FREE`].
        count: u8,
        /// The slots; those from `count` on are 0.
        slots: [u16; MOST_SLOTS_FREE],
    },
    /// The message was received, or dropped, as a whole.
    Received {
        /// The message.
        id: MessageId,
    },
    /// How the receiver wants to get messages of about a length.
    Prefers {
        /// How many bits the length has, less one.
        class: u8,
        /// True if the sender shall offer its memory.
        offers: bool,
    },
    /// An entry of an access was done or refused.
    Accessed(AccessAnswer),
}

/// An entry of an access was done or refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessAnswer {
    /// The access.
    pub id: AccessId,
    /// The slot of a piece.
    pub slot: Option<u16>,
    /// True for a piece if the receiver counts such accesses, and is to be told the end of this one.
    pub wants_end: bool,
    /// Why it was refused.
    pub result: Result<(), AccessError>,
}

/// The most slots in one `SlotsFree`.
pub const MOST_SLOTS_FREE: usize = 24;
