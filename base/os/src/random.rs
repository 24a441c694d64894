//! A seeded generator of numbers that look random.

/// A generator: the same seed gives the same numbers on every machine. Not for secrets.
///
/// SplitMix64. Source: Steele, Lea and Flood, *Fast Splittable Pseudorandom Number Generators* (OOPSLA 2014).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number: all 64 bits look random.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "an iterator without an end would be in the way")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `bound`; 0 if the bound is 0.
    ///
    /// The upper half of a product, without the correction of Lemire, *Fast Random Integer Generation in an Interval*
    /// (2019): a number is more frequent than another by at most `bound` in 2⁶⁴.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        #[allow(clippy::cast_possible_truncation, reason = "the upper half of a product of two words is one word")]
        let below = ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64;
        below
    }

    /// Fills the bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Source: the first numbers of the published C program (S. Vigna, splitmix64.c) with the seed 1234567.
    #[test]
    fn the_numbers_are_those_of_the_published_program() {
        let mut random = Random::new(1_234_567);
        let numbers: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(numbers, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn numbers_below_a_bound_take_every_value() {
        let mut random = Random::new(1);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            seen[usize::try_from(random.below(10)).unwrap()] = true;
        }
        assert_eq!((seen, random.below(0)), ([true; 10], 0));
    }

    #[test]
    fn a_tail_shorter_than_a_word_is_filled() {
        let (mut whole, mut part) = ([0; 16], [0; 11]);
        Random::new(3).fill(&mut whole);
        Random::new(3).fill(&mut part);
        assert_eq!(whole[..11], part);
    }
}
