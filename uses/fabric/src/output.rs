//! What the messages and the accesses of a connection share at the sender: the ring, the entries that found it full,
//! and the slots.

use crate::buffer::Segments;
use crate::entry::{Answer, Message};
use crate::error::{Broken, PushError};
use crate::outgoing::Outgoing;
use crate::stores::Stores;
use std::collections::VecDeque;

/// The state of a slot. The message is that for which the slot counts as ahead of its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot {
    Free,
    /// It is filled with bytes of a message.
    Filling {
        id: u32,
        len: u32,
        offset: u64,
        ahead: bool,
    },
    /// The receiver has it, or will when its entry is pushed.
    Given {
        id: u32,
        ahead: bool,
    },
    /// An access has it.
    Access(AccessSlot),
}

/// A slot of an access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessSlot {
    pub(crate) id: u32,
    pub(crate) len: u32,
    pub(crate) offset: u64,
    pub(crate) step: AccessStep,
}

/// What happens to a slot of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AccessStep {
    /// It is filled with bytes to write.
    Filling,
    /// The receiver has it, or will when its entry is pushed.
    Asked,
    /// The bytes that were read are copied out of it.
    Emptying,
}

/// The outcome of an attempt to push a message.
pub(crate) enum Pushed {
    Done,
    Full,
    BadBuffer(u64),
}

/// The sender's end of a connection, and what it has of its own.
#[derive(Debug)]
pub(crate) struct Output {
    /// `None` until the connection is open.
    outgoing: Option<Outgoing>,
    /// Entries that found the ring full.
    ready: VecDeque<Message>,
    slots: Vec<Slot>,
    /// The one that was freed first is used first: by then its lines have left the caches of both cores, and come
    /// faster from a shared cache or memory than from the other core's own caches.
    free_slots: VecDeque<u16>,
    /// What fills the slots.
    pub(crate) stores: Stores,
    /// Slots that a copy fills or empties. A device may still do so when the connection has ended.
    pub(crate) copying: usize,
    pub(crate) has_ended: bool,
}

impl Output {
    pub(crate) fn new(streaming_bytes: u64) -> Output {
        Output {
            outgoing: None,
            ready: VecDeque::new(),
            slots: Vec::new(),
            free_slots: VecDeque::new(),
            stores: Stores::new(streaming_bytes),
            copying: 0,
            has_ended: false,
        }
    }

    /// The connection is open.
    pub(crate) fn connected(&mut self, outgoing: Outgoing) {
        self.slots = vec![Slot::Free; usize::from(outgoing.memory().slots())];
        self.free_slots = (0..outgoing.memory().slots()).collect();
        self.outgoing = Some(outgoing);
    }

    /// Checks that no page of the connection's memory was lost so far; see [`Outgoing::check_memory`].
    pub(crate) fn check_memory(&mut self) -> Result<(), Broken> {
        self.outgoing.as_mut().map_or(Ok(()), Outgoing::check_memory)
    }

    /// Returns the bytes of the longest message that travels in the ring, once the connection is open.
    #[inline]
    pub(crate) fn eager_bytes(&self) -> Option<u64> {
        self.outgoing.as_ref().map(|outgoing| outgoing.memory().eager_bytes().into())
    }

    /// Returns the bytes of a slot, once the connection is open.
    pub(crate) fn slot_bytes(&self) -> u64 {
        self.outgoing.as_ref().map_or(0, |outgoing| outgoing.memory().slot_bytes().into())
    }

    /// True if no entry waits for room.
    #[inline]
    pub(crate) fn is_clear(&self) -> bool {
        self.ready.is_empty()
    }

    /// True if the peer or a device has slots.
    pub(crate) fn uses_slots(&self) -> bool {
        self.free_slots.len() < self.slots.len()
    }

    /// Pushes an entry. Before the connection is open, it has no room.
    ///
    /// # Errors
    /// The connection is broken; the caller ends it. So for all functions below.
    #[inline]
    pub(crate) fn push(&mut self, message: &Message, payload: &Segments) -> Result<Pushed, Broken> {
        let Some(outgoing) = &mut self.outgoing else { return Ok(Pushed::Full) };
        match outgoing.push(message, payload) {
            Ok(()) => Ok(Pushed::Done),
            Err(PushError::Full) => Ok(Pushed::Full),
            Err(PushError::BadBuffer { address }) => Ok(Pushed::BadBuffer(address)),
            Err(PushError::Broken(broken)) => Err(broken),
            Err(PushError::WrongLength { .. }) => unreachable!("the message has the length of the segments"),
        }
    }

    /// Pushes an entry without payload, or lets it wait for room and returns [`Pushed::Full`].
    pub(crate) fn push_or_queue(&mut self, message: Message) -> Result<Pushed, Broken> {
        if self.ready.is_empty() && !matches!(self.push(&message, &Segments::default())?, Pushed::Full) {
            return Ok(Pushed::Done);
        }
        self.queue(message);
        Ok(Pushed::Full)
    }

    /// Lets an entry without payload wait for room.
    pub(crate) fn queue(&mut self, message: Message) {
        self.ready.push_back(message);
    }

    /// Pushes the next entry that found the ring full, and returns it. `None` if there is none, or no room.
    pub(crate) fn push_ready(&mut self) -> Result<Option<Message>, Broken> {
        let Some(message) = self.ready.front().copied() else { return Ok(None) };
        if matches!(self.push(&message, &Segments::default())?, Pushed::Full) {
            return Ok(None);
        }
        Ok(self.ready.pop_front())
    }

    /// Takes the next answer, if there is one.
    pub(crate) fn next_answer(&mut self) -> Result<Option<Answer>, Broken> {
        match &mut self.outgoing {
            Some(outgoing) => outgoing.next_answer(),
            None => Ok(None),
        }
    }

    /// Takes a free slot. Returns its number and its address.
    pub(crate) fn take_slot(&mut self, state: Slot) -> Option<(u16, u64)> {
        let outgoing = self.outgoing.as_ref()?;
        let slot = self.free_slots.pop_front()?;
        self.slots[usize::from(slot)] = state;
        Some((slot, outgoing.slot(slot)))
    }

    /// Frees a slot, and returns what it was used for.
    pub(crate) fn free_slot(&mut self, slot: u16) -> Slot {
        self.free_slots.push_back(slot);
        std::mem::replace(&mut self.slots[usize::from(slot)], Slot::Free)
    }

    /// Returns what a slot is used for; `None` if there is none with this number.
    pub(crate) fn slot(&self, slot: u16) -> Option<Slot> {
        self.slots.get(usize::from(slot)).copied()
    }

    /// Returns the address of a slot.
    pub(crate) fn slot_address(&self, slot: u16) -> u64 {
        self.outgoing.as_ref().map_or(0, |outgoing| outgoing.slot(slot))
    }

    /// Changes what a slot is used for.
    pub(crate) fn set_slot(&mut self, slot: u16, state: Slot) {
        self.slots[usize::from(slot)] = state;
    }

    /// Returns what all slots are used for.
    pub(crate) fn slots(&mut self) -> &mut [Slot] {
        &mut self.slots
    }

    /// Ends the connection: no entry is pushed any more.
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
        self.ready.clear();
    }
}
