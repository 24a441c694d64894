//! A namespace in memory, with a block map.
//!
//! Blocks are immutable once they are in the map. A write fills free blocks and then switches the map, under one lock:
//! a reader sees all of the write or nothing of it. A read takes references to the blocks, so the bytes that were
//! digested are the bytes that are sent, whatever is written in the meantime (spdk/spdk #2845). An overwritten block is
//! freed when its last reader has sent it.

use crate::engine::{JobId, Segment, Shared};
use crate::status::Status;
use crate::storage::{Piece, Started, Storage, StorageRequest, StorageResult};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Bytes of a block of the map. Writes of fewer bytes copy the rest of the block. Source: the page size.
pub const MAP_BLOCK: usize = 4096;

/// A block map; `None` reads as zeroes.
#[derive(Debug)]
struct Map {
    blocks: Vec<Option<Shared>>,
    capacity: u64,
}

/// A backend in anonymous memory. It allocates a block when it is first written.
#[derive(Debug)]
pub struct MemoryStorage {
    map: RwLock<Map>,
    zeroes: Shared,
}

fn blocks_of(capacity: u64) -> usize {
    usize::try_from(capacity.div_ceil(MAP_BLOCK as u64)).unwrap_or(usize::MAX)
}

impl MemoryStorage {
    /// A backend of this capacity in bytes, all zeroes. The map takes 8 bytes a block at once.
    #[must_use]
    pub fn new(capacity: u64) -> MemoryStorage {
        let map = Map { blocks: vec![None; blocks_of(capacity)], capacity };
        MemoryStorage { map: RwLock::new(map), zeroes: Shared::new(vec![0; MAP_BLOCK]) }
    }

    /// The number of blocks that have memory.
    #[must_use]
    pub fn allocated_blocks(&self) -> usize {
        self.read_map().blocks.iter().flatten().count()
    }

    // A thread that panicked while it held the lock left a valid map: every change is a switch of whole blocks.
    fn read_map(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_map(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, start: u64, len: u64) -> StorageResult {
        let map = self.read_map();
        map.check(start, len)?;
        let mut segments = Vec::with_capacity(blocks_of(len) + 1);
        each_block(start, len, |index, range| {
            let bytes = map.blocks[index].as_ref().unwrap_or(&self.zeroes);
            segments.push(Segment { bytes: Shared::clone(bytes), range });
        });
        Ok(segments)
    }

    fn write(&self, start: u64, pieces: Vec<Piece>) -> StorageResult {
        let len = pieces.iter().map(|piece| piece.len() as u64).sum();
        // Whole blocks are built before the lock is taken.
        let mut ready = Vec::with_capacity(pieces.len());
        let mut position = start;
        for piece in pieces {
            let bytes = piece.len() as u64;
            match piece {
                Piece::Blocks(blocks) if position.is_multiple_of(MAP_BLOCK as u64) => {
                    for (number, block) in blocks.into_iter().enumerate() {
                        let at = position + (number * MAP_BLOCK) as u64;
                        ready.push((at, Segment::whole(block)));
                    }
                }
                Piece::Blocks(blocks) => ready.push((position, Segment::whole(blocks.concat()))),
                Piece::Bytes(segment) => ready.push((position, segment)),
            }
            position += bytes;
        }
        let mut map = self.write_map();
        map.check(start, len)?;
        for (position, segment) in ready {
            map.put(position, &segment, &self.zeroes);
        }
        Ok(Vec::new())
    }

    fn clear(&self, ranges: &[(u64, u64)]) -> StorageResult {
        let mut map = self.write_map();
        for &(start, len) in ranges {
            map.check(start, len)?;
        }
        for &(start, len) in ranges {
            each_block(start, len, |index, range| {
                let Some(block) = &mut map.blocks[index] else { return };
                if range.len() == MAP_BLOCK {
                    map.blocks[index] = None;
                } else {
                    Shared::make_mut(block)[range].fill(0);
                }
            });
        }
        Ok(Vec::new())
    }
}

/// Calls `each` with every block of a range of bytes, and the part of the block.
fn each_block(start: u64, len: u64, mut each: impl FnMut(usize, std::ops::Range<usize>)) {
    let mut position = start;
    let end = start + len;
    while position < end {
        let index = usize::try_from(position / MAP_BLOCK as u64).expect("the map is in memory");
        let from = usize::try_from(position % MAP_BLOCK as u64).expect("below a block");
        let part = usize::try_from(end - position).unwrap_or(usize::MAX).min(MAP_BLOCK - from);
        each(index, from..from + part);
        position += part as u64;
    }
}

impl Map {
    fn check(&self, start: u64, len: u64) -> Result<(), Status> {
        let fits = start.checked_add(len).is_some_and(|end| end <= self.capacity);
        if fits { Ok(()) } else { Err(Status::LBA_RANGE) }
    }

