//! Memory shared by all who have a queue open: is it enabled, and how much of it is taken.
//!
//! Each open file has a row; the sum of the rows is the queue's occupancy. A row is written by its owner alone, and cleared by
//! the host when the file is released, so that a process killed at any moment leaves nothing behind.

use crate::sync::{AtomicU32, Ordering};

/// Rows of a board, and so the files that may have one queue open at once. Source: chosen.
pub const ROWS: usize = 1008;

/// The queue takes descriptors.
pub const ENABLED: u32 = 1;
/// The queue, or its device, is disabled or halted: posted writes are dropped, deferrable ones answered by Retry.
pub const DISABLED: u32 = 0;

/// The board of one queue. One page.
#[derive(Debug)]
#[repr(C)]
pub struct Board {
    /// [`ENABLED`] or [`DISABLED`]; written by the host.
    pub state: AtomicU32,
    /// Counts how often the state has changed; a lease's owner whose number differs has a queue that is no more.
    pub generation: AtomicU32,
    /// One past the highest row ever given out; what a sum has to look at.
    pub used: AtomicU32,
    reserved: [u32; 13],
    rows: [AtomicU32; ROWS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Board>() == 4096);

impl Board {
    /// Descriptors of all openers but one in the queue.
    ///
    /// **Staleness.** Others come and go meanwhile: the answer is one that was true of each row at some moment.
    #[must_use]
    pub fn occupancy_of_others(&self, own: u32) -> u32 {
        // Relaxed: each row is a number of its own, nothing is published with it.
        let used = (self.used.load(Ordering::Relaxed) as usize).min(ROWS);
        let rows = self.rows[..used].iter().enumerate();
        rows.filter(|(row, _)| *row != own as usize)
            .fold(0, |sum, (_, row)| sum.saturating_add(row.load(Ordering::Relaxed)))
    }

    /// A row; out of range there is none.
    #[must_use]
    pub fn row(&self, row: u32) -> Option<&AtomicU32> {
        self.rows.get(row as usize)
    }
}
