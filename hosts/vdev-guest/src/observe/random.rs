//! Repeatable random numbers: the result for a descriptor depends on the seed and on the descriptor's number, not on
//! when it is drawn, so thread scheduling does not change it.
//!
//! SplitMix64: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.

/// What a random number is used for. Each purpose has its own stream, so that enabling one injection does not change
/// the others.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(super) enum Purpose {
    Retry = 1,
    Fault = 2,
    Status = 3,
    Delay = 4,
    Reorder = 5,
    Lose = 6,
}

/// The random numbers for one purpose of one descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct RandomStream(u64);

/// The increment of SplitMix64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(state: u64) -> u64 {
    let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl RandomStream {
    /// The stream for a descriptor: `member` is its position in its batch plus one, or 0.
    pub(super) fn of(seed: u64, submission: u64, member: u32, purpose: Purpose) -> Self {
        let words = [submission, u64::from(member), purpose as u64];
        RandomStream(words.iter().fold(mix(seed), |state, word| mix(state.wrapping_add(GOLDEN) ^ *word)))
    }

    /// The next 64 bits.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// The stream from its `n`-th number on.
    pub(super) fn skip(self, n: u64) -> Self {
        RandomStream(self.0.wrapping_add(GOLDEN.wrapping_mul(n)))
    }

    /// True with a probability of `rate` parts of 2^32; `u32::MAX` is always.
    pub(super) fn hits(&mut self, rate: u32) -> bool {
        let drawn = self.next() >> 32;
        rate == u32::MAX || drawn < u64::from(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_splitmix64() {
        // Source: the first outputs of the reference implementation for state 0, as in the test suites of several
        // libraries.
        let mut random = RandomStream(0);
        assert_eq!(random.next(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.next(), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!(random.next(), 0x06c4_5d18_8009_454f);
    }

    #[test]
    fn each_descriptor_has_its_own_repeatable_numbers() {
        let random = |seed, n, member, purpose| RandomStream::of(seed, n, member, purpose).next();
        assert_eq!(random(1, 2, 3, Purpose::Fault), random(1, 2, 3, Purpose::Fault));
        let one = random(1, 2, 3, Purpose::Fault);
        let others = [
            random(2, 2, 3, Purpose::Fault),
            random(1, 3, 3, Purpose::Fault),
            random(1, 2, 2, Purpose::Fault),
            random(1, 2, 3, Purpose::Lose),
            random(1, 3, 2, Purpose::Fault),
        ];
        assert!(others.iter().all(|other| *other != one));
    }

    #[test]
    fn skip_advances_like_next() {
        let mut random = RandomStream::of(1, 1, 1, Purpose::Fault);
        let mut skipped = random.skip(3);
        let _ = [random.next(), random.next(), random.next()];
        assert_eq!(random.next(), skipped.next());
    }

    #[test]
    fn hits_occur_at_the_given_rate() {
        let hits = |rate| (0..100_000).filter(|n| RandomStream::of(7, *n, 0, Purpose::Status).hits(rate)).count();
        assert_eq!((hits(0), hits(u32::MAX)), (0, 100_000));
        // 1 %: four standard deviations are 126.
        let hundredth = hits(u32::MAX / 100);
        assert!((874..=1126).contains(&hundredth), "{hundredth}");
    }
}
