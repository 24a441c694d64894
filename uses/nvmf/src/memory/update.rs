//! Changes of a namespace: new blocks are filled without a lock, and then put into the map in one step.

use super::MemoryStorage;
use super::geometry::{CLEARED_AT_ONCE, MAP_BLOCK, split};
use crate::engine::Segments;
use crate::status::Status;
use crate::storage::{Piece, StorageResult, merged};
use std::ops::Range;
use telpher_mem::{BlockRun, SharedRun};

/// New blocks for neighbouring logical blocks.
#[derive(Debug)]
struct NewRun {
    /// The first logical block.
    index: usize,
    run: BlockRun,
}

/// A block of which only a part is new. The other bytes are those of the block that the map has.
#[derive(Debug)]
struct Partial {
    index: usize,
    /// The new bytes.
    written: Range<usize>,
    /// The block from which the other bytes were copied; `None` for zeroes.
    base: Option<(u32, SharedRun)>,
}

/// A change of one range of a namespace.
#[derive(Debug, Default)]
struct Update {
    new: Vec<NewRun>,
    partial: Vec<Partial>,
    /// Logical blocks that read as zeroes afterwards.
    cleared: Range<usize>,
}

/// The logical blocks that a range of bytes touches. The range is not empty.
fn blocks_between(start: u64, end: u64) -> Range<usize> {
    split(start).0..split(end - 1).0 + 1
}

impl Update {
    /// Copies bytes to new blocks. They may cross runs.
    fn copy(&mut self, position: u64, bytes: &[u8]) {
        let (index, offset) = split(position);
        let mut rest = bytes;
        // The first byte's distance from the start of its run.
        let Some(first) = self.new.iter().position(|new| (new.index..new.index + new.run.blocks()).contains(&index))
        else {
            unreachable!("blocks were taken for all bytes")
        };
        let mut from = (index - self.new[first].index) * MAP_BLOCK + offset;
        for new in &mut self.new[first..] {
            let part = rest.len().min(new.run.len() - from);
            new.run[from..from + part].copy_from_slice(&rest[..part]);
            rest = &rest[part..];
            if rest.is_empty() {
                return;
            }
            from = 0;
        }
    }

    /// Records the blocks at the ends of a range of new bytes that have old bytes as well.
    fn add_partial(&mut self, start: u64, end: u64) {
        let ((first, from), (last, to)) = (split(start), split(end));
        if first == last {
            self.partial.push(Partial { index: first, written: from..to, base: None });
            return;
        }
        if from > 0 {
            self.partial.push(Partial { index: first, written: from..MAP_BLOCK, base: None });
        }
        if to > 0 {
            self.partial.push(Partial { index: last, written: 0..to, base: None });
        }
    }

    /// Copies the old bytes of a block around its new bytes.
    fn merge(&mut self, number: usize, base: Option<(u32, SharedRun)>) {
        let partial = &mut self.partial[number];
        let index = partial.index;
        let new = self.new.iter_mut().find(|new| (new.index..new.index + new.run.blocks()).contains(&index));
        let Some(new) = new else { unreachable!("a block was taken for each partial block") };
        let first = (index - new.index) * MAP_BLOCK;
        let block = &mut new.run[first..first + MAP_BLOCK];
        for range in [0..partial.written.start, partial.written.end..MAP_BLOCK] {
            match &base {
                Some((_, old)) => block[range.clone()].copy_from_slice(&old[range]),
                None => block[range].fill(0),
            }
        }
        partial.base = base;
    }
}

impl MemoryStorage {
    pub(super) fn write(&self, start: u64, pieces: &mut [Piece]) -> StorageResult {
        let len = pieces.iter().map(|piece| piece.len() as u64).sum();
        self.read_map().check(start, len)?;
        let mut update = Update::default();
        // Neighbouring pieces of received bytes may have a block in common, so each span of them is one range.
        let mut spans: Vec<(Range<u64>, Range<usize>)> = Vec::new();
        let mut position = start;
        for (number, piece) in pieces.iter_mut().enumerate() {
            let end = position + piece.len() as u64;
            match piece {
                Piece::Blocks(runs) if self.are_own(position, runs) => {
                    let mut index = split(position).0;
                    for run in runs.drain(..) {
                        let next = index + run.blocks();
                        update.new.push(NewRun { index, run });
                        index = next;
                    }
                }
                _ if end == position => {}
                _ => match spans.last_mut() {
                    Some((bytes, numbers)) if bytes.end == position => {
                        (bytes.end, numbers.end) = (end, number + 1);
                    }
                    _ => spans.push((position..end, number..number + 1)),
                },
            }
            position = end;
        }
        self.copy_spans(&mut update, pieces, &spans)?;
        self.apply(update, Some((start, len)))
    }

