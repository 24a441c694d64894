//! Memory shared by all processes that have a queue open: whether the queue is enabled, and how many descriptors it
//! holds.
//!
//! The queue state ([`QueueState`]) belongs to the host: its memory is sealed, so that no other process can map it for
//! writing. The occupancy slots ([`OccupancySlots`]) belong to the processes: each open file has a slot, and the sum of
//! the slots is the queue's occupancy. The host clears a slot when its file is released, so that a process killed at
//! any moment leaves nothing behind.
//!
//! Any process may write anything to any slot. The effect on others is bounded: each file has a
//! [share](QueueState::share) of the queue that it may use whatever the slots contain.

use crate::sync::{AtomicU32, Ordering};

/// Occupancy slots of a queue, and so the most files that may have it open at once. Source: chosen.
pub const ROWS: usize = 1008;

/// The queue accepts descriptors.
pub const ENABLED: u32 = 1;
/// The queue, or its device, is disabled or halted: posted writes are dropped, deferrable ones get Retry.
pub const DISABLED: u32 = 0;

/// The state of one queue; only the host writes it.
#[derive(Debug)]
#[repr(C)]
pub struct QueueState {
    /// [`ENABLED`] or [`DISABLED`].
    pub state: AtomicU32,
    /// Counts the changes of the state; a file that was opened at another count belongs to a former queue.
    pub generation: AtomicU32,
    /// One past the highest slot ever handed out; the bound for a sum of the slots.
    pub used: AtomicU32,
    /// Files that have the queue open.
    pub files: AtomicU32,
    reserved: [u32; 12],
}

/// Descriptors in the queue, by open file.
#[derive(Debug)]
#[repr(C)]
pub struct OccupancySlots {
    rows: [AtomicU32; ROWS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<QueueState>() == 64 && size_of::<OccupancySlots>() <= 4096);

impl QueueState {
    /// Descriptors that one open file may have in the queue whatever the other slots contain: an equal part of the
    /// threshold, at least one.
    #[must_use]
    pub fn share(&self, threshold: u32) -> u32 {
        // Relaxed, here and below: the values are independent and publish nothing.
        (threshold / self.files.load(Ordering::Relaxed).max(1)).max(1)
    }

    /// True if the file of slot `row`, which has `own` descriptors in a shared queue, may submit another one: always
    /// within its share, and beyond it while all files together have fewer than the threshold.
    ///
    /// **Staleness.** Other files change their slots meanwhile: each slot had its value at some moment.
    #[must_use]
    #[inline]
    pub fn has_room(&self, rows: &OccupancySlots, row: u32, own: u32, threshold: u32) -> bool {
        own < self.share(threshold) || self.occupancy_of_others(rows, row).saturating_add(own) < threshold
    }

    /// Descriptors in the queue of all openers except the file of slot `own`.
    ///
    /// **Staleness.** Other files change their slots meanwhile: each slot had its value at some moment.
    #[must_use]
    pub fn occupancy_of_others(&self, rows: &OccupancySlots, own: u32) -> u32 {
        let used = (self.used.load(Ordering::Relaxed) as usize).min(ROWS);
        let rows = rows.rows[..used].iter().enumerate();
        rows.filter(|(row, _)| *row != own as usize)
            .fold(0, |sum, (_, row)| sum.saturating_add(row.load(Ordering::Relaxed)))
    }
}

impl OccupancySlots {
    /// The slot with this number; `None` if out of range.
    #[must_use]
    pub fn row(&self, row: u32) -> Option<&AtomicU32> {
        self.rows.get(row as usize)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn queue(files: u32) -> (QueueState, OccupancySlots) {
        let zero = || AtomicU32::new(0);
        let board = QueueState {
            state: AtomicU32::new(ENABLED),
            generation: zero(),
            used: AtomicU32::new(files),
            files: AtomicU32::new(files),
            reserved: [0; 12],
        };
        (board, OccupancySlots { rows: std::array::from_fn(|_| zero()) })
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

    /// Regression: a slot that claimed the whole queue made every other process get Retry.
    #[test]
    fn a_file_has_its_share_whatever_the_slots_contain() {
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
