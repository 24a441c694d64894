//! Chains as they were taken, and where their buffers are.

use super::Dropped;
use crate::{GuestMemory, Piece};
use std::sync::Arc;

/// Descriptors of a chain that is followed in one step with its neighbours. Source: chosen, more than a header and a packet's few parts.
const MOST_PLAIN: u16 = 8;
/// Pieces that there is room for beside each chain. Source: a header and a packet.
const PIECES_AHEAD: usize = 2;

/// One descriptor of a plain chain.
pub(super) struct Step {
    /// The chain's identifier, if it is the last.
    pub(super) id: u16,
    pub(super) piece: Piece,
    /// The chain goes on.
    pub(super) more: bool,
}

/// The descriptors of plain chains, one after another. A trait, whose methods can be told to be part of the loop; closures are not.
pub(super) trait Steps {
    /// The next descriptor, of a chain that begins or goes on with it; none if there is none, or it is not plain.
    fn step(&mut self, begins: bool) -> Option<Step>;

    /// How many of the ring a chain of so many descriptors takes up.
    fn places(descriptors: u16) -> u16;
}

/// A chain that was taken from a ring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chain {
    /// By which it goes back.
    pub id: u16,
    /// How many descriptors of the ring it takes up.
    pub descriptors: u16,
    /// Its pieces in [`Burst::pieces`]: the first, and the first that is the next chain's.
    pub(super) pieces: [u32; 2],
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
    /// The first so many chains have one piece each.
    plain: usize,
    /// Where all its pieces lie; kept, so that they stay valid.
    memory: Option<Arc<GuestMemory>>,
}

impl Burst {
    /// An empty one with room for so many chains of one piece each.
    #[must_use]
    pub fn with_capacity(chains: usize) -> Burst {
        Burst { chains: Vec::with_capacity(chains), pieces: Vec::with_capacity(chains), plain: 0, memory: None }
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
        let [from, to] = chain.pieces;
        &self.pieces[from as usize..to as usize]
    }

    /// The first chains and their pieces, as long as each has one and no other.
    #[inline]
    pub(crate) fn plain(&self) -> impl Iterator<Item = (&Chain, &Piece)> {
        self.chains[..self.plain].iter().zip(&self.pieces)
    }

    /// Whether there are any such.
    #[inline]
    pub(crate) fn has_plain(&self) -> bool {
        self.plain > 0
    }

    /// Counts those of them that are new.
    fn count_plain(&mut self) {
        // One that was dropped has none, so that its neighbours' are not at their place.
        let at = self.plain..;
        let is_plain = |(at, chain): &(usize, &Chain)| chain.pieces.map(|piece| piece as usize) == [*at, at + 1];
        self.plain += at.zip(&self.chains[self.plain..]).take_while(is_plain).count();
    }

    /// All pieces, of all chains.
    #[inline]
    pub(crate) fn all_pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Forgets its chains.
    pub fn clear(&mut self) {
        self.chains.clear();
        self.pieces.clear();
        self.plain = 0;
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

    /// Appends chains of one descriptor that is one piece each, as long as there are steps to such, at most `most`. Returns how many.
    #[inline]
    pub(super) fn extend_short<S: Steps>(&mut self, most: usize, mut steps: S) -> usize {
        self.chains.reserve(most);
        self.pieces.reserve(most);
        let mut place = self.place();
        let all_plain = self.plain == self.chains.len();
        let mut taken = 0;
        // No push, which looks whether there is room for each.
        let room = self.chains.spare_capacity_mut().iter_mut().zip(self.pieces.spare_capacity_mut()).take(most);
        for (chain, piece) in room {
            let Some(Step { id, piece: found, more: false }) = steps.step(true) else { break };
            piece.write(found);
            // Less than 2³²: so were those before, and what is reserved fits the memory.
            let after = place.wrapping_add(1);
            chain.write(Chain { id, descriptors: 1, pieces: [place, after], len: found.len, dropped: None });
            place = after;
            taken += 1;
        }
        // SAFETY: the first `taken` places behind the length were just written, in both.
        unsafe {
            self.chains.set_len(self.chains.len() + taken);
            self.pieces.set_len(self.pieces.len() + taken);
        }
        if all_plain {
            self.plain += taken;
        }
        taken
    }

    /// Appends chains of one piece a descriptor, as long as there are steps, at most `most` chains of so many descriptors in all. One that does not end is
    /// none. Returns how many chains, and of how many descriptors.
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
            // Less than 2³²: so were those before, and what is reserved fits the memory.
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
        // SAFETY: the first `taken` places behind the length were just written in the one, and in the other as many as those have descriptors.
        unsafe {
            self.chains.set_len(self.chains.len() + taken);
            self.pieces.set_len(self.pieces.len() + descriptors);
        }
        self.count_plain();
        (taken, descriptors)
    }

    /// A chain whose pieces are those from `start` on; none, if it could not be followed.
    pub(super) fn push(&mut self, id: u16, descriptors: u16, start: usize, followed: Result<u32, Dropped>) {
        let (len, dropped) = match followed {
            Ok(len) => (len, None),
            Err(reason) => {
                self.pieces.truncate(start);
                (0, Some(reason))
            }
        };
        let end = self.place();
        // Cannot be more than `end`, which was just counted.
        let start = u32::try_from(start).unwrap_or(end);
        self.chains.push(Chain { id, descriptors, pieces: [start, end], len, dropped });
        self.count_plain();
    }

    /// Where the next piece goes.
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