    /// Returns whether placed data can be taken over at this position.
    fn are_own(&self, position: u64, runs: &[BlockRun]) -> bool {
        position.is_multiple_of(MAP_BLOCK as u64) && runs.iter().all(|run| run.is_of(&self.blocks))
    }

    /// Copies received bytes to free blocks.
    fn copy_spans(
        &self,
        update: &mut Update,
        pieces: &[Piece],
        spans: &[(Range<u64>, Range<usize>)],
    ) -> Result<(), Status> {
        let blocks = |bytes: &Range<u64>| blocks_between(bytes.start, bytes.end);
        let count = spans.iter().map(|(bytes, _)| blocks(bytes).len()).sum();
        if count == 0 {
            return Ok(());
        }
        // All at once: a thread that holds a part and waits for more could wait for another such thread.
        let mut free = self.take(count)?.into_iter();
        let mut rest: Option<BlockRun> = None;
        for (bytes, numbers) in spans {
            let indices = blocks(bytes);
            let mut index = indices.start;
            while index < indices.end {
                let Some(mut run) = rest.take().or_else(|| free.next()) else {
                    unreachable!("as many blocks as were counted")
                };
                rest = run.split_off(indices.end - index);
                let next = index + run.blocks();
                update.new.push(NewRun { index, run });
                index = next;
            }
            let mut position = bytes.start;
            for slice in pieces[numbers.clone()].iter().flat_map(Piece::slices) {
                update.copy(position, slice);
                position += slice.len() as u64;
            }
            update.add_partial(bytes.start, bytes.end);
        }
        Ok(())
    }

    fn take(&self, count: usize) -> Result<Vec<BlockRun>, Status> {
        if count <= self.reserve.written {
            return Ok(self.blocks.take_waiting(count));
        }
        self.blocks.take(count).ok_or(Status::CAPACITY_EXCEEDED)
    }

    /// Makes these ranges read as zeroes. Each block is cleared once, also if several ranges have it: 256 ranges of a
    /// command may each be the whole namespace. So a command takes at most one pass over the map, and other threads
    /// wait for at most [`CLEARED_AT_ONCE`] blocks of it.
    pub(super) fn clear(&self, ranges: &[(u64, u64)]) -> StorageResult {
        let map = self.read_map();
        for &(start, len) in ranges {
            map.check(start, len)?;
        }
        drop(map);
        for (start, len) in merged(ranges) {
            let (mut position, end) = (start, start + len);
            while position < end {
                // A step ends at the end of a map block.
                let step = (split(position).0 + CLEARED_AT_ONCE) as u64 * MAP_BLOCK as u64;
                let next = end.min(step);
                self.clear_range(position, next, Some((position, next - position)))?;
                position = next;
            }
        }
        self.return_memory();
        Ok(Segments::new())
    }

    /// Clears a part of the last block that is behind the end of the namespace.
    pub(super) fn clear_part_behind_end(&self, start: u64, len: u64) {
        if len > 0 {
            // Fails only if the file was truncated: then every request fails.
            let _ = self.clear_range(start, start + len, None);
        }
    }

    /// Clears the bytes from `start` to `end`. `checked` is the range that must be in the namespace.
    fn clear_range(&self, start: u64, end: u64, checked: Option<(u64, u64)>) -> Result<(), Status> {
        let mut update = Update::default();
        update.add_partial(start, end);
        let first = start.next_multiple_of(MAP_BLOCK as u64);
        update.cleared = if first < end { split(first).0..split(end).0 } else { 0..0 };
        let map = self.read_map();
        if let Some((start, len)) = checked {
            map.check(start, len)?;
        }
        // A block that reads as zeroes stays as it is.
        update.partial.retain(|partial| map.get(partial.index).is_some());
        drop(map);
        let count = update.partial.len();
        if count > 0 {
            let mut indices: Vec<(usize, Range<usize>)> =
                update.partial.iter().map(|partial| (partial.index, partial.written.clone())).collect();
            for mut run in self.take(count)? {
                while let Some((index, written)) = indices.pop() {
                    let rest = run.split_off(1);
                    run[written].fill(0);
                    update.new.push(NewRun { index, run });
                    let Some(next) = rest else { break };
                    run = next;
                }
            }
        }
        self.apply(update, checked).map(|_| ())
    }