    /// Puts bytes at a position. A block that a reader holds is replaced and not changed.
    fn put(&mut self, position: u64, segment: &Segment, zeroes: &Shared) {
        if segment.range == (0..MAP_BLOCK)
            && segment.bytes.len() == MAP_BLOCK
            && position.is_multiple_of(MAP_BLOCK as u64)
        {
            each_block(position, MAP_BLOCK as u64, |index, _| {
                self.blocks[index] = Some(Shared::clone(&segment.bytes));
            });
            return;
        }
        let mut rest = segment.as_slice();
        each_block(position, rest.len() as u64, |index, range| {
            let (now, later) = rest.split_at(range.len());
            rest = later;
            if now.len() == MAP_BLOCK {
                self.blocks[index] = Some(Shared::new(now.to_vec()));
            } else {
                let block = self.blocks[index].get_or_insert_with(|| Shared::clone(zeroes));
                Shared::make_mut(block)[range].copy_from_slice(now);
            }
        });
    }
}

impl Storage for MemoryStorage {
    fn start(&self, _id: JobId, request: StorageRequest) -> Started {
        Started::Done(match request {
            StorageRequest::Read { start, len } => self.read(start, len),
            StorageRequest::Write { start, pieces, .. } => self.write(start, pieces),
            // Anonymous memory does not survive a crash, whatever is flushed.
            StorageRequest::Flush => Ok(Vec::new()),
            StorageRequest::WriteZeroes { start, len, .. } => self.clear(&[(start, len)]),
            StorageRequest::Deallocate { ranges } => self.clear(&ranges),
        })
    }

    fn capacity(&self) -> u64 {
        self.read_map().capacity
    }

    fn placement(&self) -> Option<usize> {
        Some(MAP_BLOCK)
    }

