//! A core's private cache: the lines that it holds, so that a program knows which accesses miss it.
//!
//! Set-associative with random replacement (seeded, so reproducible). The replacement policy of real processors is not
//! published, but it is not LRU. As buffer rings grow beyond the cache, they lose their lines gradually, not all at
//! once.

/// Largest possible size; larger requests are limited to it.
const MOST: u64 = 1 << 30;

/// Lines of 64 bytes.
#[derive(Debug)]
pub(super) struct CoreCache {
    /// Line number plus 1, or 0 for empty; the ways of a set are adjacent.
    lines: Vec<u64>,
    ways: usize,
    sets: usize,
    random: u64,
}

impl CoreCache {
    /// Creates an empty cache. The number of sets is rounded down to a power of two.
    pub(super) fn new(bytes: u64, ways: u32) -> Self {
        let ways = ways.clamp(1, 1024) as usize;
        let lines = usize::try_from(bytes.min(MOST) / 64).unwrap_or(usize::MAX);
        let sets = 1 << (lines / ways).max(1).ilog2();
        CoreCache { lines: vec![0; sets * ways], ways, sets, random: 0x9e37_79b9_7f4a_7c15 }
    }

    fn set(&mut self, line: u64) -> &mut [u64] {
        // Only the low bits matter, so truncation is harmless.
        #[allow(clippy::cast_possible_truncation, reason = "see above")]
        let first = (line as usize & (self.sets - 1)) * self.ways;
        &mut self.lines[first..first + self.ways]
    }

    /// The core reads or writes a line. Returns whether it was cached; it is cached afterwards.
    pub(super) fn touch(&mut self, line: u64) -> bool {
        // xorshift64, not `telpher_os::Random`: the predictions in `lab/claims` were made with this sequence.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let way = self.random % self.ways as u64;
        let set = self.set(line);
        if set.contains(&(line + 1)) {
            return true;
        }
        // Cannot be truncated: below the number of ways.
        #[allow(clippy::cast_possible_truncation, reason = "see above")]
        let way = set.iter().position(|held| *held == 0).unwrap_or(way as usize);
        set[way] = line + 1;
        false
    }

    /// Another core or a device writes the line: it is invalidated.
    pub(super) fn invalidate(&mut self, line: u64) {
        if let Some(held) = self.set(line).iter_mut().find(|held| **held == line + 1) {
            *held = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Share of misses in a cyclic walk over `lines` lines.
    fn misses(cache: &mut CoreCache, lines: u64) -> f64 {
        let turns = 20;
        let mut missed = 0;
        for turn in 0..2 * turns {
            for line in 0..lines {
                let hit = cache.touch(line);
                missed += u64::from(turn >= turns && !hit);
            }
        }
        missed as f64 / (lines * turns) as f64
    }

    #[test]
    fn rings_beyond_the_cache_lose_lines_gradually() {
        // With random replacement, the share of hits h satisfies h = exp(-(1 - h) lines / size): the misses of one turn
        // that evict a line.
        for (lines, expected) in [(1024_u64, 0.0), (1536, 0.58), (3072, 0.94)] {
            let share = misses(&mut CoreCache::new(64 << 10, 16), lines);
            assert!((share - expected).abs() < 0.06, "{lines} lines in 1024: {share} missed, {expected} expected");
        }
    }

    #[test]
    fn an_invalidated_line_misses() {
        let mut cache = CoreCache::new(4096, 4);
        assert!(!cache.touch(7));
        assert!(cache.touch(7));
        cache.invalidate(7);
        assert!(!cache.touch(7));
    }
}
