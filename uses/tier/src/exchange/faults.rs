//! Fault injection for tests.

use crate::config::{HUGE, PAGE};
use rustix::io::Errno;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use telpher_os::Progress;

/// The faults that a test requests; none by default.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Every n-th move is reported differently from how it went; 0 for none.
    pub(crate) lies: AtomicU64,
    /// Every n-th run counts as copied without being copied; 0 for none.
    pub(crate) uncopied: AtomicU64,
    /// The next copy panics after it was made.
    pub(crate) panics: AtomicBool,
    /// Pages are compared with their old copies before they are taken out.
    pub(crate) early: AtomicBool,
    /// Pages that the moving thread touches: before a run is copied, and afterwards. 0 for none.
    pub(crate) touched: [AtomicU64; 2],
    /// Every n-th trapped page comes back with other bytes; 0 for none.
    pub(crate) spoilt: AtomicU64,
    /// A page that is out is filled with zeros when it is touched.
    pub(crate) fills_what_is_out: AtomicBool,
    /// A forked child gets none of the pages that are out.
    pub(crate) gives_nothing: AtomicBool,
    /// A message is sent when the next pages are out; then the exchange waits for a message, or for the sender to be
    /// dropped.
    pub(crate) pause: Mutex<Option<(Sender<()>, Receiver<()>)>>,
    returned_from_trap: AtomicU64,
    moves: AtomicU64,
    copies: AtomicU64,
}

/// How much of a requested move is made, and the progress that is reported.
pub(super) struct ShortenedMove {
    pub(super) len: u64,
    pub(super) reported: Progress,
}

/// Returns a number for each n-th call.
fn is_due(every: &AtomicU64, calls: &AtomicU64) -> Option<u64> {
    let every = every.load(Ordering::Relaxed);
    let call = calls.fetch_add(1, Ordering::Relaxed) + 1;
    (every > 0 && call.is_multiple_of(every)).then(|| call / every)
}

impl Faults {
    /// Returns what to make of this move and what to report.
    pub(super) fn lie(&self, len: u64) -> Option<ShortenedMove> {
        let number = is_due(&self.lies, &self.moves)?;
        let half = len / 2 / PAGE * PAGE;
        let lie = |len, bytes, error| ShortenedMove { len, reported: Progress { bytes, error: Some(error) } };
        Some(match number % 6 {
            // As Linux 6.18 was seen to answer.
            0 => lie(len, 0, Errno::EXIST),
            1 => lie(len, half, Errno::EXIST),
            2 => lie(len, half, Errno::AGAIN),
            3 => lie(len, 0, Errno::BUSY),
            4 => lie(len, 0, Errno::NOENT),
            // Only half of it moves; a huge page moves as a whole or not at all.
            _ if half > 0 && len < HUGE => lie(half, 0, Errno::EXIST),
            _ => lie(len, 0, Errno::INVAL),
        })
    }

    pub(super) fn fills_what_is_out(&self) -> bool {
        self.fills_what_is_out.load(Ordering::Relaxed)
    }

    pub(super) fn gives_nothing(&self) -> bool {
        self.gives_nothing.load(Ordering::Relaxed)
    }

    /// Returns whether to overwrite the page that is brought back now.
    pub(super) fn spoils(&self) -> bool {
        is_due(&self.spoilt, &self.returned_from_trap).is_some()
    }

    /// Returns whether to leave the next run uncopied.
    pub(super) fn leaves_uncopied(&self) -> bool {
        is_due(&self.uncopied, &self.copies).is_some()
    }

    /// Reads a page that is out.
    pub(super) fn touch(&self, at: usize) {
        let address = self.touched[at].swap(0, Ordering::Relaxed);
        if address != 0 {
            let byte: *const u8 = std::ptr::with_exposed_provenance(usize::try_from(address).expect("an address"));
            // SAFETY: an address in a test's arena, which is mapped.
            unsafe { byte.read_volatile() };
        }
    }

    /// Pauses while pages are out, until the test continues.
    pub(crate) fn out(&self) {
        let pause = self.pause.lock().expect("no thread panics while holding it").take();
        if let Some((out, go)) = pause {
            // The test has ended or continues.
            let _ = (out.send(()), go.recv());
        }
    }

    /// Panics on request; a run has been copied and others are out.
    pub(super) fn copied(&self) {
        assert!(!self.panics.swap(false, Ordering::Relaxed), "requested by a test");
    }
}
