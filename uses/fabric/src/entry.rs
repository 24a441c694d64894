//! What the entries of a connection's two rings say. An entry is one cache line; its first word belongs to the ring.
//!
//! ```text
//! messages, sender to receiver:   Eager | Announce | Piece | Abort
//! answers, receiver to sender:    Matched | SlotsFree | Received
//! ```
//!
//! A longer message: `Announce` ─► (some `Piece`s ahead of the answer) ─► `Matched` ─► `Piece`… ─► `Received`.
//! Each `Piece` is freed by `SlotsFree`. Pieces may come in any order, since devices finish in any order.

/// Bytes of a message that an entry can carry itself.
pub const INLINE_BYTES: usize = 32;

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
}

/// The most slots in one `SlotsFree`.
pub const MOST_SLOTS_FREE: usize = 24;
