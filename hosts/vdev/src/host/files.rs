//! Open files of the run's queues, and the boards of the queues they have open.

use super::execute::Executor;
use super::identity::Identity;
use super::share::Shared;
use super::{FileInfo, Listener};
use crate::tree::{Caller, Errno};
use rustix::net::SendFlags;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use telpher_vdev_wire::board::{Board, DISABLED, ENABLED, ROWS, Rows};
use telpher_vdev_wire::lease::{Lease, TRACE_ENTRIES};
use telpher_vdev_wire::message::Opened;

/// Locks what a panic of another thread cannot leave half done.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One open file.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) info: FileInfo,
    /// What its opener was told.
    pub(super) opened: Opened,
    pub(super) lease: Arc<Shared<Lease>>,
    pub(super) board: Arc<QueueBoard>,
    /// Of an opener that had no number for its address space.
    pub(super) identity: Option<Identity>,
    /// The number that a guest has given the opener's address space; 0 if none has.
    space: AtomicU64,
    /// The host's end of the file, in the preloaded view.
    pub(super) end: Option<OwnedFd>,
    /// What executes its descriptors here, once a process without the preloaded part has written one.
    pub(super) executor: Mutex<Option<Executor>>,
    /// Alarms of the queue by when the other end was last told that an error waits; `None` if it was not.
    told: Mutex<Option<u64>>,
    /// Held by whoever takes entries out of the lease's trace.
    taking: Mutex<()>,
}

impl OpenFile {
    /// A file on a row of the board that is given back when it is dropped.
    pub(super) fn new(
        opened: Opened,
        caller: Caller,
        board: Arc<QueueBoard>,
        identity: Option<Identity>,
        end: Option<OwnedFd>,
    ) -> Result<Self, Errno> {
        let info = FileInfo {
            open: opened.open,
            device: opened.device,
            wq: opened.wq,
            process: caller.process,
            pasid: opened.pasid,
            dedicated: opened.flags & telpher_vdev_wire::message::DEDICATED != 0,
        };
        Ok(OpenFile {
            info,
            opened,
            lease: Arc::new(Shared::new("telpher-lease")?),
            board,
            identity,
            space: AtomicU64::new(caller.space),
            end,
            executor: Mutex::new(None),
            told: Mutex::new(None),
            taking: Mutex::new(()),
        })
    }

    /// A guest of the opener's address space has named it.
    pub(super) fn join(&self, space: u64) {
        // Relaxed: a number of its own.
        self.space.store(space, Ordering::Relaxed);
    }

    /// The number of the opener's address space; 0 if it has none.
    pub(super) fn space(&self) -> u64 {
        self.space.load(Ordering::Relaxed)
    }

    /// Hands what the trace holds to the listener, a ring full at most; `gone` says that nobody writes it any more. Returns how
    /// much there was.
    pub(super) fn take_trace(&self, listener: &dyn Listener, gone: bool) -> usize {
        let _taking = lock(&self.taking);
        let entries = std::iter::from_fn(|| self.lease.take(gone)).take(TRACE_ENTRIES);
        entries.map(|entry| listener.entry(&self.info, &entry)).count()
    }

    /// Says to whoever polls the file that an error of the device waits: its end becomes readable. It stays so, as with the
    /// driver, which keeps what the device has latched; but who waits for edges hears each alarm.
    pub(super) fn tell_ready(&self, alarms: u64) {
        let Some(end) = &self.end else { return };
        let mut told = lock(&self.told);
        if *told != Some(alarms) && rustix::net::send(end, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok() {
            *told = Some(alarms);
        }
    }
}

/// The board of a queue, and which of its rows are given out. The rows' memory is for guests: any of them may have
/// written it.
#[derive(Debug)]
pub(super) struct QueueBoard {
    memory: Shared<Board>,
    rows: Shared<Rows>,
    truth: Mutex<Truth>,
}

#[derive(Debug)]
struct Truth {
    taken: [bool; ROWS],
    /// One past the highest row ever given out.
    used: u32,
    enabled: bool,
    generation: u32,
}

impl QueueBoard {
    /// The board of a queue that takes descriptors or not.
    pub(super) fn new(enabled: bool) -> Result<Self, Errno> {
        let board = QueueBoard {
            memory: Shared::new_for_readers("telpher-board")?,
            rows: Shared::new("telpher-rows")?,
            truth: Mutex::new(Truth { taken: [false; ROWS], used: 0, enabled, generation: 0 }),
        };
        board.publish(&lock(&board.truth));
        Ok(board)
    }

