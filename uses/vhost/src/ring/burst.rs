//! Chains as they were taken, and where their buffers are.

use super::Dropped;
use crate::Piece;
use std::ops::Range;

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
}

impl Burst {
    /// An empty one with room for so many chains of one piece each.
    #[must_use]
    pub fn with_capacity(chains: usize) -> Burst {
        Burst { chains: Vec::with_capacity(chains), pieces: Vec::with_capacity(chains) }
    }

    /// Its chains.
    #[must_use]
    pub fn chains(&self) -> &[Chain] {
        &self.chains
    }

    /// Where a chain's buffers are, in their order; empty ones are left out. Valid as long as the ring's memory is kept.
    #[must_use]
    pub fn pieces(&self, chain: &Chain) -> &[Piece] {
        &self.pieces[chain.pieces.clone()]
    }

    /// Forgets its chains.
    pub fn clear(&mut self) {
        self.chains.clear();
        self.pieces.clear();
    }

    pub(super) fn truncate(&mut self, keep: usize) {
        let pieces = self.chains.get(keep).map_or(self.pieces.len(), |chain| chain.pieces.start);
        self.chains.truncate(keep);
        self.pieces.truncate(pieces);
    }
}
