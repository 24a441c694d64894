//! Chains as they were taken, and where their buffers are.

use super::Dropped;
use crate::{GuestMemory, Piece};
use std::ops::Range;
use std::sync::Arc;

/// A chain that was taken from a ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chain {
    /// By which it goes back.
    pub id: u16,
    /// How many descriptors of the ring it takes up.
    pub descriptors: u16,
    /// Its pieces in [`Burst::pieces`].
    pub(super) pieces: Range<usize>,
    /// Bytes of all pieces.
    pub len: u32,
    /// Why it has no pieces, if it could not be followed.
    pub dropped: Option<Dropped>,
}

/// Chains taken together, in the driver's order. Its vectors keep their room, so that a poll loop allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Burst {
    pub(super) chains: Vec<Chain>,
    pub(super) pieces: Vec<Piece>,
    /// Where all its pieces lie; kept, so that they stay valid.
    memory: Option<Arc<GuestMemory>>,
}

impl Burst {
    /// An empty one with room for so many chains of one piece each.
    #[must_use]
    pub fn with_capacity(chains: usize) -> Burst {
        Burst { chains: Vec::with_capacity(chains), pieces: Vec::with_capacity(chains), memory: None }
    }

    /// Its chains.
    #[must_use]
    pub fn chains(&self) -> &[Chain] {
        &self.chains
    }

    /// The memory its pieces lie in; `None` before anything was taken. Whoever touches pieces keeps a count of it.
    #[must_use]
    pub fn memory(&self) -> Option<&Arc<GuestMemory>> {
        self.memory.as_ref()
    }

    /// Where a chain's buffers are, in their order; empty ones are left out.
    #[must_use]
    pub fn pieces(&self, chain: &Chain) -> &[Piece] {
        &self.pieces[chain.pieces.clone()]
    }

    /// Forgets its chains.
    pub fn clear(&mut self) {
        self.chains.clear();
        self.pieces.clear();
    }

    /// Its pieces are of this memory from now on.
    ///
    /// # Panics
    /// If it has chains of another.
    #[inline]
    pub(super) fn lie_in(&mut self, memory: &Arc<GuestMemory>) {
        if !self.memory.as_ref().is_some_and(|mine| Arc::ptr_eq(mine, memory)) {
            assert!(self.chains.is_empty(), "a burst has chains of one memory only; clear it first");
            self.memory = Some(Arc::clone(memory));
        }
    }

    pub(super) fn truncate(&mut self, keep: usize) {
        let pieces = self.chains.get(keep).map_or(self.pieces.len(), |chain| chain.pieces.start);
        self.chains.truncate(keep);
        self.pieces.truncate(pieces);
    }
}
