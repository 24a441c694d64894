//! Loom: one thread submits work and notifies, while the listener looks for work and waits. Properties: the listener
//! sees all work, whenever it is notified; and it ends when it is told to (loom reports a deadlock otherwise).
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p telpher-vfio --test loom_work_signal`.
//! Seen to fail with `notify` that does not set `pending`, and with `wait` that clears it before it waits.
#![cfg(loom)]

#[allow(dead_code, reason = "the signal has no clock")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses a part of it")]
#[path = "../src/work_signal.rs"]
mod work_signal;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use work_signal::{Woken, WorkSignal};

#[test]
fn no_notification_is_lost() {
    loom::model(|| {
        let (work_signal, submitted) = (Arc::new(WorkSignal::new()), Arc::new(AtomicU32::new(0)));
        let submitter = {
            let (work_signal, submitted) = (Arc::clone(&work_signal), Arc::clone(&submitted));
            thread::spawn(move || {
                for _ in 0..2 {
                    // Relaxed: the signal orders it.
                    submitted.fetch_add(1, Ordering::Relaxed);
                    work_signal.notify();
                }
            })
        };
        let mut seen = 0;
        while seen < 2 {
            assert_eq!(work_signal.wait(None), Woken::Work);
            seen = submitted.load(Ordering::Relaxed);
        }
        submitter.join().unwrap();
        work_signal.end();
        while work_signal.wait(None) != Woken::End {}
        assert!(work_signal.has_ended());
    });
}
