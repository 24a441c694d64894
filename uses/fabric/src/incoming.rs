//! The receiver's end of a connection.

use crate::connection_memory::{ConnectionMemory, WRONG_COUNT};
use crate::entry::{Answer, Message};
use crate::error::{Broken, PushError};
use crate::layout::{ANSWERS_TAKEN, Given, LINE_BYTES, MESSAGES_TAKEN, PayloadPlaces};
use crate::memory::Memory;
use crate::offered::OfferedFile;
use crate::peer_files::{PeerFile, PeerFiles};
use crate::ring::{Consumer, ENTRY_WORDS, Producer};
use crate::wire::{self, Inline};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use telpher_mem::SharedWords64;

/// Cache lines of a payload that are fetched before the payload is used. Source: assumed; the copy fetches the others.
const PREFETCHED_LINES: u64 = 16;

/// Bytes of the next payload that are fetched with each poll. Source: measured with `examples/ring_cost.rs` on two near
/// CPUs of an Intel Xeon: one line saves a third of the time of 64 bytes; longer messages stay within 2 %.
const POLLED_BYTES: u32 = 64;

/// The most entries that are fetched ahead. Source: chosen; several transfers of a line overlap.
const READ_AHEAD: u64 = 4;

/// What the helper thread and the owner of a receiver's end share.
#[derive(Debug)]
pub(crate) struct Inbound {
    /// True if the peer waits and an event says so.
    pub(crate) waits: AtomicBool,
    /// The files in memory that the peer shows.
    pub(crate) files: PeerFiles,
    /// Counts the connections from peers whose memory is mapped.
    count: Arc<AtomicUsize>,
}

impl Inbound {
    /// Counts another connection.
    pub(crate) fn counted_by(count: &Arc<AtomicUsize>) -> Inbound {
        // Relaxed: only the number matters.
        count.fetch_add(1, Ordering::Relaxed);
        Inbound { waits: AtomicBool::new(false), files: PeerFiles::default(), count: Arc::clone(count) }
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The receiver's end of a connection: takes messages, pushes answers. One thread at a time uses it.
#[derive(Debug)]
pub struct Incoming {
    messages: Consumer<SharedWords64>,
    answers: Producer<SharedWords64>,
    places: PayloadPlaces,
    /// Where the payload of the next message begins, if it is a short one.
    next_payload: u64,
    /// Payload bytes whose release the sender knows of.
    published: Given,
    /// Entries that were found one after the other, without a look that found none.
    in_a_row: u64,
    inbound: Arc<Inbound>,
    memory: ConnectionMemory,
}

/// The bytes that travel with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload {
    /// A copy of the bytes that the entry had; the message's length says how many count.
    Inline(Inline),
    /// Bytes in the connection's memory, which the peer may still change. They are valid until [`Arrived`] is dropped.
    Shared {
        /// The address of the first byte.
        address: u64,
        /// Bytes.
        len: u32,
    },
}

/// A message that has arrived. Dropping it releases its entry and its payload to the sender.
#[derive(Debug)]
pub struct Arrived<'a> {
    incoming: &'a mut Incoming,
    /// The payload bytes that are given up to the end of this message's.
    given: Given,
    message: Message,
    payload: Payload,
}

impl Arrived<'_> {
    /// Returns the message; all its fields are within the limits of the connection.
    #[inline]
    #[must_use]
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Returns the bytes that travel with the message; [`Payload::Inline`] if there are none.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// Returns the address of a slot; `None` if there is none with this index.
    #[must_use]
    pub fn slot(&self, index: u16) -> Option<u64> {
        self.incoming.slot(index)
    }

    /// Leaves the message in the ring: [`Incoming::next_message`] returns it again.
    pub fn leave(self) {
        std::mem::forget(self);
    }
}

impl Drop for Arrived<'_> {
    #[inline]
    fn drop(&mut self) {
        self.incoming.release(self.given);
    }
}

impl Incoming {
    pub(crate) fn new(memory: Memory, inbound: Arc<Inbound>) -> Incoming {
        let sizes = *memory.sizes();
        let entries = usize::try_from(sizes.ring_entries).expect("checked");
        let ring = |at| memory.words(at, entries * ENTRY_WORDS);
        Incoming {
            messages: Consumer::new(ring(sizes.messages()), memory.words(MESSAGES_TAKEN, 1)),
            answers: Producer::new(ring(sizes.answers()), memory.words(ANSWERS_TAKEN, 1)),
            places: PayloadPlaces::new(&sizes),
            next_payload: sizes.payload(),
            published: Given::default(),
            in_a_row: 0,
            inbound,
            memory: ConnectionMemory::new(memory),
        }
    }