    /// What guests see.
    pub(super) fn memory(&self) -> &Shared<Board> {
        &self.memory
    }

    /// What guests write.
    pub(super) fn rows(&self) -> &Shared<Rows> {
        &self.rows
    }

    /// Gives out the lowest free row, empty.
    pub(super) fn take_row(&self) -> Option<u32> {
        let mut truth = lock(&self.truth);
        let index = truth.taken.iter().position(|taken| !taken)?;
        let row = u32::try_from(index).ok()?;
        truth.taken[index] = true;
        truth.used = truth.used.max(row + 1);
        self.clear(row);
        self.publish(&truth);
        Some(row)
    }

    /// Takes a row back.
    pub(super) fn give_row(&self, row: u32) {
        let mut truth = lock(&self.truth);
        if let Some(taken) = truth.taken.get_mut(row as usize) {
            *taken = false;
        }
        self.publish(&truth);
        self.clear(row);
    }

    /// Descriptors of all openers in the queue.
    pub(super) fn occupancy(&self) -> u32 {
        self.memory.occupancy_of_others(&self.rows, u32::MAX)
    }

    /// Says whether the queue takes descriptors.
    pub(super) fn set_enabled(&self, enabled: bool) {
        let mut truth = lock(&self.truth);
        if truth.enabled != enabled {
            truth.enabled = enabled;
            truth.generation = truth.generation.wrapping_add(1);
            self.publish(&truth);
        }
    }

    fn clear(&self, row: u32) {
        if let Some(word) = self.rows.row(row) {
            // Relaxed: a number of its own.
            word.store(0, Ordering::Relaxed);
        }
    }

    fn publish(&self, truth: &Truth) {
        self.memory.used.store(truth.used, Ordering::Relaxed);
        let files = truth.taken.iter().filter(|taken| **taken).count();
        self.memory.files.store(u32::try_from(files).unwrap_or(u32::MAX), Ordering::Relaxed);
        // Release, both: pair with the Acquire of whoever looks; who sees the state sees its generation.
        self.memory.generation.store(truth.generation, Ordering::Release);
        self.memory.state.store(if truth.enabled { ENABLED } else { DISABLED }, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_given_out_lowest_first_and_come_back_empty() {
        let board = QueueBoard::new(true).unwrap();
        assert_eq!([0, 1, 2].map(|_| board.take_row()), [Some(0), Some(1), Some(2)]);
        let files = || board.memory().files.load(Ordering::Relaxed);
        assert_eq!(files(), 3);
        board.rows().row(1).unwrap().store(5, Ordering::Relaxed);
        assert_eq!(board.occupancy(), 5);
        board.give_row(1);
        assert_eq!((board.occupancy(), files()), (0, 2));
        assert_eq!(board.take_row(), Some(1));
        board.give_row(u32::MAX);
    }

    #[test]
    fn a_board_has_as_many_rows_as_it_says() {
        let board = QueueBoard::new(true).unwrap();
        let rows = std::iter::from_fn(|| board.take_row()).count();
        assert_eq!(rows, ROWS);
    }

    #[test]
    fn a_board_counts_the_changes_of_its_queue() {
        let board = QueueBoard::new(true).unwrap();
        board.set_enabled(false);
        let read = |word: &std::sync::atomic::AtomicU32| word.load(Ordering::Relaxed);
        let memory = board.memory();
        assert_eq!((read(&memory.state), read(&memory.generation), read(&memory.used)), (DISABLED, 1, 0));
        board.set_enabled(false);
        assert_eq!(read(&memory.generation), 1, "nothing changed");
        board.set_enabled(true);
        assert_eq!((read(&memory.state), read(&memory.generation)), (ENABLED, 2));
    }
}
