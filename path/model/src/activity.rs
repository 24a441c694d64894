//! Tracks whether a command is active, and which thread may access its words: the thread that wrote the command, or a
//! thread that advances it.

use crate::sync::{AtomicU64, Ordering};

/// No command is active.
const IDLE: u64 = 0;
/// The thread that wrote the command checks and starts it; no other thread may access it.
const STARTING: u64 = 1;
/// A command has started and waits for descriptors; any thread may advance it, one at a time.
const RUNNING: u64 = 2;

/// The state of the single command that a device can have.
#[derive(Debug)]
pub(crate) struct Activity(AtomicU64);

impl Default for Activity {
    fn default() -> Self {
        Activity(AtomicU64::new(IDLE))
    }
}

impl Activity {
    /// Claims the active command; returns `false` if another is active.
    pub(crate) fn start(&self) -> bool {
        // Acquire: pairs with the Release in `end`; the previous command's effects are seen.
        self.0.compare_exchange(IDLE, STARTING, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Lets other threads advance the claimed command.
    pub(crate) fn run(&self) {
        // Release: pairs with the Acquire in `is_running`, and publishes the command's words with the state.
        self.0.store(RUNNING, Ordering::Release);
    }

    /// True if a command waits to be advanced. Before a thread reads the command's words, it must check this again
    /// under the lock: it may be another command by then.
    pub(crate) fn is_running(&self) -> bool {
        // Acquire: pairs with the Release in `run`.
        self.0.load(Ordering::Acquire) == RUNNING
    }

    /// True from the claim to the end of the command.
    pub(crate) fn is_active(&self) -> bool {
        // Acquire: pairs with the Release in `end`; if no command is active, error and result belong to the last one.
        self.0.load(Ordering::Acquire) != IDLE
    }

    /// Ends the command.
    pub(crate) fn end(&self) {
        // Release: pairs with the Acquire in `start` and `is_active`.
        self.0.store(IDLE, Ordering::Release);
    }
}
