//! What a test has go wrong.

use crate::config::{HUGE, PAGE};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use telpher_mem::Progress;

/// Faults that a test asks for; none until it does.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Every so many moves are answered otherwise than they went; 0 for none.
    pub(crate) lies: AtomicU64,
    /// Every so many runs count as copied without being.
    pub(crate) uncopied: AtomicU64,
    /// The next copy panics, once it has been made.
    pub(crate) panics: AtomicBool,
    /// Pages are held against their old copies before they are taken out.
    pub(crate) early: AtomicBool,
    moves: AtomicU64,
    copies: AtomicU64,
}

/// True for each so-many-th call.
fn is_due(every: &AtomicU64, calls: &AtomicU64) -> Option<u64> {
    let every = every.load(Ordering::Relaxed);
    let call = calls.fetch_add(1, Ordering::Relaxed) + 1;
    (every > 0 && call.is_multiple_of(every)).then(|| call / every)
}

impl Faults {
    /// How much of a move is asked for, and what is said of it if it was made.
    pub(super) fn lie(&self, len: u64) -> (u64, Option<Progress>) {
        let Some(number) = is_due(&self.lies, &self.moves) else { return (len, None) };
        let half = len / 2 / PAGE * PAGE;
        let said = |bytes, error| Some(Progress { bytes, error: Some(error) });
        match number % 6 {
            // As Linux 6.18 was seen to answer.
            0 => (len, said(0, Errno::EXIST)),
            1 => (len, said(half, Errno::EXIST)),
            2 => (len, said(half, Errno::AGAIN)),
            3 => (len, said(0, Errno::BUSY)),
            4 => (len, said(0, Errno::NOENT)),
            // Really not all of it; a huge page goes whole or not.
            _ if half > 0 && len < HUGE => (half, said(0, Errno::EXIST)),
            _ => (len, said(0, Errno::INVAL)),
        }
    }

    /// The next run is to be left as it is.
    pub(super) fn leaves_uncopied(&self) -> bool {
        is_due(&self.uncopied, &self.copies).is_some()
    }

    /// A run was copied, and others are out.
    pub(super) fn copied(&self) {
        assert!(!self.panics.swap(false, Ordering::Relaxed), "asked for by a test");
    }
}
