//! A reader sees all words of a change or none, with one writer and with two.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-metrics --test loom_seqlock`.
//!
//! **Seen to fail**: without the fence of the writer, or of the reader; with a relaxed last store of a change, or a
//! relaxed exchange at its begin (with two writers).
#![cfg(loom)]

#[allow(dead_code, unused_imports, unreachable_pub, reason = "the test uses only a part")]
#[path = "../src/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the test uses only a part")]
#[path = "../src/seqlock.rs"]
mod seqlock;

use loom::sync::Arc;
use sync::{AtomicU64, Ordering};

struct Words {
    sequence: AtomicU64,
    words: [AtomicU64; 2],
}

impl Words {
    fn new() -> Arc<Words> {
        Arc::new(Words { sequence: AtomicU64::new(0), words: [AtomicU64::new(0), AtomicU64::new(0)] })
    }

    fn store(&self, value: u64) {
        self.words.iter().for_each(|word| word.store(value, Ordering::Relaxed));
    }

    /// Returns the words, if they are those of one change.
    fn read(&self) -> Option<[u64; 2]> {
        let load = || self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        let (words, settled) = seqlock::read(&self.sequence, load);
        settled.then_some(words)
    }
}

#[test]
fn a_reader_sees_the_words_of_one_change() {
    loom::model(|| {
        let words = Words::new();
        let writer = {
            let words = Arc::clone(&words);
            loom::thread::spawn(move || seqlock::write(&words.sequence, || words.store(1)))
        };
        if let Some([one, other]) = words.read() {
            assert_eq!(one, other);
        }
        writer.join().unwrap();
        assert_eq!(words.read(), Some([1, 1]));
    });
}

#[test]
fn two_writers_change_the_words_in_turns() {
    loom::model(|| {
        let words = Words::new();
        let add_one = |words: &Words| {
            // The second word is computed from the first, so that a change by two writers at once is seen.
            let change = || words.store(words.words[0].load(Ordering::Relaxed) + 1);
            u64::from(seqlock::write_among_others(&words.sequence, change).is_some())
        };
        let writer = {
            let words = Arc::clone(&words);
            loom::thread::spawn(move || add_one(&words))
        };
        let ours = add_one(&words);
        if let Some([one, other]) = words.read() {
            assert_eq!(one, other);
            assert!(one >= ours);
        }
        let changes = ours + writer.join().unwrap();
        assert_eq!(words.read(), Some([changes; 2]));
        assert!(changes > 0);
    });
}
