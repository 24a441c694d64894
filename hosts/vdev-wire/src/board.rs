//! Memory shared by all processes that have a queue open: is it enabled, and how much of it is taken.
//!
//! The [`Board`] is the host's word: its memory is sealed, so that no other process can map it for writing. The
//! [`Rows`] are the processes' own: each open file has a row, and the sum of the rows is the queue's occupancy. The
//! host clears a row when the file is released, so that a process killed at any moment leaves nothing behind.
//!
//! Any process may write anything to any row. What that does to the others is bounded: each file has a
//! [share](Board::share) of the queue that it may use whatever the rows say.

use crate::sync::{AtomicU32, Ordering};

/// Rows of a queue, and so the files that may have it open at once. Source: chosen.
pub const ROWS: usize = 1008;

/// The queue takes descriptors.
pub const ENABLED: u32 = 1;
/// The queue, or its device, is disabled or halted: posted writes are dropped, deferrable ones answered by Retry.
pub const DISABLED: u32 = 0;

/// The state of one queue; written by the host alone.
#[derive(Debug)]
#[repr(C)]
pub struct Board {
    /// [`ENABLED`] or [`DISABLED`].
    pub state: AtomicU32,
    /// Counts how often the state has changed; a lease's owner whose number differs has a queue that is no more.
    pub generation: AtomicU32,
    /// One past the highest row ever given out; what a sum has to look at.
    pub used: AtomicU32,
    /// Files that have the queue open.
    pub files: AtomicU32,
    reserved: [u32; 12],
}

/// Descriptors in the queue, by open file.
#[derive(Debug)]
#[repr(C)]
pub struct Rows {
    rows: [AtomicU32; ROWS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Board>() == 64 && size_of::<Rows>() <= 4096);

impl Board {
    /// Descriptors that one open file may have waiting in the queue whatever the others claim: an equal part of the
    /// threshold, at least one.
    #[must_use]
    pub fn share(&self, threshold: u32) -> u32 {
        // Relaxed, here and below: each is a number of its own, nothing is published with it.
        (threshold / self.files.load(Ordering::Relaxed).max(1)).max(1)
    }

    /// True if the file of a row, of which `own` descriptors wait, may bring another one to a shared queue: within its
    /// share always, and beyond it while all together have fewer than the threshold.
    ///
    /// **Staleness.** Others come and go meanwhile: the answer was true of each row at some moment.
    #[must_use]
    #[inline]
    pub fn has_room(&self, rows: &Rows, row: u32, own: u32, threshold: u32) -> bool {
        own < self.share(threshold) || self.occupancy_of_others(rows, row).saturating_add(own) < threshold
    }

    /// Descriptors of all openers but one in the queue.
    ///
    /// **Staleness.** Others come and go meanwhile: the answer is one that was true of each row at some moment.
    #[must_use]
    pub fn occupancy_of_others(&self, rows: &Rows, own: u32) -> u32 {
        let used = (self.used.load(Ordering::Relaxed) as usize).min(ROWS);
        let rows = rows.rows[..used].iter().enumerate();
        rows.filter(|(row, _)| *row != own as usize)
            .fold(0, |sum, (_, row)| sum.saturating_add(row.load(Ordering::Relaxed)))
    }
}

impl Rows {
    /// A row; out of range there is none.
    #[must_use]
    pub fn row(&self, row: u32) -> Option<&AtomicU32> {
        self.rows.get(row as usize)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn queue(files: u32) -> (Board, Rows) {
        let zero = || AtomicU32::new(0);
        let board = Board {
            state: AtomicU32::new(ENABLED),
            generation: zero(),
            used: AtomicU32::new(files),
            files: AtomicU32::new(files),
            reserved: [0; 12],
        };
        (board, Rows { rows: std::array::from_fn(|_| zero()) })
    }

    #[test]
    fn a_file_has_room_while_all_together_have_fewer_than_the_threshold() {
        let (board, rows) = queue(2);
        rows.row(1).unwrap().store(8, Ordering::Relaxed);
        assert!((0..4).all(|own| board.has_room(&rows, 0, own, 12)));
        assert!((6..12).all(|own| !board.has_room(&rows, 0, own, 12)));
        rows.row(1).unwrap().store(0, Ordering::Relaxed);
        assert!(board.has_room(&rows, 0, 11, 12) && !board.has_room(&rows, 0, 12, 12));
    }

    /// A row that claimed the whole queue had every other process answered by Retry for as long as it stood there.
    #[test]
    fn whatever_the_rows_claim_a_file_has_its_share() {
        for (files, threshold, share) in [(1, 48, 48), (2, 48, 24), (5, 48, 9), (48, 48, 1), (1000, 48, 1), (7, 1, 1)] {
            let (board, rows) = queue(files);
            for row in 0..u32::try_from(ROWS).unwrap() {
                rows.row(row).unwrap().store(u32::MAX, Ordering::Relaxed);
            }
            assert_eq!(board.share(threshold), share);
            assert!((0..share).all(|own| board.has_room(&rows, 0, own, threshold)));
            assert!(!board.has_room(&rows, 0, share.max(threshold), threshold));
        }
    }
}