    fn resize(&self, capacity: u64) -> Result<(), Status> {
        let mut map = self.write_map();
        map.blocks.resize(blocks_of(capacity), None);
        // Bytes behind a smaller end must not come back when the namespace grows again.
        let tail = usize::try_from(capacity % MAP_BLOCK as u64).expect("below a block");
        if tail > 0
            && let Some(Some(block)) = map.blocks.last_mut()
        {
            Shared::make_mut(block)[tail..].fill(0);
        }
        map.capacity = capacity;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_os::Random;

    const ID: JobId = JobId { connection: 0, slot: 0, generation: 0, part: 0 };

    fn done(storage: &dyn Storage, request: StorageRequest) -> StorageResult {
        let Started::Done(result) = storage.start(ID, request) else { panic!("memory answers at once") };
        result
    }

    fn read(storage: &dyn Storage, start: u64, len: u64) -> Vec<u8> {
        let segments = done(storage, StorageRequest::Read { start, len }).unwrap();
        segments.iter().flat_map(|segment| segment.as_slice().to_vec()).collect()
    }

    fn bytes(bytes: Vec<u8>) -> Piece {
        Piece::Bytes(Segment::whole(bytes))
    }

    #[test]
    fn random_requests_have_the_effect_of_a_plain_buffer() {
        let mut random = Random::new(24);
        let mut plain = vec![0_u8; 64 << 10];
        let storage = MemoryStorage::new(plain.len() as u64);
        for round in 0..2000_u64 {
            let start = random.below(128) * 512;
            let len = (1 + random.below(40)) * 512;
            let len = len.min(plain.len() as u64 - start);
            let range = usize::try_from(start).unwrap()..usize::try_from(start + len).unwrap();
            match random.below(6) {
                0 => {
                    done(&storage, StorageRequest::WriteZeroes { start, len, force: false }).unwrap();
                    plain[range].fill(0);
                }
                1 => {
                    done(&storage, StorageRequest::Deallocate { ranges: vec![(start, len)] }).unwrap();
                    plain[range].fill(0);
                }
                2 if start.is_multiple_of(4096) && len.is_multiple_of(4096) => {
                    let blocks: Vec<Vec<u8>> =
                        (0..len / 4096).map(|n| vec![(round + n).to_le_bytes()[0]; 4096]).collect();
                    plain[range].copy_from_slice(&blocks.concat());
                    let pieces = vec![Piece::Blocks(blocks)];
                    done(&storage, StorageRequest::Write { start, pieces, force: false }).unwrap();
                }
                2 | 3 => {
                    let mut data = vec![0; range.len()];
                    random.fill(&mut data);
                    plain[range].copy_from_slice(&data);
                    let tail = data.split_off(data.len() / 3);
                    let pieces = vec![bytes(data), bytes(tail)];
                    done(&storage, StorageRequest::Write { start, pieces, force: false }).unwrap();
                }
                _ => assert_eq!(read(&storage, start, len), plain[range]),
            }
        }
        assert_eq!(read(&storage, 0, plain.len() as u64), plain);
    }

    #[test]
    fn a_read_keeps_its_bytes_while_they_are_overwritten() {
        let storage = MemoryStorage::new(8192);
        done(&storage, StorageRequest::Write { start: 0, pieces: vec![bytes(vec![1; 8192])], force: false }).unwrap();
        let old = done(&storage, StorageRequest::Read { start: 0, len: 8192 }).unwrap();
        done(&storage, StorageRequest::Write { start: 512, pieces: vec![bytes(vec![2; 7168])], force: false }).unwrap();
        done(&storage, StorageRequest::WriteZeroes { start: 0, len: 512, force: false }).unwrap();
        assert!(old.iter().all(|segment| segment.as_slice() == [1; 4096]));
        assert_eq!(read(&storage, 0, 1024), [vec![0; 512], vec![2; 512]].concat());
    }

    #[test]
    fn a_request_beyond_the_end_changes_nothing() {
        let storage = MemoryStorage::new(8192);
        for (start, len) in [(8192, 512), (7680, 1024), (u64::MAX - 511, 512), (u64::MAX, u64::MAX)] {
            assert_eq!(done(&storage, StorageRequest::Read { start, len }).unwrap_err(), Status::LBA_RANGE);
            let ranges = vec![(0, 512), (start, len)];
            assert_eq!(done(&storage, StorageRequest::Deallocate { ranges }).unwrap_err(), Status::LBA_RANGE);
        }
        let pieces = vec![bytes(vec![3; 4096]), bytes(vec![4; 4608])];
        assert!(done(&storage, StorageRequest::Write { start: 0, pieces, force: false }).is_err());
        assert_eq!((storage.allocated_blocks(), read(&storage, 0, 8192)), (0, vec![0; 8192]));
    }

    #[test]
    fn a_namespace_that_shrinks_and_grows_has_zeroes_behind_its_old_end() {
        let storage = MemoryStorage::new(8192);
        done(&storage, StorageRequest::Write { start: 0, pieces: vec![bytes(vec![9; 8192])], force: false }).unwrap();
        storage.resize(512).unwrap();
        storage.resize(8192).unwrap();
        assert_eq!(read(&storage, 0, 8192), [vec![9; 512], vec![0; 7680]].concat());
    }

    #[test]
    fn a_cleared_block_frees_its_memory() {
        let storage = MemoryStorage::new(1 << 20);
        assert_eq!(storage.allocated_blocks(), 0);
        done(&storage, StorageRequest::Write { start: 0, pieces: vec![bytes(vec![1; 16384])], force: true }).unwrap();
        assert_eq!(storage.allocated_blocks(), 4);
        done(&storage, StorageRequest::Deallocate { ranges: vec![(512, 16384 - 512)] }).unwrap();
        assert_eq!(storage.allocated_blocks(), 1);
    }
}
