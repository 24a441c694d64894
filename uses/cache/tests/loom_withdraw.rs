//! Who begins a copy, calls it off, lets go of it and withdraws its source, all at once: it begins once or never, and nobody reads what
//! was withdrawn.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-cache --test loom_withdraw`.
//!
//! **Seen to fail**: a withdrawal that asks the mover for what was left to it, not `Reads` (a copy is read on whose entry is going at this
//! moment); one that does not wind up what it finds; a mention that is made after the copy has begun.
#![cfg(loom)]

#[allow(dead_code, unused_imports, reason = "the test uses a part of it")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, unreachable_pub, reason = "the test uses a part of it")]
#[path = "../src/effort.rs"]
mod effort;

#[allow(dead_code, unreachable_pub, reason = "the test uses a part of it")]
#[path = "../src/reads.rs"]
mod reads;

use effort::{Effort, Turn};
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use reads::{Read, Reads};
use std::sync::Arc;
use std::task::Poll;

/// What the device does, and what was left to the mover.
struct Mover {
    reads: Arc<Reads<u8>>,
    parked: Mutex<Vec<Read<u8>>>,
    began: AtomicUsize,
    /// The source was withdrawn, and may be anything.
    gone: AtomicBool,
}

impl Mover {
    fn new() -> Arc<Self> {
        let (parked, began) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
        Arc::new(Mover { reads: Reads::new(), parked, began, gone: AtomicBool::new(false) })
    }

    fn copy(self: &Arc<Self>) -> Job {
        let read = self.reads.begin(1);
        self.began.fetch_add(1, Ordering::SeqCst);
        Job { read: Some(read), mover: Arc::clone(self) }
    }

    /// The device reads until here.
    fn ends(&self, read: Read<u8>) {
        assert!(!self.gone.load(Ordering::SeqCst), "read after it was withdrawn");
        drop(read);
    }

    fn drive(&self) {
        let parked = std::mem::take(&mut *self.parked.lock().unwrap());
        parked.into_iter().for_each(|read| self.ends(read));
    }
}

/// A copy; who drops it leaves it to the mover.
struct Job {
    read: Option<Read<u8>>,
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

/// As an entry's.
enum Leg {
    Wanted,
    Flying(Job),
    Lost,
}

type Entry = Effort<Leg, bool>;

/// Begins it if it has not begun, and ends it otherwise.
fn turn(entry: &Entry, mover: &Arc<Mover>, may_begin: bool) -> bool {
    let turn = entry.turn(|leg| match std::mem::replace(leg, Leg::Lost) {
        Leg::Wanted if may_begin => {
            *leg = Leg::Flying(mover.copy());
            Poll::Pending
        }
        Leg::Wanted | Leg::Lost => Poll::Ready(false),
        Leg::Flying(job) => {
            job.end();
            Poll::Ready(true)
        }
    });
    matches!(turn, Turn::Done(_))
}

fn cancel(entry: &Entry) -> bool {
    let mut cancelled = false;
    entry.turn(|leg| match leg {
        Leg::Wanted => {
            cancelled = true;
            Poll::Ready(false)
        }
        Leg::Flying(_) | Leg::Lost => Poll::Pending,
    });
    cancelled
}

#[test]
fn what_is_called_off_never_begins_and_what_begins_does_so_once() {
    loom::model(|| {
        let (mover, entry) = (Mover::new(), loom::sync::Arc::new(Entry::new(Leg::Wanted)));
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
fn who_withdraws_comes_after_a_copy_that_is_being_let_go_of() {
    loom::model(|| {
        let mover = Mover::new();
        let entry = loom::sync::Arc::new(Entry::new(Leg::Wanted));
        // What a weak reference is: it can be had until the last one is being let go of.
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
