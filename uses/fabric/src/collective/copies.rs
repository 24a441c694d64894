//! Copies of chunks by a device, which go on while this member does something else.
//!
//! ```text
//! begin ─► start, for each part ─► end ─► collect, again and again ─► next_ended: the member counts the chunk
//! ```
//!
//! Chunks of one direction end in their order, whatever the order of their copies. A part that the device does not take
//! is left to the caller, and one that the device does not finish is copied by the CPU.

use crate::copier::{Copier, Copy, CopyFor, Direction};
use std::collections::VecDeque;
use telpher_mem::Fault;

/// The copies that this member's device may have at once; the CPU makes the others. Source: chosen; two chunks of
/// an AllGather of 32 members. In a reduction of so many, the parts of results are too short for a device.
pub const MOST_COPIES: u32 = 64;

/// What the member counts when the copies of a chunk have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Then {
    /// Its slot has the bytes, for the call with this number.
    Filled { call: u64 },
    /// It needs no result any more.
    Taken,
    /// It needs neither slots of others nor results.
    Emptied,
    /// The same, and its own slot has no bytes.
    EmptiedAll,
}

/// A chunk whose copies run.
#[derive(Debug)]
struct Chunk {
    number: u64,
    /// Copies that have not ended; one more until all are started.
    left: u32,
    then: Then,
}

/// The copies of one member.
#[derive(Debug)]
pub(super) struct Copies {
    copier: Copier,
    /// The chunks of each direction, with consecutive numbers.
    chunks: [VecDeque<Chunk>; 2],
    collected: Vec<(CopyFor, Result<(), Fault>)>,
}

impl Copies {
    pub(super) fn new(copier: Copier) -> Copies {
        Copies { copier, chunks: [VecDeque::new(), VecDeque::new()], collected: Vec::new() }
    }

    pub(super) fn has_device(&self) -> bool {
        self.copier.has_device()
    }

    /// Returns how many copies the device has made.
    pub(super) fn by_device(&self) -> u64 {
        self.copier.counts().by_device
    }

    /// True if the device works on copies, or a chunk was not counted.
    pub(super) fn is_busy(&self) -> bool {
        self.copier.is_busy() || self.chunks.iter().any(|chunks| !chunks.is_empty())
    }

    /// True if a chunk before this one has copies out of slots that have not ended.
    pub(super) fn is_emptying_before(&self, number: u64) -> bool {
        self.chunks[Direction::Out as usize].front().is_some_and(|chunk| chunk.number < number)
    }

    /// Begins the next chunk of a direction.
    pub(super) fn begin(&mut self, direction: Direction, number: u64, then: Then) {
        self.chunks[direction as usize].push_back(Chunk { number, left: 1, then });
    }

    /// Gives a copy of the chunk that was begun last to the device. False if the CPU shall make it.
    pub(super) fn start(&mut self, direction: Direction, copy: Copy) -> bool {
        let Some(chunk) = self.chunks[direction as usize].back_mut() else { return false };
        let is_started = self.copier.start_on_device(copy, CopyFor::Chunk { direction, number: chunk.number });
        chunk.left += u32::from(is_started);
        is_started
    }

    /// All copies of the chunk that was begun last are started.
    pub(super) fn end(&mut self, direction: Direction) {
        if let Some(chunk) = self.chunks[direction as usize].back_mut() {
            chunk.left -= 1;
        }
        self.copier.submit();
    }

    /// Takes note of the copies that have ended.
    ///
    /// # Errors
    /// Neither the device nor the CPU could make one of them.
    pub(super) fn collect(&mut self) -> Result<(), Fault> {
        if !self.copier.is_busy() {
            return Ok(());
        }
        self.copier.submit();
        let mut collected = std::mem::take(&mut self.collected);
        self.copier.collect(&mut collected);
        let mut ended = Ok(());
        for (purpose, result) in collected.drain(..) {
            if let CopyFor::Chunk { direction, number } = purpose
                && let Some(chunk) = self.chunks[direction as usize].iter_mut().find(|chunk| chunk.number == number)
            {
                chunk.left -= 1;
            }
            ended = ended.and(result);
        }
        self.collected = collected;
        ended
    }

    /// Returns the next chunk whose copies have ended, and what to count then.
    pub(super) fn next_ended(&mut self) -> Option<(u64, Then)> {
        let ended = self.chunks.iter_mut().find(|chunks| chunks.front().is_some_and(|chunk| chunk.left == 0))?;
        ended.pop_front().map(|chunk| (chunk.number, chunk.then))
    }

    /// Waits until the device has ended all copies, and forgets the chunks: their operation has failed. The device may
    /// still write to the caller's buffer before. A queue that does not answer is given up by its channel at some
    /// time, which ends the copies, too.
    pub(super) fn abandon(&mut self) {
        while self.copier.is_busy() {
            // The operation has failed already.
            let _ = self.collect();
            std::thread::yield_now();
        }
        self.chunks.iter_mut().for_each(VecDeque::clear);
    }
}
