//! The block map: where each logical block is.

use super::file_layout::{HeaderError, MapFile};
use super::geometry::{Geometry, MAP_BLOCK, blocks_of, split};
use crate::status::Status;
use std::ops::Range;

/// The physical block of each logical block. Entries are a number from 1, or 0 for a block that reads as zeroes.
#[derive(Debug)]
pub(super) struct BlockMap {
    entries: Vec<u32>,
    allocated: usize,
    capacity: u64,
    /// The same map in a file, which is only written: what other programs write there is not read.
    file: Option<MapFile>,
}

/// Neighbouring bytes of a namespace that are also neighbours in memory.
#[derive(Debug)]
pub(super) struct Run {
    /// The physical blocks; `None` for zeroes.
    pub(super) blocks: Option<Range<u32>>,
    /// The bytes in these blocks.
    pub(super) bytes: Range<usize>,
}

impl BlockMap {
    /// A map of a namespace that reads as zeroes.
    pub(super) fn new(capacity: u64, file: Option<MapFile>) -> BlockMap {
        BlockMap { entries: vec![0; blocks_of(capacity)], allocated: 0, capacity, file }
    }

    /// The map in a file. `keep` marks a block as used, and returns false if that is not possible.
    pub(super) fn load(
        geometry: &Geometry,
        file: MapFile,
        mut keep: impl FnMut(u32) -> bool,
    ) -> Result<BlockMap, HeaderError> {
        let count = blocks_of(geometry.capacity);
        let entries: Vec<u32> = (0..count).map(|index| file.entry(index)).collect();
        if !file.is_whole() {
            return Err(HeaderError::Truncated);
        }
        let mut allocated = 0;
        for (index, &entry) in entries.iter().enumerate() {
            if entry > 0 {
                if !keep(entry - 1) {
                    return Err(HeaderError::Entry { block: index as u64, physical: entry - 1 });
                }
                allocated += 1;
            }
        }
        // The previous server may have ended while the namespace shrank.
        for index in count..blocks_of(geometry.most_capacity) {
            file.set_entry(index, 0);
        }
        Ok(BlockMap { entries, allocated, capacity: geometry.capacity, file: Some(file) })
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(super) fn allocated(&self) -> usize {
        self.allocated
    }

    /// The highest physical block of the map.
    pub(super) fn last_used(&self) -> Option<usize> {
        // The entries of a large new map have no memory yet.
        if self.allocated == 0 {
            return None;
        }
        let last = self.entries.iter().max().copied().unwrap_or(0) as usize;
        last.checked_sub(1)
    }

    /// Calls `each` with the ranges of the first `count` physical blocks that are not in the map.
    pub(super) fn each_gap(&self, count: usize, mut each: impl FnMut(Range<usize>)) {
        let mut used: Vec<u32> = Vec::with_capacity(self.allocated);
        if self.allocated > 0 {
            used.extend(self.entries.iter().copied().filter(|&entry| entry > 0));
        }
        used.sort_unstable();
        let mut next = 0;
        for entry in used {
            let block = entry as usize - 1;
            if block > next {
                each(next..block);
            }
            next = block + 1;
        }
        if count > next {
            each(next..count);
        }
    }

    pub(super) fn check(&self, start: u64, len: u64) -> Result<(), Status> {
        let fits = start.checked_add(len).is_some_and(|end| end <= self.capacity);
        if fits { Ok(()) } else { Err(Status::LBA_RANGE) }
    }

    /// The physical block of a logical block; `None` for zeroes, and behind the end.
    pub(super) fn get(&self, index: usize) -> Option<u32> {
        self.entries.get(index)?.checked_sub(1)
    }

    /// Replaces an entry, and returns the old one.
    pub(super) fn swap(&mut self, index: usize, block: Option<u32>) -> Option<u32> {
        let entry = block.map_or(0, |block| block + 1);
        let old = std::mem::replace(&mut self.entries[index], entry);
        if let Some(file) = &self.file
            && old != entry
        {
            file.set_entry(index, entry);
        }
        self.allocated = self.allocated + usize::from(entry > 0) - usize::from(old > 0);
        old.checked_sub(1)
    }

    /// The blocks of this range read as zeroes from now on. The old blocks are appended to `released`. Entries that are
    /// empty already are only read.
    pub(super) fn clear(&mut self, indices: Range<usize>, released: &mut Vec<u32>) {
        if self.allocated == 0 {
            return;
        }
        for index in indices {
            if self.entries[index] > 0 {
                released.extend(self.swap(index, None));
            }
        }
    }

    /// Returns whether the map's file has lost no page, as far as it was accessed. True without a file.
    pub(super) fn is_whole(&self) -> bool {
        self.file.as_ref().is_none_or(MapFile::is_whole)
    }

    /// Calls `each` with the runs of a range of bytes, in their order. The range was checked.
    pub(super) fn each_run(&self, start: u64, len: u64, mut each: impl FnMut(Run)) {
        if len == 0 {
            return;
        }
        let ((first, from), (last, to)) = (split(start), split(start + len - 1));
        let entries = &self.entries[first..=last];
        let mut position = 0;
        while let Some(&entry) = entries.get(position) {
            let is_next = |offset: usize, next: u32| {
                if entry == 0 { next == 0 } else { next as usize == entry as usize + offset }
            };
            let rest = entries[position..].iter().enumerate();
            let count = rest.take_while(|&(offset, &next)| is_next(offset, next)).count();
            let begin = if position == 0 { from } else { 0 };
            let end = if position + count == entries.len() { to + 1 } else { MAP_BLOCK };
            let blocks = entry.checked_sub(1).map(|block| {
                // A run has as many blocks as a part of the map, whose physical blocks fit a u32.
                block..block + u32::try_from(count).expect("fewer than 2^31 blocks")
            });
            each(Run { blocks, bytes: begin..(count - 1) * MAP_BLOCK + end });
            position += count;
        }
    }

    /// Changes the capacity. Blocks behind a smaller end are appended to `released`.
    pub(super) fn resize(&mut self, capacity: u64, released: &mut Vec<u32>) {
        let count = blocks_of(capacity);
        if let Some(file) = &mut self.file {
            file.set_capacity(capacity);
        }
        self.capacity = capacity;
        self.clear(count..self.entries.len().max(count), released);
        self.entries.resize(count, 0);
    }
}
