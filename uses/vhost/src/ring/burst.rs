//! A burst of chains taken from a ring, and the addresses of their buffers.

use super::Dropped;
use crate::{GuestMemory, Piece};
use std::sync::Arc;

/// The most descriptors of a chain that the fast path follows. Source: chosen, more than a header and a packet's few
/// parts.
const MOST_PLAIN: u16 = 8;
/// Pieces reserved per chain. Source: a header and a packet.
const PIECES_AHEAD: usize = 2;

/// One descriptor of a plain chain.
pub(super) struct Step {
    /// The chain's identifier, valid in its last descriptor.
    pub(super) id: u16,
    pub(super) piece: Piece,
    /// The chain continues.
    pub(super) more: bool,
}

/// The descriptors of plain chains, one after another. A trait and not a closure, because its methods can be marked for
/// inlining.
pub(super) trait Steps {
    /// The next descriptor, which starts a chain or continues one. `None` if there is none, or if it is not plain.
    fn step(&mut self, begins: bool) -> Option<Step>;

    /// How many ring entries a chain of this many descriptors occupies.
    fn places(descriptors: u16) -> u16;
}

/// A chain taken from a ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chain {
    /// The identifier under which it is returned.
    pub id: u16,
    /// How many descriptors of the ring it occupies.
    pub descriptors: u16,
    /// Its range in the burst's pieces: the first index, and the first index after it.
    pub(super) pieces: [u32; 2],
    /// The total length of its pieces in bytes.
    pub len: u32,
    /// Why it has no pieces, if it could not be followed.
    pub dropped: Option<Dropped>,
}

/// Chains taken together, in the driver's order. The vectors keep their capacity, so a poll loop allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Burst {
    pub(super) chains: Vec<Chain>,
    pub(super) pieces: Vec<Piece>,
    /// How many of the first chains have exactly one piece each.
    plain: usize,
    /// The memory of all its pieces, kept mapped so that they stay valid.
    memory: Option<Arc<GuestMemory>>,
}

impl Burst {
    /// Creates an empty burst with capacity for this many chains of one piece each.
    #[must_use]
    pub fn with_capacity(chains: usize) -> Burst {
        Burst { chains: Vec::with_capacity(chains), pieces: Vec::with_capacity(chains), plain: 0, memory: None }
    }

    /// The chains in order.
    #[must_use]
    pub fn chains(&self) -> &[Chain] {
        &self.chains
    }

    /// The memory of its pieces; `None` before anything was taken. Code that accesses pieces keeps a reference to it.
    #[must_use]
    pub fn memory(&self) -> Option<&Arc<GuestMemory>> {
        self.memory.as_ref()
    }

    /// A chain's pieces in order, without empty ones.
    #[must_use]
    pub fn pieces(&self, chain: &Chain) -> &[Piece] {
        let [from, to] = chain.pieces;
        &self.pieces[from as usize..to as usize]
    }

    /// The first chains and their pieces, as long as each has exactly one piece.
    #[inline]
    pub(crate) fn plain(&self) -> impl Iterator<Item = (&Chain, &Piece)> {
        self.chains[..self.plain].iter().zip(&self.pieces)
    }

    /// Returns whether the first chain has exactly one piece.
    #[inline]
    pub(crate) fn has_plain(&self) -> bool {
        self.plain > 0
    }

    /// Extends the count of plain chains by new ones.
    fn count_plain(&mut self) {
        // A dropped chain has no piece, so the pieces of the chains after it have other indices.
        let at = self.plain..;
        let is_plain = |(at, chain): &(usize, &Chain)| chain.pieces.map(|piece| piece as usize) == [*at, at + 1];
        self.plain += at.zip(&self.chains[self.plain..]).take_while(is_plain).count();
    }

    /// The pieces of all chains.
    #[inline]
    pub(crate) fn all_pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Removes all chains.
    pub fn clear(&mut self) {
        self.chains.clear();
        self.pieces.clear();
        self.plain = 0;
    }

    /// Sets the memory of its pieces.
    ///
    /// # Panics
    /// If it has chains in other memory.
    #[inline]
    pub(super) fn lie_in(&mut self, memory: &Arc<GuestMemory>) {
        if !self.memory.as_ref().is_some_and(|mine| Arc::ptr_eq(mine, memory)) {
            assert!(self.chains.is_empty(), "a burst has chains of one memory only; clear it first");
            self.memory = Some(Arc::clone(memory));
        }
    }

