//! The sender's end of a connection.

use crate::access::own_memory;
use crate::buffer::Segments;
use crate::connection_memory::{ConnectionMemory, LOST, WRONG_COUNT};
use crate::entry::{Answer, INLINE_BYTES, Message};
use crate::error::{Broken, PushError};
use crate::layout::{ANSWERS_TAKEN, Given, MESSAGES_TAKEN, PayloadPlaces};
use crate::memory::Memory;
use crate::ring::{Consumer, ENTRY_WORDS, Producer};
use crate::wire;
use telpher_mem::{Local, SharedWords64, Space, WriteHint};

/// Entries between the one that is written and the one that is fetched to be written later. Source: chosen; several
/// transfers of a line overlap.
const WRITTEN_AHEAD: u64 = 4;

/// The sender's end of a connection: pushes messages, takes answers. One thread at a time uses it.
#[derive(Debug)]
pub struct Outgoing {
    messages: Producer<SharedWords64>,
    answers: Consumer<SharedWords64>,
    places: PayloadPlaces,
    /// For each entry of the ring, the payload bytes that were given up to it.
    given: Box<[Given]>,
    /// Payload bytes, of those that were given, that the receiver has released.
    released: Given,
    local: Local,
    memory: ConnectionMemory,
}

impl Outgoing {
    pub(crate) fn new(memory: Memory) -> Outgoing {
        let sizes = *memory.sizes();
        let entries = usize::try_from(sizes.ring_entries).expect("checked");
        let ring = |at| memory.words(at, entries * ENTRY_WORDS);
        Outgoing {
            messages: Producer::new(ring(sizes.messages()), memory.words(MESSAGES_TAKEN, 1)),
            answers: Consumer::new(ring(sizes.answers()), memory.words(ANSWERS_TAKEN, 1)),
            places: PayloadPlaces::new(&sizes),
            given: vec![Given::default(); entries].into(),
            released: Given::default(),
            local: own_memory(),
            memory: ConnectionMemory::new(memory),
        }
    }

    /// Returns the memory of the connection.
    #[inline]
    #[must_use]
    pub fn memory(&self) -> &ConnectionMemory {
        &self.memory
    }

    /// Pushes a message. `payload` are the bytes that travel with it ([`Message::payload`]). They are copied before
    /// this returns.
    ///
    /// # Errors
    /// [`PushError`]: nothing was pushed.
    #[inline]
    pub fn push(&mut self, message: &Message, payload: &Segments) -> Result<(), PushError> {
        self.memory.check()?;
        match self.messages.has_room() {
            Ok(true) => {}
            Ok(false) => return Err(PushError::Full),
            Err(_) => return Err(self.memory.broke(WRONG_COUNT).into()),
        }
        let mut inline = [0; INLINE_BYTES];
        let mut given = self.places.given();
        let (len, inline_bytes) = message.payload();
        if len != payload.len() || len > u64::from(self.memory.eager_bytes()) {
            return Err(PushError::WrongLength { len: payload.len() });
        }
        if len > inline_bytes as u64 {
            given = self.write_payload(payload)?;
        } else if len > 0 {
            self.read_inline(payload, &mut inline)?;
        }
        let entry = wire::encode_message(message, &inline);
        self.given[self.messages.index()] = given;
        self.places.advance(given);
        self.messages.push(&entry);
        // The receiver's core has the line from the lap before. Taken away in time, no store waits for the line, nor
        // does the next atomic instruction of this core, which waits for all stores.
        self.memory.prefetch_entry_for_write(self.messages.index_after(WRITTEN_AHEAD));
        // An entry on a lost page does not reach the peer.
        self.check_memory()?;
        Ok(())
    }

    /// Reads the bytes of a short message.
    #[inline]
    fn read_inline(&self, payload: &Segments, inline: &mut [u8; INLINE_BYTES]) -> Result<(), PushError> {
        let mut rest = &mut inline[..];
        for buffer in payload.as_slice() {
            // The sum of the lengths was checked.
            let Ok(len) = usize::try_from(buffer.len()) else { break };
            let Some(part) = rest.split_off_mut(..len) else { break };
            let read = self.local.read(buffer.address(), part);
            read.map_err(|fault| PushError::BadBuffer { address: fault.address })?;
        }
        Ok(())
    }

    /// Writes the bytes of a longer eager message to an area for payloads. Returns the bytes given up to its end.
    fn write_payload(&mut self, payload: &Segments) -> Result<Given, PushError> {
        let len = u32::try_from(payload.len()).map_err(|_| PushError::WrongLength { len: payload.len() })?;
        let (at, given) = self.places.next(len);
        if !self.places.has_room(given, self.released) {
            self.messages.refresh().map_err(|_| self.memory.broke(WRONG_COUNT))?;
            self.released = self.messages.last_taken().map_or(Given::default(), |index| self.given[index]);
            if !self.places.has_room(given, self.released) {
                return Err(PushError::Full);
            }
        }
        let mut to = self.memory.address(at);
        for buffer in payload.as_slice() {
            let moved = self.local.move_forward(to, buffer.address(), buffer.len(), WriteHint::Cache);
            moved.map_err(|fault| match fault.write {
                false => PushError::BadBuffer { address: fault.address },
                true => PushError::Broken(self.memory.broke(LOST)),
            })?;
            to += buffer.len();
        }
        self.check_memory()?;
        Ok(given)
    }

    /// Takes the next answer, if there is one. One load of shared memory if not.
    ///
    /// # Errors
    /// The receiver broke the protocol, or this is a forked child.
    #[inline]
    pub fn next_answer(&mut self) -> Result<Option<Answer>, Broken> {
        self.memory.check()?;
        let entry = self.answers.peek();
        // After the access: a page that was lost reads as zeros, which are no entry.
        self.check_memory()?;
        let Some(entry) = entry else { return Ok(None) };
        let answer = wire::decode_answer(&entry, self.memory.sizes()).map_err(|broken| self.memory.broke(broken))?;
        self.answers.release();
        Ok(Some(answer))
    }

    /// Checks that no page of the file was lost so far. Bytes that were copied before a loss may be zeros that the peer
    /// never wrote, so it is called after the copy of a slot.
    ///
    /// # Errors
    /// A page was lost.
    #[inline]
    pub fn check_memory(&mut self) -> Result<(), Broken> {
        self.memory.check_whole()
    }

    /// Returns the address of a slot; indices from [`slots`](ConnectionMemory::slots) on start again with 0.
    #[must_use]
    pub fn slot(&self, index: u16) -> u64 {
        let sizes = self.memory.sizes();
        let index = u64::from(u32::from(index) & (sizes.slots - 1));
        self.memory.address(sizes.slots_start() + index * u64::from(sizes.slot_bytes))
    }
}
