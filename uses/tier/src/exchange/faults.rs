//! What a test has go wrong.

use crate::config::{HUGE, PAGE};
use rustix::io::Errno;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use telpher_os::Progress;

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
    /// Pages that the thread touches that moves them: before a run is copied, and when it has been. 0 for none.
    pub(crate) touched: [AtomicU64; 2],
    /// Every so many pages that were trapped come back with other bytes. 0 for none.
    pub(crate) spoilt: AtomicU64,
    /// A page that is out is filled with zeros when it is touched.
    pub(crate) fills_what_is_out: AtomicBool,
    /// A forked child has none of the pages that are out.
    pub(crate) gives_nothing: AtomicBool,
    /// Told when the next pages are out, and what is waited for then, or until it is gone.
    pub(crate) pause: Mutex<Option<(Sender<()>, Receiver<()>)>>,
    sprung: AtomicU64,
    moves: AtomicU64,
    copies: AtomicU64,
}

/// How much is moved of what was asked for, and what is said of it.
pub(super) struct Lie {
    pub(super) len: u64,
    pub(super) said: Progress,
}

/// True for each so-many-th call.
fn is_due(every: &AtomicU64, calls: &AtomicU64) -> Option<u64> {
    let every = every.load(Ordering::Relaxed);
    let call = calls.fetch_add(1, Ordering::Relaxed) + 1;
    (every > 0 && call.is_multiple_of(every)).then(|| call / every)
}

impl Faults {
    /// What is made of a move, and said of it if it was made.
    pub(super) fn lie(&self, len: u64) -> Option<Lie> {
        let number = is_due(&self.lies, &self.moves)?;
        let half = len / 2 / PAGE * PAGE;
        let lie = |len, bytes, error| Lie { len, said: Progress { bytes, error: Some(error) } };
        Some(match number % 6 {
            // As Linux 6.18 was seen to answer.
            0 => lie(len, 0, Errno::EXIST),
            1 => lie(len, half, Errno::EXIST),
            2 => lie(len, half, Errno::AGAIN),
            3 => lie(len, 0, Errno::BUSY),
            4 => lie(len, 0, Errno::NOENT),
            // Really not all of it; a huge page goes whole or not.
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

    /// The page that is brought back now is to be overwritten first.
    pub(super) fn spoils(&self) -> bool {
        is_due(&self.spoilt, &self.sprung).is_some()
    }

    /// The next run is to be left as it is.
    pub(super) fn leaves_uncopied(&self) -> bool {
        is_due(&self.uncopied, &self.copies).is_some()
    }

    /// Reads a page that is out.
    pub(super) fn touch(&self, at: usize) {
        let address = self.touched[at].swap(0, Ordering::Relaxed);
        if address != 0 {
            let byte: *const u8 = std::ptr::with_exposed_provenance(usize::try_from(address).expect("an address"));
            // SAFETY: a test's arena, which is mapped.
            unsafe { byte.read_volatile() };
        }
    }

    /// Pages are out, and stay so until the test goes on.
    pub(crate) fn out(&self) {
        let pause = self.pause.lock().expect("nobody panics with it").take();
        if let Some((out, go)) = pause {
            // The test has ended, or goes on.
            let _ = (out.send(()), go.recv());
        }
    }

    /// A run was copied, and others are out.
    pub(super) fn copied(&self) {
        assert!(!self.panics.swap(false, Ordering::Relaxed), "asked for by a test");
    }
}
