//! Whether another library of this process handles the signals.

use std::sync::atomic::{AtomicBool, Ordering};

static JOINED: AtomicBool = AtomicBool::new(false);

/// True if another library of this process handles the signals: after [`join`](crate::join) or [`pass_on_signals`].
#[inline]
#[must_use]
pub fn is_joined() -> bool {
    // Relaxed: set before other threads run.
    JOINED.load(Ordering::Relaxed)
}

/// Leaves the signals alone, in a library that only passes calls on: the functions of
/// [`signal_symbols!`](crate::signal_symbols) call the next library's. Call it once, before `main`.
pub fn pass_on_signals() {
    // Relaxed: before other threads run.
    JOINED.store(true, Ordering::Relaxed);
}
