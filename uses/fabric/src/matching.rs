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
//! the lowest sequence number wins; programs use few classes. Tagged and untagged receives have queues of their own:
//! the buffers that MPICH keeps posted for its own messages are not looked at for those of the program. Kept messages
//! have up to 4 indexes, which are built when a receive of their class first searches. Receives of further classes
//! scan.

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
    /// The untagged ones, and the tagged ones. No message matches a receive of the other kind.
    receives: [Queue<Selector, R, 1>; 2],
    messages: Queue<MessageKey, M, MOST_INDEXES>,
    /// Counts what was posted and kept.
    next_sequence: u64,
}

/// Names a posted receive; it is never valid for another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReceiveId {
    is_tagged: bool,
    id: EntryId,
}

impl<R, M> Default for Matching<R, M> {
    fn default() -> Self {
        let receives = [Queue::default(), Queue::default()];
        Matching { receives, messages: Queue::default(), next_sequence: 0 }
    }
}

impl<R, M> Matching<R, M> {
    #[inline]
    fn next_sequence(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence
    }

    #[inline]
    fn receives(&mut self, is_tagged: bool) -> &mut Queue<Selector, R, 1> {
        &mut self.receives[usize::from(is_tagged)]
    }

    /// Posts a receive behind all others.
    pub(crate) fn post(&mut self, selector: Selector, value: R) -> ReceiveId {
        let (is_tagged, sequence) = (selector.tag.is_some(), self.next_sequence());
        ReceiveId { is_tagged, id: self.receives(is_tagged).push(selector, value, sequence) }
    }

    /// Finds the oldest posted receive that takes the message. It stays posted.
    pub(crate) fn receive_for(&mut self, key: &MessageKey) -> Option<ReceiveId> {
        let is_tagged = key.tag.is_some();
        Some(ReceiveId { is_tagged, id: self.receives(is_tagged).oldest_selector(key)? })
    }

    /// Takes the oldest posted receive out that takes the message, if the function accepts it. `None` also if there are
    /// many receives; see [`receive_for`](Matching::receive_for) then.
    #[inline]
    pub(crate) fn take_receive_for(&mut self, key: &MessageKey, accepts: impl FnOnce(&R) -> bool) -> Option<R> {
        self.receives(key.tag.is_some()).take_scanned(key, accepts)
    }

    /// Keeps a message behind all others.
    pub(crate) fn keep(&mut self, key: MessageKey, value: M) -> EntryId {
        let sequence = self.next_sequence();
        self.messages.push(key, value, sequence)
    }

    /// Finds the oldest kept message that the receive takes. It stays kept.
    #[inline]
    pub(crate) fn message_for(&mut self, selector: &Selector) -> Option<EntryId> {
        if self.messages.is_empty() { None } else { self.messages.oldest_message(selector) }
    }

    /// Returns the value of a posted receive.
    pub(crate) fn receive_mut(&mut self, of: ReceiveId) -> Option<&mut R> {
        self.receives(of.is_tagged).value_mut(of.id)
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
    pub(crate) fn remove_receive(&mut self, of: ReceiveId) -> Option<(Selector, R)> {
        self.receives(of.is_tagged).remove(of.id)
    }

    /// Takes a message out.
    pub(crate) fn remove_message(&mut self, id: EntryId) -> Option<(MessageKey, M)> {
        self.messages.remove(id)
    }

    /// Finds the oldest posted receive that the function accepts.
    pub(crate) fn find_receive(&self, mut accepts: impl FnMut(&Selector, &R) -> bool) -> Option<ReceiveId> {
        let [untagged, tagged] = self.receives.each_ref().map(|receives| receives.find(&mut accepts));
        let untagged = untagged.map(|id| ReceiveId { is_tagged: false, id });
        let tagged = tagged.map(|id| ReceiveId { is_tagged: true, id });
        untagged.into_iter().chain(tagged).min_by_key(|found| found.id.sequence())
    }

    /// Returns what the kept messages are matched by.
    pub(crate) fn kept_keys(&self) -> impl Iterator<Item = &MessageKey> {
        self.messages.keys()
    }

    /// Returns the number of posted receives.
    #[cfg(test)]
    pub(crate) fn posted(&self) -> usize {
        self.receives.iter().map(Queue::len).sum()
    }

    /// Returns the number of kept messages.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.messages.len()
    }
}
