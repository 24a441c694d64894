//! Programs that write while their pages are moved, and know what they have written.
#![allow(unsafe_code, reason = "does what programs do to their memory, by address")]

use std::io::{Read, Seek};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;

/// How long a soak goes on.
pub(crate) fn soak() -> Duration {
    let seconds = std::env::var("TELPHER_SOAK_SECONDS").map_or(1, |text| text.parse().expect("whole seconds"));
    Duration::from_secs(seconds)
}

/// True in a process of its own, in which this test, by its whole name, is run once more: for those that fork, which all heaps of a process feel.
pub(crate) fn is_alone(test: &str) -> bool {
    /// Set there.
    const ALONE: &str = "TELPHER_TIER_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let run = command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&run.stderr));
    false
}

/// An arena as a program has memory: words by address, that several threads use.
pub(crate) struct Words(u64);

impl Words {
    pub(crate) fn at(&self, word: u64) -> &AtomicU64 {
        // SAFETY: a word of an arena that lives as long as the test, which nobody has as a slice meanwhile.
        unsafe { &*std::ptr::with_exposed_provenance::<AtomicU64>(usize::try_from(self.0 + word * 8).unwrap()) }
    }
}

/// Ends the threads of a test, however the test ends.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A small generator: xorshift, Marsaglia 2003.
pub(crate) fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Words of a page.
const WORDS: u64 = PAGE / 8;

/// What moves the pages of a range to this tier, of two.
pub(crate) type Migrate<'a> = &'a (dyn Fn(std::ops::Range<u64>, u8) + Sync);

/// Writers with words of their own, counters that all add to, a thread that has the kernel write, and one whose word only grows, over so many
/// pages, while `migrate` moves them. Returns how many words were not as they were left.
pub(crate) fn lost_writes(start: u64, pages: u64, migrate: Migrate) -> u64 {
    let words = Words(start);
    let (over, lost) = (AtomicBool::new(false), AtomicU64::new(0));
    let added = AtomicU64::new(0);
    let source = Mutex::new(std::fs::File::open("/proc/self/exe").unwrap());
    let mut head = vec![0_u8; 4096];
    source.lock().unwrap().read_exact(&mut head).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..2_u64 {
            let (words, over, lost, added) = (&words, &over, &lost, &added);
            scope.spawn(move || {
                let mut own = vec![0_u64; usize::try_from(pages).unwrap()];
                let (mut state, mut number) = (writer + 1, 0);
                while !over.load(Ordering::Relaxed) {
                    let page = next(&mut state) % pages;
                    let place = usize::try_from(page).unwrap();
                    // Its own word of the page; then one that all add to.
                    let word = words.at(page * WORDS + 1 + writer);
                    lost.fetch_add(u64::from(word.load(Ordering::Relaxed) != own[place]), Ordering::Relaxed);
                    number += 1;
                    own[place] = number;
                    word.store(number, Ordering::Relaxed);
                    words.at(page * WORDS).fetch_add(1, Ordering::Relaxed);
                    added.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            // The kernel writes half a page of the last one, as the file has it.
            while !over.load(Ordering::Relaxed) {
                let mut source = source.lock().unwrap();
                source.rewind().unwrap();
                let at = start + (pages - 1) * PAGE + 2048;
                // SAFETY: the second half of the last page, which is this thread's.
                let half = unsafe {
                    std::slice::from_raw_parts_mut(
                        std::ptr::with_exposed_provenance_mut(usize::try_from(at).unwrap()),
                        2048,
                    )
                };
                half.fill(0);
                source.read_exact(half).expect("a system call waits for its page, as any touch does");
                lost.fetch_add(u64::from(half != &head[..2048]), Ordering::Relaxed);
            }
        });
        scope.spawn(|| {
            let word = words.at(3);
            let mut last = 0;
            while !over.load(Ordering::Relaxed) {
                let seen = word.fetch_add(1, Ordering::Relaxed);
                lost.fetch_add(u64::from(seen != last), Ordering::Relaxed);
                last = seen + 1;
                std::thread::yield_now();
            }
        });
        let _over = Over(&over);
        let (end, mut state) = (Instant::now() + soak(), 99);
        // On a machine that is busy, or emulated, too, pages move.
        let mut calls = 0;
        while Instant::now() < end || calls < 400 {
            calls += 1;
            let (first, len) = (next(&mut state) % pages, 1 + next(&mut state) % 64);
            let range = start + first * PAGE..start + (first + len).min(pages) * PAGE;
            migrate(range, u8::try_from(next(&mut state) % 2).unwrap());
        }
    });
    // What is lost may leave anything there.
    let counters = (0..pages).map(|page| words.at(page * WORDS).load(Ordering::Relaxed));
    let sum = counters.fold(0, u64::wrapping_add);
    lost.load(Ordering::Relaxed).saturating_add(added.load(Ordering::Relaxed).abs_diff(sum))
}
