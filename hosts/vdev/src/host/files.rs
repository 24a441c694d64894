//! Open files of the run's queues, and the shared memory of those queues.

use super::execute::Executor;
use super::identity::Identity;
use super::listener::{FileInfo, Listener};
use super::share::Shared;
use crate::tree::{Caller, Errno};
use rustix::net::SendFlags;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use telpher_vdev_wire::file_memory::{FileMemory, TRACE_ENTRIES};
use telpher_vdev_wire::message::Opened;
use telpher_vdev_wire::queue_state::{DISABLED, ENABLED, OccupancySlots, QueueState, ROWS};

/// Locks a mutex and ignores poisoning: the protected data is consistent even if another thread panicked.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One open file.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) info: FileInfo,
    /// What the opener received.
    pub(super) opened: Opened,
    pub(super) lease: Arc<Shared<FileMemory>>,
    pub(super) board: Arc<QueueMemory>,
    /// The opener's process identity, if it opened the file without an address space number.
    pub(super) identity: Option<Identity>,
    /// The number that a guest has given the opener's address space; 0 if no guest has.
    space: AtomicU64,
    /// The host's end of the file's socket, in the preloaded view.
    pub(super) end: Option<OwnedFd>,
    /// Executes the file's descriptors in the host, once a process without a guest has written one.
    pub(super) executor: Mutex<Option<Executor>>,
    /// The queue's alarm count when the other end was last notified of a pending error; `None` if it never was.
    notified: Mutex<Option<u64>>,
    /// Held while entries are taken out of the file's trace.
    reading: Mutex<()>,
}

impl OpenFile {
    /// Creates an open file for an occupancy slot that [`QueueMemory::take_row`] returned.
    pub(super) fn new(
        opened: Opened,
        caller: Caller,
        board: Arc<QueueMemory>,
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
            notified: Mutex::new(None),
            reading: Mutex::new(()),
        })
    }

    /// Records the number that a guest has given the opener's address space.
    pub(super) fn join(&self, space: u64) {
        // Relaxed: publishes no other data.
        self.space.store(space, Ordering::Relaxed);
    }

    /// The number of the opener's address space; 0 if it has none.
    pub(super) fn space(&self) -> u64 {
        self.space.load(Ordering::Relaxed)
    }

    /// Passes the trace's entries to the listener, at most one full ring. `gone`: no guest writes the trace any more.
    /// Returns the number of entries.
    pub(super) fn take_trace(&self, listener: &dyn Listener, gone: bool) -> usize {
        let _reading = lock(&self.reading);
        let entries = std::iter::from_fn(|| self.lease.take(gone)).take(TRACE_ENTRIES);
        entries.map(|entry| listener.entry(&self.info, &entry)).count()
    }

    /// Notifies pollers of the file that a device error is pending: the file's socket becomes readable. It stays
    /// readable, because the driver keeps a latched error. Each new alarm sends again, so edge-triggered pollers get an
    /// event.
    pub(super) fn notify_ready(&self, alarms: u64) {
        let Some(end) = &self.end else { return };
        let mut notified = lock(&self.notified);
        if *notified != Some(alarms) && rustix::net::send(end, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
        {
            *notified = Some(alarms);
        }
    }
}

/// The shared memory of one queue and the allocation of its occupancy slots. Guests can write the slots, so their
/// contents are untrusted.
#[derive(Debug)]
pub(super) struct QueueMemory {
    memory: Shared<QueueState>,
    rows: Shared<OccupancySlots>,
    allocation: Mutex<Allocation>,
}

#[derive(Debug)]
struct Allocation {
    taken: [bool; ROWS],
    /// One past the highest slot ever handed out.
    used: u32,
    enabled: bool,
    generation: u32,
}

impl QueueMemory {
    /// Creates the memory for a queue that is enabled or disabled.
    pub(super) fn new(enabled: bool) -> Result<Self, Errno> {
        let board = QueueMemory {
            memory: Shared::new_for_readers("telpher-board")?,
            rows: Shared::new("telpher-rows")?,
            allocation: Mutex::new(Allocation { taken: [false; ROWS], used: 0, enabled, generation: 0 }),
        };
        board.publish(&lock(&board.allocation));
        Ok(board)
    }

    /// The queue state, which guests can read.
    pub(super) fn memory(&self) -> &Shared<QueueState> {
        &self.memory
    }

    /// The occupancy slots, which guests can write.
    pub(super) fn rows(&self) -> &Shared<OccupancySlots> {
        &self.rows
    }

    /// Hands out the lowest free slot, cleared.
    pub(super) fn take_row(&self) -> Option<u32> {
        let mut allocation = lock(&self.allocation);
        let index = allocation.taken.iter().position(|taken| !taken)?;
        let row = u32::try_from(index).ok()?;
        allocation.taken[index] = true;
        allocation.used = allocation.used.max(row + 1);
        self.clear(row);
        self.publish(&allocation);
        Some(row)
    }

    /// Frees a slot.
    pub(super) fn give_row(&self, row: u32) {
        let mut allocation = lock(&self.allocation);
        if let Some(taken) = allocation.taken.get_mut(row as usize) {
            *taken = false;
        }
        self.publish(&allocation);
        self.clear(row);
    }

    /// Descriptors of all openers in the queue.
    pub(super) fn occupancy(&self) -> u32 {
        self.memory.occupancy_of_others(&self.rows, u32::MAX)
    }

    /// Sets whether the queue accepts descriptors.
    pub(super) fn set_enabled(&self, enabled: bool) {
        let mut allocation = lock(&self.allocation);
        if allocation.enabled != enabled {
            allocation.enabled = enabled;
            allocation.generation = allocation.generation.wrapping_add(1);
            self.publish(&allocation);
        }
    }

    fn clear(&self, row: u32) {
        if let Some(word) = self.rows.row(row) {
            // Relaxed: publishes no other data.
            word.store(0, Ordering::Relaxed);
        }
    }

    fn publish(&self, allocation: &Allocation) {
        self.memory.used.store(allocation.used, Ordering::Relaxed);
        let files = allocation.taken.iter().filter(|taken| **taken).count();
        self.memory.files.store(u32::try_from(files).unwrap_or(u32::MAX), Ordering::Relaxed);
        // Release, both: pair with the Acquire of readers; a reader that sees the state also sees its generation.
        self.memory.generation.store(allocation.generation, Ordering::Release);
        self.memory.state.store(if allocation.enabled { ENABLED } else { DISABLED }, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_handed_out_lowest_first_and_cleared() {
        let board = QueueMemory::new(true).unwrap();
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
    fn a_queue_has_as_many_slots_as_declared() {
        let board = QueueMemory::new(true).unwrap();
        let rows = std::iter::from_fn(|| board.take_row()).count();
        assert_eq!(rows, ROWS);
    }

    #[test]
    fn the_generation_counts_the_changes_of_the_queue() {
        let board = QueueMemory::new(true).unwrap();
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
