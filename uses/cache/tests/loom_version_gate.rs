//! Readers and writers of bytes have permits: each reader sees the bytes of the version that its permit names.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-cache --test loom_version_gate`.
//!
//! Not covered: waits with a limit, because loom has no clock; the counts of `Arc`, which is the standard library's
//! here.
//!
//! **Seen to fail**: with a reader that does not check for a writer (it sees the words of two versions); with a permit
//! whose end does not wake waiting threads (a deadlock).
#![cfg(loom)]

#[allow(dead_code, unused_imports, reason = "the test uses only a part")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, unreachable_pub, reason = "the test uses only a part")]
#[path = "../src/version_gate.rs"]
mod version_gate;

use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use version_gate::VersionGate;

/// Bytes whose words are the number of their version. Relaxed: only the gate orders the accesses.
#[derive(Default)]
struct Shared {
    gate: VersionGate,
    words: [AtomicU64; 2],
}

impl Shared {
    fn write(&self) {
        let permit = self.gate.write(None).expect("no limit");
        self.words.iter().for_each(|word| word.store(word.load(Relaxed) + 1, Relaxed));
        drop(permit);
    }

    fn read(&self) {
        let permit = self.gate.read(None).expect("no limit");
        assert!(self.words.iter().all(|word| word.load(Relaxed) == permit.version()));
    }
}

#[test]
fn two_readers_see_the_version_of_their_permits_beside_a_writer() {
    loom::model(|| {
        let shared = Arc::new(Shared::default());
        let threads = [Shared::write as fn(&Shared), Shared::read].map(|act| {
            let shared = Arc::clone(&shared);
            loom::thread::spawn(move || act(&shared))
        });
        shared.read();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(shared.gate.version(), 1);
    });
}

#[test]
fn two_writers_follow_each_other() {
    loom::model(|| {
        let shared = Arc::new(Shared::default());
        let other = Arc::clone(&shared);
        let writer = loom::thread::spawn(move || other.write());
        shared.write();
        writer.join().unwrap();
        shared.read();
        assert_eq!(shared.gate.version(), 2);
    });
}
