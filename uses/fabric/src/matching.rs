//! Finds the receive for a message, and the message for a receive. No I/O and no memory of callers: values in order.
//!
//! ```text
//! message arrives ─► the oldest posted receive that matches, or the message is kept
//! receive posted  ─► the oldest kept message that matches, or the receive is posted
//! ```
//!
//! A receive names a source or any, and a tag with bits to ignore. Short queues are scanned from the front. Long ones
//! have an index for each *class* of receives: those that ignore the same bits, and name a source or do not. Within a
//! class a match is an equality, so each index is a hash table. A search looks into each class of posted receives, and
//! the lowest sequence number wins; programs use few classes. Kept messages have up to 4 indexes, which
//! are built when a receive of their class first searches. Receives of further classes scan.

mod key;
mod queue;
#[cfg(test)]
mod tests;

use queue::{MOST_INDEXES, Queue};

pub(crate) use key::{MessageKey, Selector, Source};
pub(crate) use queue::EntryId;

/// The posted receives, each with a value `R`, and the kept messages, each with a value `M`.
#[derive(Debug)]
pub(crate) struct Matching<R, M> {
    receives: Queue<Selector, R, 1>,
    messages: Queue<MessageKey, M, MOST_INDEXES>,
}

impl<R, M> Default for Matching<R, M> {
    fn default() -> Self {
        Matching { receives: Queue::default(), messages: Queue::default() }
    }
}

impl<R, M> Matching<R, M> {
    /// Posts a receive behind all others.
    pub(crate) fn post(&mut self, selector: Selector, value: R) -> EntryId {
        self.receives.push(selector, value)
    }

    /// Finds the oldest posted receive that takes the message. It stays posted.
    pub(crate) fn receive_for(&mut self, key: &MessageKey) -> Option<EntryId> {
        self.receives.oldest_selector(key)
    }

    /// Keeps a message behind all others.
    pub(crate) fn keep(&mut self, key: MessageKey, value: M) -> EntryId {
        self.messages.push(key, value)
    }

    /// Finds the oldest kept message that the receive takes. It stays kept.
    pub(crate) fn message_for(&mut self, selector: &Selector) -> Option<EntryId> {
        self.messages.oldest_message(selector)
    }

    /// Returns the value of a posted receive.
    pub(crate) fn receive_mut(&mut self, id: EntryId) -> Option<&mut R> {
        self.receives.value_mut(id)
    }

    /// Returns a kept message.
    pub(crate) fn message(&self, id: EntryId) -> Option<(&MessageKey, &M)> {
        self.messages.entry(id)
    }

    /// Returns the value of a kept message.
    pub(crate) fn message_mut(&mut self, id: EntryId) -> Option<&mut M> {
        self.messages.value_mut(id)
    }

    /// Takes a receive out.
    pub(crate) fn remove_receive(&mut self, id: EntryId) -> Option<(Selector, R)> {
        self.receives.remove(id)
    }

    /// Takes a message out.
    pub(crate) fn remove_message(&mut self, id: EntryId) -> Option<(MessageKey, M)> {
        self.messages.remove(id)
    }

    /// Finds the oldest posted receive that the function accepts.
    pub(crate) fn find_receive(&self, accepts: impl FnMut(&Selector, &R) -> bool) -> Option<EntryId> {
        self.receives.find(accepts)
    }

    /// Returns what the kept messages are matched by.
    pub(crate) fn kept_keys(&self) -> impl Iterator<Item = &MessageKey> {
        self.messages.keys()
    }

    /// Returns the number of posted receives.
    #[cfg(test)]
    pub(crate) fn posted(&self) -> usize {
        self.receives.len()
    }

    /// Returns the number of kept messages.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.messages.len()
    }
}