    /// Completes partial blocks, and puts an update into the map in one step.
    fn apply(&self, mut update: Update, checked: Option<(u64, u64)>) -> StorageResult {
        let mut stale: Vec<usize> = (0..update.partial.len()).collect();
        loop {
            self.merge(&mut update, &stale);
            stale = self.switch(&mut update, checked)?;
            if stale.is_empty() {
                return Ok(Segments::new());
            }
        }
    }

    /// Copies the old bytes of these partial blocks.
    fn merge(&self, update: &mut Update, numbers: &[usize]) {
        for &number in numbers {
            let map = self.read_map();
            let block = map.get(update.partial[number].index);
            let base = block.map(|block| (block, self.shared_block(block)));
            drop(map);
            update.merge(number, base);
        }
    }

    /// Puts an update into the map, or returns the partial blocks whose old bytes another request has replaced. Fails
    /// if the file has lost pages.
    fn switch(&self, update: &mut Update, checked: Option<(u64, u64)>) -> Result<Vec<usize>, Status> {
        let count = update.new.iter().map(|new| new.run.blocks()).sum();
        let mut replaced = Vec::with_capacity(count);
        let mut map = self.write_map();
        if let Some((start, len)) = checked {
            map.check(start, len)?;
        }
        // A block whose bytes were copied was not reused in the meantime, because `base` holds it.
        let is_stale = |partial: &Partial| map.get(partial.index) != partial.base.as_ref().map(|base| base.0);
        let stale: Vec<usize> = (0..update.partial.len()).filter(|&number| is_stale(&update.partial[number])).collect();
        if !stale.is_empty() {
            return Ok(stale);
        }
        for NewRun { index, run } in update.new.drain(..) {
            for (index, block) in (index..).zip(run.keep()) {
                replaced.extend(map.swap(index, Some(block)));
            }
        }
        map.clear(update.cleared.clone(), &mut replaced);
        let is_whole = map.is_whole() && self.blocks.is_whole();
        drop(map);
        self.blocks.release(replaced);
        // The bytes or the entries of a truncated file are lost, although this server's map has them.
        if is_whole { Ok(stale) } else { Err(Status::WRITE_FAULT) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Segment;

    #[test]
    fn a_part_of_a_block_is_merged_again_if_another_request_replaced_the_block() {
        let storage = MemoryStorage::new(8192);
        let write = |start, byte| {
            let mut pieces = [Piece::Bytes(Segment::whole(vec![byte; 512]))];
            storage.write(start, &mut pieces).unwrap();
        };
        let mut update = Update::default();
        let pieces = [Piece::Bytes(Segment::whole(vec![1; 4096]))];
        storage.copy_spans(&mut update, &pieces, &[(1024..5120, 0..1)]).unwrap();
        storage.merge(&mut update, &[0, 1]);
        // Other requests write to both blocks, which had no memory.
        write(512, 2);
        write(7680, 3);
        assert_eq!(storage.switch(&mut update, Some((0, 8192))), Ok(vec![0, 1]));
        storage.merge(&mut update, &[0, 1]);
        write(0, 4);
        assert_eq!(storage.switch(&mut update, Some((0, 8192))), Ok(vec![0]));
        storage.merge(&mut update, &[0]);
        assert_eq!(storage.switch(&mut update, Some((0, 8192))), Ok(vec![]));
        let segments = storage.read(0, 8192).unwrap();
        let bytes: Vec<u8> = segments.iter().flat_map(|segment| segment.as_slice().to_vec()).collect();
        let block = |byte: u8, sectors: usize| vec![byte; sectors * 512];
        let expected = [block(4, 1), block(2, 1), block(1, 8), block(0, 5), block(3, 1)];
        assert!(bytes == expected.concat());
        assert_eq!((storage.allocated_blocks(), storage.blocks.taken_blocks()), (2, 0));
    }
}
