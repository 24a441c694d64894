//! The memory of a connection, as one of its ends uses it.

use crate::error::Broken;
use crate::layout::Sizes;
use crate::memory::Memory;
use crate::ring::ENTRY_WORDS;
use std::sync::Arc;
use telpher_mem::SharedMapping;
use telpher_os::Lineage;

/// The rule that a forked child breaks.
const FORKED: Broken = Broken { rule: "it belongs to the parent of this process" };
/// The rule that is broken when pages of the memory file are gone.
pub(crate) const LOST: Broken = Broken { rule: "the system has no memory for it" };
/// The rule that is broken by a count of taken entries.
pub(crate) const WRONG_COUNT: Broken = Broken { rule: "the peer has taken entries that do not exist" };

/// The memory of a connection, as one of its ends uses it, and the first rule that was broken there.
#[derive(Debug)]
pub struct ConnectionMemory {
    memory: Memory,
    created_in: Lineage,
    broken: Option<Broken>,
    /// The position of the ring of messages.
    messages_at: usize,
}

impl ConnectionMemory {
    pub(crate) fn new(memory: Memory) -> ConnectionMemory {
        let messages_at = usize::try_from(memory.sizes().messages()).expect("x86-64: a usize has 64 bits");
        ConnectionMemory { memory, created_in: Lineage::current(), broken: None, messages_at }
    }

    /// Returns an error once a rule was broken, and in a forked child.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Broken> {
        match self.broken {
            Some(broken) => Err(broken),
            None if !self.created_in.is_current() => Err(FORKED),
            None => Ok(()),
        }
    }

    /// Remembers the first rule that was broken, and returns it.
    #[cold]
    pub(crate) fn broke(&mut self, broken: Broken) -> Broken {
        *self.broken.get_or_insert(broken)
    }

    /// Checks that no page of the file was lost so far.
    #[inline]
    pub(crate) fn check_whole(&mut self) -> Result<(), Broken> {
        if self.is_whole() { Ok(()) } else { Err(self.broke(LOST)) }
    }

    #[inline]
    pub(crate) fn sizes(&self) -> &Sizes {
        self.memory.sizes()
    }

    /// Fetches the cache line of a message's entry, which this side writes later.
    #[inline]
    pub(crate) fn prefetch_entry_for_write(&self, index: usize) {
        self.memory.mapping().prefetch_for_write(self.entry(index));
    }

    /// Fetches the cache line of a message's entry, which this side reads later.
    #[inline]
    pub(crate) fn prefetch_entry(&self, index: usize) {
        self.memory.mapping().prefetch(self.entry(index));
    }

    /// Returns the position of a message's entry.
    #[inline]
    fn entry(&self, index: usize) -> usize {
        self.messages_at + index * ENTRY_WORDS * size_of::<u64>()
    }

    /// Returns the address of a position in the memory.
    #[inline]
    pub(crate) fn address(&self, at: u64) -> u64 {
        self.memory.address(at)
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn slots(&self) -> u16 {
        u16::try_from(self.sizes().slots).expect("checked")
    }

    /// Returns the bytes of a slot.
    #[must_use]
    pub fn slot_bytes(&self) -> u32 {
        self.sizes().slot_bytes
    }

    /// Returns the bytes of the longest eager message.
    #[inline]
    #[must_use]
    pub fn eager_bytes(&self) -> u32 {
        self.sizes().eager_bytes
    }

    /// Returns the mapping, which exists as long as the value: for a device that still accesses a slot.
    #[must_use]
    pub fn mapping(&self) -> &Arc<SharedMapping> {
        self.memory.mapping()
    }

    /// True if no page of the memory was lost so far. Bytes that were copied before a loss may be zeros that the peer
    /// never wrote, so check it after the copy of a payload or a slot.
    #[inline]
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.memory.mapping().is_whole()
    }
}
