//! Where the parts of a group's memory are.
//!
//! ```text
//! page 0          the word that says that a member has failed
//! members         the counts of each
//! slots           of each member, then those for results
//! ```

use super::counts::{MEMBER_WORDS, SLOTS, slot_of};
use telpher_mem::PAGE_BYTES;

/// The longest chunk. Source: chosen; the slots of two members fit in a second-level cache of 1 MiB.
pub(crate) const CHUNK_BYTES: u64 = 64 << 10;
/// The position of the word that says that a member has failed.
pub(crate) const FAILED: u64 = 0;

/// The positions of a group of this size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub(crate) members: usize,
}

impl Layout {
    /// Returns the position of a member's counts.
    pub(crate) fn counts(self, member: usize) -> u64 {
        PAGE_BYTES + (member * MEMBER_WORDS * size_of::<u64>()) as u64
    }

    /// Returns the position of a member's slot for a chunk.
    #[inline]
    pub(crate) fn slot(self, member: usize, chunk: u64) -> u64 {
        debug_assert!(member <= self.members);
        let start = self.counts(self.members).next_multiple_of(PAGE_BYTES);
        start + (member * SLOTS + slot_of(chunk)) as u64 * CHUNK_BYTES
    }

    /// Returns the position of the result of a chunk.
    #[inline]
    pub(crate) fn result(self, chunk: u64) -> u64 {
        self.slot(self.members, chunk)
    }

    /// Returns the bytes of the whole memory.
    pub(crate) fn total(self) -> u64 {
        self.slot(self.members, SLOTS as u64 - 1) + CHUNK_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        for members in [1, 2, 3, 64] {
            let layout = Layout { members };
            let mut parts = vec![(FAILED, 8)];
            parts.extend((0..members).map(|member| (layout.counts(member), MEMBER_WORDS as u64 * 8)));
            for chunk in 0..SLOTS as u64 {
                parts.extend((0..members).map(|member| (layout.slot(member, chunk), CHUNK_BYTES)));
                parts.push((layout.result(chunk), CHUNK_BYTES));
                assert_eq!(layout.slot(0, chunk), layout.slot(0, chunk + SLOTS as u64));
                assert!(layout.slot(0, chunk).is_multiple_of(PAGE_BYTES));
            }
            parts.sort_unstable();
            assert!(parts.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            assert_eq!(parts.last().map(|(at, len)| at + len), Some(layout.total()));
        }
    }
}
