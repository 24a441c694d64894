//! A copy is begun, cancelled and dropped, and its source withdrawn, all concurrently: the copy begins once or never,
//! and nothing reads withdrawn bytes.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-cache --test loom_withdraw`.
//!
//! **Seen to fail**: a withdrawal that asks the mover for orphaned copies instead of `ActiveReads` (a copy whose entry
//! is just being dropped is still read); one that does not finish the copies that it finds; registering the read after
//! the copy has begun.
#![cfg(loom)]

#[allow(dead_code, unused_imports, reason = "the test uses only a part")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, unreachable_pub, reason = "the test uses only a part")]
#[path = "../src/shared_copy.rs"]
mod shared_copy;

#[allow(dead_code, unreachable_pub, reason = "the test uses only a part")]
#[path = "../src/reads.rs"]
mod reads;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use reads::{ActiveRead, ActiveReads};
use shared_copy::{SharedCopy, Turn};
use std::sync::Arc;
use std::task::Poll;

/// The device's copies, and those orphaned to the mover.
struct Mover {
    reads: Arc<ActiveReads<u8>>,
    parked: Mutex<Vec<ActiveRead<u8>>>,
    began: AtomicUsize,
    /// The source was withdrawn, and its memory may be reused.
    gone: AtomicBool,
}

impl Mover {
    fn new() -> Arc<Self> {
        let (parked, began) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
        Arc::new(Mover { reads: ActiveReads::new(), parked, began, gone: AtomicBool::new(false) })
    }

    fn copy(self: &Arc<Self>) -> Job {
        let read = self.reads.begin(1);
        self.began.fetch_add(1, Ordering::SeqCst);
        Job { read: Some(read), mover: Arc::clone(self) }
    }

    /// Ends the device's read.
    fn ends(&self, read: ActiveRead<u8>) {
        assert!(!self.gone.load(Ordering::SeqCst), "read after withdrawal");
        drop(read);
    }

    fn drive(&self) {
        let parked = std::mem::take(&mut *self.parked.lock().unwrap());
        parked.into_iter().for_each(|read| self.ends(read));
    }
}

/// A copy. Dropping it leaves it to the mover.
struct Job {
    read: Option<ActiveRead<u8>>,
    mover: Arc<Mover>,
}

impl Job {
    fn end(mut self) {
        let read = self.read.take();
        read.into_iter().for_each(|read| self.mover.ends(read));
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.mover.parked.lock().unwrap().extend(self.read.take());
    }
}

/// As in an entry.
enum CopyState {
    Wanted,
    InFlight(Job),
    Failed,
}

type Entry = SharedCopy<CopyState, bool>;

/// Begins the copy if it has not begun; otherwise ends it.
fn turn(entry: &Entry, mover: &Arc<Mover>, may_begin: bool) -> bool {
    let turn = entry.turn(|state| match std::mem::replace(state, CopyState::Failed) {
        CopyState::Wanted if may_begin => {
            *state = CopyState::InFlight(mover.copy());
            Poll::Pending
        }
        CopyState::Wanted | CopyState::Failed => Poll::Ready(false),
        CopyState::InFlight(job) => {
            job.end();
            Poll::Ready(true)
        }
    });
    matches!(turn, Turn::Done(_))
}

fn cancel(entry: &Entry) -> bool {
    let mut cancelled = false;
    entry.turn(|state| match state {
        CopyState::Wanted => {
            cancelled = true;
            Poll::Ready(false)
        }
        CopyState::InFlight(_) | CopyState::Failed => Poll::Pending,
    });
    cancelled
}

#[test]
fn a_cancelled_copy_never_begins_and_others_begin_once() {
    loom::model(|| {
        let (mover, entry) = (Mover::new(), loom::sync::Arc::new(Entry::new(CopyState::Wanted)));
        let waits = {
            let (mover, entry) = (Arc::clone(&mover), loom::sync::Arc::clone(&entry));
            loom::thread::spawn(move || {
                while !turn(&entry, &mover, true) {
                    loom::thread::yield_now();
                }
                entry.result().copied()
            })
        };
        let cancelled = cancel(&entry);
        let copied = waits.join().unwrap();
        assert_eq!(copied, Some(!cancelled));
        assert_eq!(mover.began.load(Ordering::SeqCst), usize::from(!cancelled));
        assert!(!mover.reads.any(|_| true));
    });
}

#[test]
fn withdraw_returns_after_a_copy_whose_entry_is_being_dropped() {
    loom::model(|| {
        let mover = Mover::new();
        let entry = loom::sync::Arc::new(Entry::new(CopyState::Wanted));
        // Like a weak reference: it can be upgraded until the last strong one is being dropped.
        let outside = Arc::new(Mutex::new(Some(loom::sync::Arc::clone(&entry))));
        let last = {
            let (mover, outside) = (Arc::clone(&mover), Arc::clone(&outside));
            loom::thread::spawn(move || {
                turn(&entry, &mover, true);
                let weak = outside.lock().unwrap().take();
                drop((weak, entry));
                mover.drive();
            })
        };
        let found = outside.lock().unwrap().clone();
        if let Some(entry) = found {
            while !turn(&entry, &mover, false) {
                loom::thread::yield_now();
            }
        }
        while mover.reads.any(|_| true) {
            mover.drive();
            loom::thread::yield_now();
        }
        mover.gone.store(true, Ordering::SeqCst);
        last.join().unwrap();
        mover.drive();
    });
}
