//! How far a member of a group has come, in words that all members read.
//!
//! A count is the number of chunks, since the group was formed, that the member has brought to a stage. The member
//! writes the bytes of a chunk first and its count then, so a member that sees the count sees the bytes. Counts only
//! grow, and each is written by one member.

use crate::sync::{AtomicU64, Ordering};
use std::ops::Deref;

/// Slots of a member. Source: chosen; a member fills one while others reduce the one before, and two cover delays.
pub(crate) const SLOTS: usize = if cfg!(loom) { 2 } else { 4 };
/// Words of a member: cache lines of its own for each stage, at a distance of two, since some processors fetch pairs.
pub(crate) const MEMBER_WORDS: usize = 48;
/// The word of the count of filled chunks. The calls to which they belong follow it, one for each slot.
const FILLED: usize = 0;
const CALLS: usize = 1;
const REDUCED: usize = 16;
const TAKEN: usize = 32;
const _: () = assert!(CALLS + SLOTS <= REDUCED && TAKEN < MEMBER_WORDS);

/// What a member has done with a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Its slot has its bytes.
    Filled,
    /// It needs no other member's slot any more, and its part of the result is written.
    Reduced,
    /// It needs no result any more.
    Taken,
}

/// A member has counted chunks that cannot have got so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WrongCount;

/// The counts of one member.
#[derive(Clone, Debug)]
pub(crate) struct Counts<W> {
    words: W,
}

impl<W: Deref<Target = [AtomicU64]>> Counts<W> {
    /// Uses [`MEMBER_WORDS`] words, which are zero in the beginning.
    pub(crate) fn new(words: W) -> Counts<W> {
        debug_assert_eq!(words.len(), MEMBER_WORDS);
        Counts { words }
    }

    fn word(&self, stage: Stage) -> &AtomicU64 {
        &self.words[match stage {
            Stage::Filled => FILLED,
            Stage::Reduced => REDUCED,
            Stage::Taken => TAKEN,
        }]
    }

    /// States that this member has filled the slot of chunk `count - 1`, for this call.
    pub(crate) fn publish_filled(&self, call: u64, count: u64) {
        // Relaxed: published by the store below.
        self.words[CALLS + slot_of(count - 1)].store(call, Ordering::Relaxed);
        self.publish(Stage::Filled, count);
    }

    /// States that this member has brought `count` chunks to a stage.
    pub(crate) fn publish(&self, stage: Stage, count: u64) {
        // Release: pairs with the Acquire in `reached`. A member that sees the count sees the bytes that this member
        // wrote, and its own later writes come after this member's reads.
        self.word(stage).store(count, Ordering::Release);
    }

    /// Returns whether the member has brought `needed` chunks to a stage. It may have brought at most `most`.
    #[inline]
    pub(crate) fn reached(&self, stage: Stage, needed: u64, most: u64) -> Result<bool, WrongCount> {
        // Acquire: pairs with the Release in `publish`.
        let count = self.word(stage).load(Ordering::Acquire);
        if count > most { Err(WrongCount) } else { Ok(count >= needed) }
    }

    /// Returns the call to which a filled chunk belongs. The caller has seen that it is filled, and has not yet counted
    /// it as reduced.
    pub(crate) fn call(&self, chunk: u64) -> u64 {
        // Relaxed: written before the count that the caller has seen.
        self.words[CALLS + slot_of(chunk)].load(Ordering::Relaxed)
    }
}

/// Returns the slot of a chunk.
#[inline]
pub(crate) fn slot_of(chunk: u64) -> usize {
    #[allow(clippy::cast_possible_truncation, reason = "less than the number of slots")]
    {
        (chunk % SLOTS as u64) as usize
    }
}

/// Returns how many chunks must have left a slot before it can have this chunk.
#[inline]
pub(crate) fn before(chunk: u64) -> u64 {
    (chunk + 1).saturating_sub(SLOTS as u64)
}
