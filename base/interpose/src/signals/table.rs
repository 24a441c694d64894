//! The program's actions for all signals: written under a lock, read by handlers that may not wait for it.
//!
//! Every signal has two slots. A writer fills the slot that is not being read and then increments the version, whose
//! lowest bit selects the slot to read. So a reader never waits for a writer that was interrupted half-way. It retries
//! only if a writer has finished and another started meanwhile.

use super::action::Action;
use super::deferral::{Deferral, defer};
use crate::kernel::{self, ALL, Change};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Signals are numbered from 1.
pub(super) const SIGNALS: i32 = 64;

#[derive(Debug)]
struct Row {
    version: AtomicU64,
    slots: [[AtomicU64; 3]; 2],
}

#[derive(Debug)]
pub(super) struct Table {
    rows: [Row; SIGNALS as usize],
    locked: AtomicBool,
}

pub(super) static TABLE: Table = Table {
    rows: [const { Row { version: AtomicU64::new(0), slots: [const { [const { AtomicU64::new(0) }; 3] }; 2] } };
        SIGNALS as usize],
    locked: AtomicBool::new(false),
};

impl Table {
    fn row(&self, signal: i32) -> &Row {
        // Callers have checked the number; a wrong number must not panic in a signal handler.
        &self.rows[(signal - 1).clamp(0, SIGNALS - 1).cast_unsigned() as usize]
    }

    /// Returns the action of a signal, and its version.
    pub(super) fn read(&self, signal: i32) -> (Action, u64) {
        let row = self.row(signal);
        loop {
            // Acquire: pairs with the Release in `write`.
            let version = row.version.load(Ordering::Acquire);
            // Relaxed: the fence and the second read of the version show whether the words belong together.
            let [handler, flags, mask] =
                [0, 1, 2].map(|i| row.slots[(version & 1) as usize][i].load(Ordering::Relaxed));
            // Acquire: pairs with the fence in `write`; a reader of the next-but-one writer's words also sees the
            // version before them.
            fence(Ordering::Acquire);
            if row.version.load(Ordering::Relaxed) == version {
                #[allow(clippy::cast_possible_truncation, reason = "addresses have 64 bits here")]
                return (Action { handler: handler as usize, flags, mask }, version);
            }
        }
    }

    /// Replaces the action of a signal.
    pub(super) fn write(&self, _lock: &Locked, signal: i32, action: Action) {
        let row = self.row(signal);
        let next = row.version.load(Ordering::Relaxed) + 1;
        // Release: pairs with the fence in `read`. The version that made this slot unread comes before these writes.
        fence(Ordering::Release);
        let words = [action.handler as u64, action.flags, action.mask];
        for (slot, word) in row.slots[(next & 1) as usize].iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        // Release: pairs with the Acquire in `read`.
        row.version.store(next, Ordering::Release);
    }

    /// Takes the writers' lock, with all signals blocked and the protected ones deferred: a handler that interrupted a
    /// writer could wait for ever.
    pub(super) fn lock(&self) -> Locked<'_> {
        let mask = kernel::mask(Some((Change::Block, ALL)));
        let deferral = Some(defer());
        // Acquire: pairs with the Release of `drop`.
        while self.locked.swap(true, Ordering::Acquire) {
            kernel::yield_now();
        }
        Locked { table: self, mask, deferral }
    }

    /// In the child of a fork: the holder of the lock does not exist here. Each action is complete, either the old or
    /// the new one.
    pub(super) fn after_fork_child(&self) {
        // Release: as in `drop`.
        self.locked.store(false, Ordering::Release);
    }
}

/// A guard: the right to write.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    table: &'a Table,
    mask: u64,
    deferral: Option<Deferral>,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `lock`.
        self.table.locked.store(false, Ordering::Release);
        // In the opposite order of `lock`: the deferral restores the mask that was set there.
        self.deferral = None;
        kernel::mask(Some((Change::Set, self.mask)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_one_action_and_never_parts_of_two() {
        let table: &'static Table = Box::leak(Box::new(Table {
            rows: std::array::from_fn(|_| Row { version: AtomicU64::new(0), slots: Default::default() }),
            locked: AtomicBool::new(false),
        }));
        let writers = [1u64, 2].map(|writer| {
            std::thread::spawn(move || {
                for round in 0..50_000u64 {
                    let word = round << 2 | writer;
                    let lock = table.lock();
                    #[allow(clippy::cast_possible_truncation, reason = "addresses have 64 bits here")]
                    table.write(&lock, 10, Action { handler: word as usize, flags: word, mask: word });
                }
            })
        });
        let mut seen = 0;
        while !writers.iter().all(std::thread::JoinHandle::is_finished) {
            let (action, version) = table.read(10);
            assert!(action.handler as u64 == action.flags && action.flags == action.mask, "{action:?}");
            assert!(version >= seen);
            seen = version;
        }
        assert_eq!(table.read(10).1, 100_000);
    }
}
