//! Moves all memory to and fro, whatever is hot, to test whether a program tolerates it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use telpher_os::{Random, spawn_unsignalled};
use telpher_tier::{Heap, TierId};

/// Bytes that are moved together. Source: chosen, a huge page.
const BLOCK: u64 = 2 << 20;

/// Pages that this module moved so far.
#[derive(Debug, Default)]
pub(crate) struct Shuffled {
    promoted: AtomicU64,
    demoted: AtomicU64,
}

impl Shuffled {
    /// Returns the pages that moved to a faster tier, and to a slower one. **Staleness**: pages are moving.
    pub(crate) fn by_direction(&self) -> (u64, u64) {
        // Relaxed: both are only shown.
        (self.promoted.load(Ordering::Relaxed), self.demoted.load(Ordering::Relaxed))
    }

    fn add(&self, promoted: u64, demoted: u64) {
        self.promoted.fetch_add(promoted, Ordering::Relaxed);
        self.demoted.fetch_add(demoted, Ordering::Relaxed);
    }
}

/// Starts the thread, which moves at most `limit` bytes a second; returns its counters.
///
/// # Errors
/// The system refuses a thread.
pub(crate) fn start(heap: Heap, limit: Option<u64>) -> std::io::Result<Arc<Shuffled>> {
    let shuffled = Arc::new(Shuffled::default());
    let counters = shuffled.clone();
    let run = move || {
        let mut random = Random::new(std::process::id().into());
        loop {
            let started = Instant::now();
            let moved = round(&heap, &mut random, &counters);
            let wanted = limit.map_or(Duration::ZERO, |limit| Duration::from_secs_f64(moved as f64 / limit as f64));
            // A program without memory yet must not cause a busy loop.
            std::thread::sleep(wanted.saturating_sub(started.elapsed()).max(Duration::from_millis(1)));
        }
    };
    spawn_unsignalled("telpher-shuffle", run)?;
    Ok(shuffled)
}

/// Moves each block of memory to a random tier; returns the bytes moved.
fn round(heap: &Heap, random: &mut Random, counters: &Shuffled) -> u64 {
    let (mut moved, tiers) = (0, heap.options().tiers.len() as u64);
    for range in heap.ranges() {
        let mut start = range.start;
        while start < range.end {
            let end = (start + 1).next_multiple_of(BLOCK).min(range.end);
            let to = u8::try_from(random.below(tiers)).unwrap_or(0);
            // On a tier in the middle, pages come from both sides.
            let before = match u64::from(to) {
                0 => Vec::new(),
                last if last + 1 == tiers => Vec::new(),
                _ => heap.residency(start..end).unwrap_or_default(),
            };
            // What cannot be moved now is tried again in the next round.
            let pages = heap.migrate(start..end, TierId(to)).map_or(0, |moved| moved.pages);
            let (promoted, demoted) = directions(pages, usize::from(to), &before);
            counters.add(promoted, demoted);
            moved += pages * 4096;
            start = end;
        }
    }
    moved
}

/// Divides pages that moved to a tier into promoted and demoted ones, by where the range's pages were `before`: if some
/// of these stayed, in proportion. `before` is not needed for the first tier and the last.
fn directions(pages: u64, to: usize, before: &[u64]) -> (u64, u64) {
    let faster: u64 = before.iter().take(to).sum();
    let slower: u64 = before.iter().skip(to + 1).sum();
    let promoted = match faster + slower {
        0 if to == 0 => pages,
        0 => 0,
        // Ranges have at most `BLOCK` bytes, so the product fits.
        all => pages * slower / all,
    };
    (promoted, pages - promoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_follow_from_the_tier_or_from_where_pages_were() {
        assert_eq!(directions(7, 0, &[]), (7, 0));
        assert_eq!(directions(7, 2, &[]), (0, 7));
        assert_eq!(directions(12, 1, &[4, 100, 8]), (8, 4));
        assert_eq!(directions(6, 1, &[4, 100, 8]), (4, 2));
        // Pages that came meanwhile.
        assert_eq!(directions(3, 1, &[0, 5, 0]), (0, 3));
    }
}
