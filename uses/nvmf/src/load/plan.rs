//! Which command an I/O queue sends next, and what its data must be.
//!
//! Each queue has its own region of the namespace. A pattern that writes has one command at a time in each extent of
//! its region, so that the data of every read is known.

use super::error::LoadError;
use super::options::Pattern;
use super::stamp::{Stamp, StampError};
use std::collections::VecDeque;
use telpher_os::Random;

/// What a command does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Read,
    Write,
    Flush,
}

/// A command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Work {
    pub(super) kind: Kind,
    /// The first block, in the namespace.
    pub(super) first: u64,
    pub(super) blocks: u32,
    /// The generation that a write gives its blocks.
    generation: u32,
    /// The extent that belongs to the command until it ends.
    extent: Option<u32>,
}

/// Blocks of reads whose data was checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Checked {
    /// Blocks that are as they were written.
    pub(super) verified: u64,
    /// Blocks without a stamp, which this run has not written.
    pub(super) unknown: u64,
}

/// A queue's part of the namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Region {
    /// The first block.
    pub(super) first: u64,
    /// The number of blocks, at least one extent.
    pub(super) blocks: u64,
    pub(super) block_bytes: u32,
}

/// The commands of an I/O queue.
#[derive(Debug)]
pub(super) struct Plan {
    pattern: Pattern,
    region: Region,
    run: u64,
    random: Random,
    /// Blocks of the pattern's largest transfer.
    extent_blocks: u32,
    /// The block, in the region, at which the next sequential command starts.
    position: u64,
    is_filling: bool,
    /// The generation of each block that this run has written; 0 for other blocks. Empty if nothing is written.
    generations: Vec<u32>,
    generation: u32,
    /// Extents without a command. Empty for patterns that only read.
    free: Vec<u32>,
    /// Reads of what was written.
    read_backs: VecDeque<Work>,
}

/// One command in this many of the pattern `mixed` is a Flush.
const FLUSHES: u64 = 100;
/// Reads in 100 commands of the pattern `mixed`.
const READS: u64 = 70;

impl Plan {
    /// A plan. With `fill`, it begins by writing the whole region.
    pub(super) fn new(pattern: Pattern, region: Region, run: u64, seed: u64, fill: bool) -> Plan {
        let extent_blocks = pattern.most_bytes() / region.block_bytes;
        let writes = pattern.writes() || fill;
        let len = |is_needed: bool, len: u64| if is_needed { usize::try_from(len).unwrap_or(0) } else { 0 };
        let extents = region.blocks / u64::from(extent_blocks.max(1));
        Plan {
            pattern,
            region,
            run,
            random: Random::new(seed),
            extent_blocks,
            position: 0,
            is_filling: fill,
            generations: vec![0; len(writes, region.blocks)],
            generation: 0,
            free: (0..u32::try_from(len(pattern.writes(), extents)).unwrap_or(u32::MAX)).collect(),
            read_backs: VecDeque::new(),
        }
    }

    /// Bytes of a block.
    pub(super) fn block_bytes(&self) -> u32 {
        self.region.block_bytes
    }

    /// The region was filled; from now on the pattern's commands come.
    pub(super) fn end_filling(&mut self) {
        (self.is_filling, self.position) = (false, 0);
    }

    /// The next command; `None` if there is none at the moment.
    pub(super) fn next(&mut self) -> Option<Work> {
        if let Some(work) = self.next_read_back() {
            return Some(work);
        }
        if self.is_filling {
            return self.next_of_fill();
        }
        let extent = u64::from(self.extent_blocks);
        match self.pattern {
            Pattern::RandRead4k | Pattern::RandRead16k => {
                let start = self.random.below(self.region.blocks / extent) * extent;
                Some(self.work(Kind::Read, start, self.extent_blocks, None))
            }
            Pattern::SeqRead128k => {
                let start = self.position;
                let is_last = start + 2 * extent > self.region.blocks;
                self.position = if is_last { 0 } else { start + extent };
                Some(self.work(Kind::Read, start, self.extent_blocks, None))
            }
            Pattern::WriteVerify => self.in_free_extent(Kind::Write),
            Pattern::Mixed => match self.random.below(FLUSHES) {
                0 => Some(self.work(Kind::Flush, 0, 0, None)),
                dice if dice < READS => self.in_free_extent(Kind::Read),
                _ => self.in_free_extent(Kind::Write),
            },
        }
    }

    /// The next read of what was written.
    pub(super) fn next_read_back(&mut self) -> Option<Work> {
        self.read_backs.pop_front()
    }

    fn next_of_fill(&mut self) -> Option<Work> {
        let rest = self.region.blocks - self.position;
        let blocks = u32::try_from(rest).unwrap_or(u32::MAX).min(self.extent_blocks);
        let start = self.position;
        self.position += u64::from(blocks);
        (blocks > 0).then(|| self.work(Kind::Write, start, blocks, None))
    }

    fn in_free_extent(&mut self, kind: Kind) -> Option<Work> {
        let place = usize::try_from(self.random.below(self.free.len() as u64)).ok()?;
        if self.free.is_empty() {
            return None;
        }
        let extent = self.free.swap_remove(place);
        let blocks = 1 + self.random.below(self.extent_blocks.into());
        let offset = self.random.below(u64::from(self.extent_blocks) - blocks + 1);
        let start = u64::from(extent) * u64::from(self.extent_blocks) + offset;
        Some(self.work(kind, start, u32::try_from(blocks).unwrap_or(1), Some(extent)))
    }

