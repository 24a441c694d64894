//! A co-runner: follows pointers through a working set at random and measures its own access latency.

use super::measure::to_ns;
use std::time::{Duration, Instant};

/// One cache line; only its first word is read.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line {
    next: u32,
}

/// A working set whose lines form one cycle in random order, so that no prefetcher can predict the next line.
#[derive(Debug)]
pub(crate) struct Chase {
    lines: Vec<Line>,
    at: u32,
}

impl Chase {
    /// Creates a cycle through `bytes`, of at least two lines.
    pub(crate) fn new(bytes: u64) -> Self {
        let count = u32::try_from(bytes / 64).unwrap_or(u32::MAX).max(2);
        let mut lines: Vec<Line> = (0..count).map(|next| Line { next }).collect();
        // Sattolo's shuffle yields a permutation with a single cycle. The seed is fixed, so that runs are alike.
        let mut random = telpher_os::Random::new(1);
        for i in (1..count as usize).rev() {
            let j = usize::try_from(random.below(i as u64)).expect("smaller than an index");
            let next = lines[i].next;
            lines[i].next = lines[j].next;
            lines[j].next = next;
        }
        Chase { lines, at: 0 }
    }

    /// Follows the pointers for `time`; returns nanoseconds per access.
    pub(crate) fn run(&mut self, time: Duration) -> f64 {
        const HOPS: u64 = 2048;
        let (start, mut hops, mut at) = (Instant::now(), 0, self.at as usize);
        loop {
            for _ in 0..HOPS {
                // Each index depends on the line before, so the latency cannot be hidden.
                at = self.lines[at].next as usize;
            }
            hops += HOPS;
            let elapsed = start.elapsed();
            if elapsed >= time {
                self.at = u32::try_from(std::hint::black_box(at)).expect("indices come from u32");
                return to_ns(elapsed) / hops as f64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_visited_once_a_round() {
        let chase = Chase::new(64 << 10);
        let (mut at, mut seen) = (0, vec![false; chase.lines.len()]);
        for _ in 0..chase.lines.len() {
            assert!(!seen[at]);
            seen[at] = true;
            at = chase.lines[at].next as usize;
        }
        assert_eq!(at, 0);
    }

    #[test]
    fn an_access_takes_time() {
        let ns = Chase::new(4096).run(Duration::from_millis(2));
        assert!(ns > 0.1 && ns < 1e6, "{ns}");
    }
}
