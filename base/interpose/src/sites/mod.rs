//! Sites: instructions that trapped once and are rewritten to call the emulation directly.

/// What happened so far in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Instructions emulated after a trap.
    pub traps: u64,
    /// Instructions emulated by a rewritten site's call.
    pub calls: u64,
    /// Sites rewritten now.
    pub sites: u64,
}

/// What happened so far in this process.
#[must_use]
pub fn counters() -> Counters {
    Counters::default()
}

/// Puts the original bytes back at every site, and rewrites no more.
pub fn undo_all() {}
