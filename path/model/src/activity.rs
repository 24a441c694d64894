//! Whether a command is active, and who may touch its words: a small protocol between who writes a command and who brings
//! it on.

use crate::sync::{AtomicU64, Ordering};

/// No command is active.
const IDLE: u64 = 0;
/// One is being checked and begun by who wrote it; nobody else may look at it.
const STARTING: u64 = 1;
/// One has begun and waits for descriptors; anybody may bring it on, one at a time.
const RUNNING: u64 = 2;

/// The state of the one command a device can have.
#[derive(Debug)]
pub(crate) struct Activity(AtomicU64);

impl Default for Activity {
    fn default() -> Self {
        Activity(AtomicU64::new(IDLE))
    }
}

impl Activity {
    /// Claims the place of the active command; `false` if there is one.
    pub(crate) fn start(&self) -> bool {
        // Acquire: pairs with the Release in `end`; the previous command's effects are seen.
        self.0.compare_exchange(IDLE, STARTING, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Lets others bring the claimed command on.
    pub(crate) fn run(&self) {
        // Release: pairs with the Acquire in `is_running`; with the state go the command's words.
        self.0.store(RUNNING, Ordering::Release);
    }

    /// True if a command waits to be brought on. Whoever acts on it looks again under the turn, before its words: it may be
    /// another command by then.
    pub(crate) fn is_running(&self) -> bool {
        // Acquire: pairs with the Release in `run`.
        self.0.load(Ordering::Acquire) == RUNNING
    }

    /// True from the claim to the end.
    pub(crate) fn is_active(&self) -> bool {
        // Acquire: pairs with the Release in `end`; without activity, error and result are the last command's.
        self.0.load(Ordering::Acquire) != IDLE
    }

    /// Ends the command.
    pub(crate) fn end(&self) {
        // Release: pairs with the Acquire in `start` and `is_active`.
        self.0.store(IDLE, Ordering::Release);
    }
}
