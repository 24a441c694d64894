//! A core's own cache: which lines it holds, so that a program knows which of its accesses leave the core.
//!
//! Sets of ways, a random way replaced (seeded, so always the same): what the real one replaces is not published, and it is not the
//! line that was used longest ago. Buffers that take turns in rings then lose their lines little by little as the rings grow past
//! the cache, not all at once.

/// No core's own cache is larger; whoever asks for more gets this.
const MOST: u64 = 1 << 30;

/// Lines of 64 bytes.
#[derive(Debug)]
pub(super) struct CoreCache {
    /// Line and 1, or 0 for none; the ways of a set stand together.
    lines: Vec<u64>,
    ways: usize,
    sets: usize,
    chance: u64,
}

impl CoreCache {
    /// An empty one. Sets are a power of two, the next below what was asked for.
    pub(super) fn new(bytes: u64, ways: u32) -> Self {
        let ways = ways.clamp(1, 1024) as usize;
        let lines = usize::try_from(bytes.min(MOST) / 64).unwrap_or(usize::MAX);
        let sets = 1 << (lines / ways).max(1).ilog2();
        CoreCache { lines: vec![0; sets * ways], ways, sets, chance: 0x9e37_79b9_7f4a_7c15 }
    }

    fn set(&mut self, line: u64) -> &mut [u64] {
        // Of a longer number the low bits are what counts.
        #[allow(clippy::cast_possible_truncation, reason = "see above")]
        let first = (line as usize & (self.sets - 1)) * self.ways;
        &mut self.lines[first..first + self.ways]
    }

    /// The core reads or writes a line, which is in its cache then; whether it was before.
    pub(super) fn touch(&mut self, line: u64) -> bool {
        // xorshift64.
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        let way = self.chance % self.ways as u64;
        let set = self.set(line);
        if set.contains(&(line + 1)) {
            return true;
        }
        // Cannot be cut: below the number of ways.
        #[allow(clippy::cast_possible_truncation, reason = "see above")]
        let way = set.iter().position(|held| *held == 0).unwrap_or(way as usize);
        set[way] = line + 1;
        false
    }

    /// Another writes the line: it is gone from here.
    pub(super) fn lose(&mut self, line: u64) {
        if let Some(held) = self.set(line).iter_mut().find(|held| **held == line + 1) {
            *held = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Share of misses where so many lines take turns.
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
    fn what_fits_stays_and_what_does_not_is_lost_little_by_little() {
        // With a random way replaced, a share h of hits leaves h = exp(-(1 - h) lines / size): what of a turn's misses hits a line.
        for (lines, expected) in [(1024_u64, 0.0), (1536, 0.58), (3072, 0.94)] {
            let share = misses(&mut CoreCache::new(64 << 10, 16), lines);
            assert!((share - expected).abs() < 0.06, "{lines} lines in 1024: {share} missed, {expected} expected");
        }
    }

    #[test]
    fn a_line_that_another_writes_is_lost() {
        let mut cache = CoreCache::new(4096, 4);
        assert!(!cache.touch(7));
        assert!(cache.touch(7));
        cache.lose(7);
        assert!(!cache.touch(7));
    }
}