    /// Appends up to `most` chains that are one descriptor and one piece each, as long as `steps` yields such. Returns
    /// how many.
    #[inline]
    pub(super) fn extend_short<S: Steps>(&mut self, most: usize, mut steps: S) -> usize {
        self.chains.reserve(most);
        self.pieces.reserve(most);
        let mut place = self.place();
        let all_plain = self.plain == self.chains.len();
        let mut taken = 0;
        // No `push`, which checks the capacity each time.
        let room = self.chains.spare_capacity_mut().iter_mut().zip(self.pieces.spare_capacity_mut()).take(most);
        for (chain, piece) in room {
            let Some(Step { id, piece: found, more: false }) = steps.step(true) else { break };
            piece.write(found);
            // Less than 2³²: all earlier indices were, and the reserved vector fits in memory.
            let after = place.wrapping_add(1);
            chain.write(Chain { id, descriptors: 1, pieces: [place, after], len: found.len, dropped: None });
            place = after;
            taken += 1;
        }
        // SAFETY: the first `taken` elements after the length were just written, in both vectors.
        unsafe {
            self.chains.set_len(self.chains.len() + taken);
            self.pieces.set_len(self.pieces.len() + taken);
        }
        if all_plain {
            self.plain += taken;
        }
        taken
    }

    /// Appends up to `most` chains with one piece per descriptor, as long as `steps` yields descriptors, with at most
    /// `most_descriptors` descriptors in all. Ignores an unfinished chain at the end. Returns the number of chains and
    /// of descriptors.
    #[inline]
    pub(super) fn extend_long<S: Steps>(
        &mut self,
        most: usize,
        most_descriptors: usize,
        mut steps: S,
    ) -> (usize, usize) {
        self.chains.reserve(most);
        self.pieces.reserve(PIECES_AHEAD * most);
        let begun = self.place();
        let (mut place, mut taken) = (begun, 0);
        let (mut descriptors, mut len) = (0, 0_u32);
        let mut chains = self.chains.spare_capacity_mut().iter_mut().take(most);
        let mut slot = chains.next();
        for piece in self.pieces.spare_capacity_mut().iter_mut().take(most_descriptors) {
            if slot.is_none() || descriptors == MOST_PLAIN {
                break;
            }
            let Some(step) = steps.step(descriptors == 0) else { break };
            piece.write(step.piece);
            let Some(sum) = len.checked_add(step.piece.len) else { break };
            descriptors += 1;
            len = sum;
            if step.more {
                continue;
            }
            // Less than 2³²: all earlier indices were, and the reserved vector fits in memory.
            let after = place.wrapping_add(descriptors.into());
            if let Some(slot) = slot {
                let places = S::places(descriptors);
                slot.write(Chain { id: step.id, descriptors: places, pieces: [place, after], len, dropped: None });
            }
            slot = chains.next();
            (place, descriptors, len) = (after, 0, 0);
            taken += 1;
        }
        let descriptors = (place - begun) as usize;
        // SAFETY: the first `taken` chains after the length were just written, and as many pieces as those have
        // descriptors.
        unsafe {
            self.chains.set_len(self.chains.len() + taken);
            self.pieces.set_len(self.pieces.len() + descriptors);
        }
        self.count_plain();
        (taken, descriptors)
    }

    /// Appends a chain with the pieces from `start` on; without pieces if it could not be followed.
    pub(super) fn push(&mut self, id: u16, descriptors: u16, start: usize, followed: Result<u32, Dropped>) {
        let (len, dropped) = match followed {
            Ok(len) => (len, None),
            Err(reason) => {
                self.pieces.truncate(start);
                (0, Some(reason))
            }
        };
        let end = self.place();
        // Cannot exceed `end`, which was just counted.
        let start = u32::try_from(start).unwrap_or(end);
        self.chains.push(Chain { id, descriptors, pieces: [start, end], len, dropped });
        self.count_plain();
    }

    /// The index of the next piece.
    #[inline]
    fn place(&self) -> u32 {
        u32::try_from(self.pieces.len()).expect("fewer than 2³² pieces in a burst")
    }

    pub(super) fn truncate(&mut self, keep: usize) {
        let pieces = self.chains.get(keep).map_or(self.pieces.len(), |chain| chain.pieces[0] as usize);
        self.chains.truncate(keep);
        self.pieces.truncate(pieces);
        self.plain = self.plain.min(keep);
    }
}
