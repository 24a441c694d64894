//! Sizes and positions: bytes of a namespace, its blocks, and the parts of its file.

/// Bytes of a block of the map. Writes of fewer bytes copy the rest of the block. Source: the page size.
pub const MAP_BLOCK: usize = 4096;

/// The smallest reserve: each quarter has room for the largest default transfer. Source: chosen.
pub const LEAST_RESERVE: u64 = 1 << 20;

/// Map blocks that one step clears. Source: chosen; 64 MiB, so that other requests wait less than a millisecond.
pub(super) const CLEARED_AT_ONCE: usize = 16 << 10;

/// The first word of the map in a file.
pub(super) const MAP_WORD: usize = 1024;

/// Alignment of the data in a file, for huge pages.
const DATA_ALIGNMENT: u64 = 2 << 20;

/// The sizes of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Geometry {
    /// Bytes of the namespace.
    pub(super) capacity: u64,
    /// Bytes that it may have.
    pub(super) most_capacity: u64,
    /// The number of physical blocks: those of the largest capacity, and the reserve.
    pub(super) physical: u64,
}

impl Geometry {
    /// Map words.
    pub(super) fn entries(&self) -> u64 {
        self.most_capacity.div_ceil(MAP_BLOCK as u64)
    }

    /// Blocks of the reserve.
    pub(super) fn reserve(&self) -> u64 {
        self.physical - self.entries()
    }

    /// The first byte of the data.
    pub(super) fn data_offset(&self) -> u64 {
        let map = (MAP_WORD as u64).saturating_add(self.entries()).saturating_mul(4);
        map.checked_next_multiple_of(DATA_ALIGNMENT).unwrap_or(u64::MAX)
    }

    /// Bytes of the file.
    pub(super) fn file_bytes(&self) -> u64 {
        self.data_offset().saturating_add(self.physical.saturating_mul(MAP_BLOCK as u64))
    }
}

/// The number of map blocks that hold `capacity` bytes.
pub(super) fn blocks_of(capacity: u64) -> usize {
    to_usize(capacity.div_ceil(MAP_BLOCK as u64))
}

/// Divides a position into the number of its block, and the offset in the block.
pub(super) fn split(position: u64) -> (usize, usize) {
    let offset = position % MAP_BLOCK as u64;
    (to_usize(position / MAP_BLOCK as u64), usize::try_from(offset).expect("below a block"))
}

/// A number of blocks; `BlockMemory` checks its size.
pub(super) fn to_usize(blocks: u64) -> usize {
    usize::try_from(blocks).unwrap_or(usize::MAX)
}