    fn work(&mut self, kind: Kind, start: u64, blocks: u32, extent: Option<u32>) -> Work {
        if kind == Kind::Write {
            self.generation = self.generation.wrapping_add(1).max(1);
        }
        Work { kind, first: self.region.first + start, blocks, generation: self.generation, extent }
    }

    /// The data of a write.
    pub(super) fn data(&self, work: &Work) -> Vec<u8> {
        let mut data = vec![0; work.blocks as usize * self.region.block_bytes as usize];
        for (block, bytes) in (work.first..).zip(data.chunks_exact_mut(self.region.block_bytes as usize)) {
            Stamp { run: self.run, block, generation: work.generation.into() }.write(bytes);
        }
        data
    }

    /// Takes the result of a successful command: checks the data of a read, remembers what a write has written.
    pub(super) fn finished(&mut self, work: Work, data: &[u8]) -> Result<Checked, LoadError> {
        let mut checked = Checked::default();
        let start = usize::try_from(work.first - self.region.first).unwrap_or(usize::MAX);
        match work.kind {
            Kind::Flush => {}
            Kind::Read => checked = self.check(work.first, start, data)?,
            Kind::Write => {
                self.generations[start..start + work.blocks as usize].fill(work.generation);
                if self.pattern == Pattern::WriteVerify && !self.is_filling {
                    self.read_backs.push_back(Work { kind: Kind::Read, ..work });
                    return Ok(checked);
                }
            }
        }
        self.free.extend(work.extent);
        Ok(checked)
    }

    fn check(&self, first: u64, start: usize, data: &[u8]) -> Result<Checked, LoadError> {
        let mut checked = Checked::default();
        for ((block, index), bytes) in (first..).zip(start..).zip(data.chunks(self.region.block_bytes as usize)) {
            let wrong = |source| LoadError::WrongBlock { block, source };
            match self.generations.get(index) {
                Some(&generation) if generation > 0 => {
                    let expected = Stamp { run: self.run, block, generation: generation.into() };
                    expected.check(bytes).map_err(wrong)?;
                    checked.verified += 1;
                }
                // An earlier run may have written the block, or another program.
                _ => match Stamp::read(bytes).map_err(wrong)? {
                    Some(stamp) if stamp.block == block => checked.verified += 1,
                    Some(stamp) => return Err(wrong(StampError::Misplaced { found: stamp.block })),
                    None => checked.unknown += 1,
                },
            }
        }
        Ok(checked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: Region = Region { first: 100, blocks: 128, block_bytes: 4096 };

    #[test]
    fn a_pattern_stays_in_its_region_and_reads_what_it_wrote() {
        for pattern in Pattern::ALL {
            let mut plan = Plan::new(pattern, REGION, 9, 1, true);
            let mut disk = vec![0_u8; 128 * 4096];
            let mut open: Vec<Work> = Vec::new();
            let (mut checked, mut is_filling) = (Checked::default(), true);
            for _ in 0..2000 {
                match plan.next() {
                    Some(work) => {
                        assert!(work.first >= 100 && work.first + u64::from(work.blocks) <= 228, "{work:?}");
                        open.push(work);
                    }
                    None if is_filling && open.is_empty() => {
                        plan.end_filling();
                        is_filling = false;
                    }
                    None => {}
                }
                // The newest command ends first, so commands overtake each other.
                if open.len() >= 3 || is_filling {
                    let Some(work) = open.pop() else { continue };
                    let start = usize::try_from(work.first - 100).unwrap() * 4096;
                    let range = start..start + work.blocks as usize * 4096;
                    if work.kind == Kind::Write {
                        disk[range.clone()].copy_from_slice(&plan.data(&work));
                    }
                    let seen = plan.finished(work, &disk[range]).unwrap();
                    checked.verified += seen.verified;
                    checked.unknown += seen.unknown;
                }
            }
            assert!(!is_filling && checked.verified > 1000 && checked.unknown == 0, "{pattern} {checked:?}");
        }
    }

    #[test]
    fn wrong_blocks_are_found_and_strange_ones_counted() {
        let mut plan = Plan::new(Pattern::RandRead4k, REGION, 9, 1, false);
        let read = |plan: &mut Plan, bytes: &[u8]| {
            let work = Work { kind: Kind::Read, first: 101, blocks: 1, generation: 0, extent: None };
            plan.finished(work, bytes)
        };
        assert_eq!(read(&mut plan, &[7; 4096]).unwrap(), Checked { verified: 0, unknown: 1 });
        let mut block = vec![0; 4096];
        Stamp { run: 1, block: 101, generation: 5 }.write(&mut block);
        assert_eq!(read(&mut plan, &block).unwrap(), Checked { verified: 1, unknown: 0 });
        block[4000] ^= 1;
        let error = read(&mut plan, &block).unwrap_err();
        assert!(matches!(error, LoadError::WrongBlock { block: 101, source: StampError::Checksum }));
        Stamp { run: 1, block: 102, generation: 5 }.write(&mut block);
        let error = read(&mut plan, &block).unwrap_err();
        assert!(matches!(error, LoadError::WrongBlock { block: 101, source: StampError::Misplaced { found: 102 } }));
    }
}
