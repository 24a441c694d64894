//! Moves all memory to and fro, whatever is hot, to test whether a program tolerates it.

use std::time::{Duration, Instant};
use telpher_os::{Random, spawn_unsignalled};
use telpher_tier::{Heap, TierId};

/// Bytes that are moved together. Source: chosen, a huge page.
const BLOCK: u64 = 2 << 20;

/// Starts the thread, which moves at most `limit` bytes a second.
///
/// # Errors
/// The system refuses a thread.
pub(crate) fn start(heap: Heap, limit: Option<u64>) -> std::io::Result<()> {
    let run = move || {
        let mut random = Random::new(std::process::id().into());
        loop {
            let started = Instant::now();
            let moved = round(&heap, &mut random);
            let wanted = limit.map_or(Duration::ZERO, |limit| Duration::from_secs_f64(moved as f64 / limit as f64));
            // A program without memory yet must not cause a busy loop.
            std::thread::sleep(wanted.saturating_sub(started.elapsed()).max(Duration::from_millis(1)));
        }
    };
    spawn_unsignalled("telpher-shuffle", run).map(drop)
}

/// Moves each block of memory to a random tier; returns the bytes moved.
fn round(heap: &Heap, random: &mut Random) -> u64 {
    let (mut moved, tiers) = (0, heap.options().tiers.len() as u64);
    for range in heap.ranges() {
        let mut start = range.start;
        while start < range.end {
            let end = (start + 1).next_multiple_of(BLOCK).min(range.end);
            let to = TierId(u8::try_from(random.below(tiers)).unwrap_or(0));
            // What cannot be moved now is tried again in the next round.
            moved += heap.migrate(start..end, to).map_or(0, |moved| moved.pages * 4096);
            start = end;
        }
    }
    moved
}
