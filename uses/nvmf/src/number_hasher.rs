//! Hash maps whose keys are numbers that this crate counts up itself.

use std::hash::{BuildHasherDefault, Hasher};

/// A map from such numbers. A host cannot choose them, so the default hasher's protection is not needed.
pub type NumberMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Spreads one number over all bits, by a multiplication (Fibonacci hashing).
#[derive(Clone, Copy, Debug, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0 << 8 | u64::from(*byte)));
    }

    fn write_u64(&mut self, number: u64) {
        // The map uses the highest and the lowest bits.
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_keeps_what_it_was_given() {
        let mut map: NumberMap<u64, u64> = NumberMap::default();
        (0..5000).for_each(|number| assert_eq!(map.insert(number, number + 1), None));
        assert!((0..5000).all(|number| map.remove(&number) == Some(number + 1)) && map.is_empty());
    }

    #[test]
    fn neighbours_differ_in_the_bits_that_a_map_uses() {
        let hash = |number: u64| {
            let mut hasher = NumberHasher::default();
            hasher.write_u64(number);
            hasher.finish()
        };
        let low: std::collections::HashSet<u64> = (0..256).map(|number| hash(number) & 0xfff).collect();
        let high: std::collections::HashSet<u64> = (0..256).map(|number| hash(number) >> 57).collect();
        assert!(low.len() > 240 && high.len() > 64, "{} {}", low.len(), high.len());
    }
}
