//! Bytes that several owners share: data under way between sockets, engines and backends.

use smallvec::SmallVec;
use std::ops::Range;
use telpher_mem::SharedBytes;

/// Bytes that are not changed any more, and that several owners may read.
pub type Shared = SharedBytes;

/// A part of shared bytes.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The bytes.
    pub bytes: Shared,
    /// The part.
    pub range: Range<usize>,
}

/// The data of a read, in its order. A single segment, as most short reads have, needs no allocation.
pub type Segments = SmallVec<[Segment; 1]>;

impl Segment {
    /// All of `bytes`.
    #[must_use]
    pub fn whole(bytes: Vec<u8>) -> Segment {
        let range = 0..bytes.len();
        Segment { bytes: Shared::new(bytes), range }
    }

    /// The bytes of the part.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }

    /// Reads a byte of each page, and returns false if the bytes are in a file that has lost pages. Pages of zeroes are
    /// in their place then.
    #[must_use]
    pub fn probe(&self) -> bool {
        match &self.bytes {
            Shared::Blocks(run) => run.probe(),
            Shared::Heap(_) => true,
        }
    }

    /// Returns false if the bytes are in a file that has lost pages: what was read of them may be zeroes that no host
    /// wrote.
    #[must_use]
    pub fn has_all_pages(&self) -> bool {
        match &self.bytes {
            Shared::Blocks(run) => run.is_whole(),
            Shared::Heap(_) => true,
        }
    }
}