    /// Returns the memory of the connection.
    #[inline]
    #[must_use]
    pub fn memory(&self) -> &ConnectionMemory {
        &self.memory
    }

    /// Returns the next message, if there is one. One load and one prefetch of shared memory if not.
    ///
    /// # Errors
    /// The sender broke the protocol, or this is a forked child.
    #[inline]
    pub fn next_message(&mut self) -> Result<Option<Arrived<'_>>, Broken> {
        self.memory.check()?;
        // So the transfer of its first line overlaps with that of the entry.
        self.prefetch(self.next_payload, POLLED_BYTES);
        let entry = self.messages.peek();
        // After the access: a page that was lost reads as zeros, which are no entry.
        self.memory.check_whole()?;
        let Some(entry) = entry else {
            self.in_a_row = 0;
            return Ok(None);
        };
        self.prefetch_entries();
        let (message, inline) =
            wire::decode_message(&entry, self.memory.sizes()).map_err(|broken| self.memory.broke(broken))?;
        let mut given = self.places.given();
        let payload = match message.payload() {
            // The length is at most that of an eager message, so it fits.
            (len, inline_bytes) if len > inline_bytes as u64 => {
                let len = u32::try_from(len).expect("checked by the decoder");
                let at;
                (at, given) = self.places.next(len);
                self.prefetch(at, len);
                Payload::Shared { address: self.memory.address(at), len }
            }
            _ => Payload::Inline(inline),
        };
        Ok(Some(Arrived { incoming: self, given, message, payload }))
    }

    /// Fetches the lines of the next entries while this one is handled: the one that is looked at next, and further
    /// ones after several entries in a row. The sender may have yet to write a line that is fetched; its store then
    /// waits for the line, so few are fetched.
    #[inline]
    fn prefetch_entries(&mut self) {
        self.in_a_row += 1;
        let ahead = self.in_a_row.min(READ_AHEAD);
        self.memory.prefetch_entry(self.messages.index_after(ahead));
        if ahead > 1 {
            self.memory.prefetch_entry(self.messages.index_after(ahead - 1));
        }
    }

    /// Fetches the first lines of a payload at once, so that their transfers overlap.
    #[inline]
    fn prefetch(&self, at: u64, len: u32) {
        for line in 0..u64::from(len).div_ceil(LINE_BYTES).min(PREFETCHED_LINES) {
            #[allow(clippy::cast_possible_truncation, reason = "x86-64: a usize has 64 bits")]
            self.memory.mapping().prefetch((at + line * LINE_BYTES) as usize);
        }
    }

    /// Releases the entry that `next_message` returned. The sender learns of it when a quarter of the ring or of an
    /// area for payloads is free.
    #[inline]
    fn release(&mut self, given: Given) {
        if given != self.places.given() {
            self.places.advance(given);
            (self.next_payload, _) = self.places.next(1);
        }
        self.messages.release();
        if self.places.has_quarter(self.published) {
            self.published = given;
            self.messages.publish();
        }
    }

    /// Tells the sender now of all entries that were taken.
    pub(crate) fn publish_taken(&mut self) {
        self.published = self.places.given();
        self.messages.publish();
    }

    /// Lets the next wake of the peer become an event,
    /// [`ConnectorEvent::PeerWaits`](crate::ConnectorEvent::PeerWaits).
    pub fn clear_wait(&self) {
        // Relaxed: the queue of events orders what the peer wrote before.
        self.inbound.waits.store(false, Ordering::Relaxed);
    }

    /// Returns the file and the address of bytes that the peer offers; `None` if it has not shown them, or if the
    /// packet that shows them has not come yet.
    pub(crate) fn offered_bytes(&self, offered: &OfferedFile, len: u64) -> Option<(Arc<PeerFile>, u64)> {
        self.inbound.files.get(offered, len)
    }

    /// Pushes an answer.
    ///
    /// # Errors
    /// [`PushError::Full`], or [`PushError::Broken`] if the sender broke the protocol or this is a forked child.
    pub fn push_answer(&mut self, answer: &Answer) -> Result<(), PushError> {
        self.memory.check()?;
        match self.answers.has_room() {
            Ok(true) => self.answers.push(&wire::encode_answer(answer)),
            Ok(false) => return Err(PushError::Full),
            Err(_) => return Err(self.memory.broke(WRONG_COUNT).into()),
        }
        Ok(())
    }

    /// Returns the address of a slot; `None` if there is none with this index.
    #[inline]
    #[must_use]
    pub fn slot(&self, index: u16) -> Option<u64> {
        self.memory.sizes().slot(index).map(|at| self.memory.address(at))
    }
}
