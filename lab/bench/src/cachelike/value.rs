//! Values that can be checked: each carries its key and its generation, and all other bytes follow from these.

use super::distribution::LEAST_VALUE;
use telpher_os::Random;

/// Bytes of a word.
const WORD: usize = 8;
/// Difference between two words. Source: chosen; odd, so that no two words of a value are equal.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the third word of a value.
fn first_word(key: u64, generation: u64) -> u64 {
    Random::new(key ^ generation.rotate_left(32)).next()
}

/// Fills a value.
///
/// # Panics
/// If the value is shorter than [`LEAST_VALUE`].
pub(super) fn fill(value: &mut [u8], key: u64, generation: u64) {
    let (head, body) = value.split_at_mut(LEAST_VALUE);
    head[..WORD].copy_from_slice(&key.to_le_bytes());
    head[WORD..].copy_from_slice(&generation.to_le_bytes());
    let mut word = first_word(key, generation);
    for chunk in body.chunks_mut(WORD) {
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        word = word.wrapping_add(STEP);
    }
}

/// Returns the offset of the first wrong byte of a value; `None` if all are right.
pub(super) fn first_wrong(value: &[u8], key: u64, generation: u64) -> Option<usize> {
    // A shorter value has lost its end.
    let Some((head, body)) = value.split_at_checked(LEAST_VALUE) else { return Some(value.len()) };
    let mut expected = first_word(key, generation);
    // No branch for each word: the compiler compares several at a time.
    let mut differences = 0;
    let (words, rest) = body.as_chunks::<WORD>();
    for word in words {
        differences |= u64::from_le_bytes(*word) ^ expected;
        expected = expected.wrapping_add(STEP);
    }
    let is_right = differences == 0
        && head[..WORD] == key.to_le_bytes()
        && head[WORD..] == generation.to_le_bytes()
        && *rest == expected.to_le_bytes()[..rest.len()];
    if is_right {
        return None;
    }
    let mut right = vec![0; value.len()];
    fill(&mut right, key, generation);
    value.iter().zip(&right).position(|(byte, right)| byte != right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_byte_is_found_and_another_value_is_wrong() {
        for length in [16, 17, 23, 24, 100] {
            let mut value = vec![0; length];
            fill(&mut value, 7, 3);
            assert_eq!(first_wrong(&value, 7, 3), None);
            for at in 0..length {
                value[at] ^= 0x40;
                assert_eq!(first_wrong(&value, 7, 3), Some(at), "of {length} bytes");
                value[at] ^= 0x40;
            }
            assert_eq!((first_wrong(&value, 8, 3), first_wrong(&value, 7, 4)), (Some(0), Some(8)));
        }
        assert_eq!(first_wrong(&[0; 15], 0, 0), Some(15));
        // A part of another value of the same key is wrong, too.
        let (mut old, mut new) = ([0; 64], [0; 64]);
        fill(&mut old, 7, 1);
        fill(&mut new, 7, 2);
        new[32..].copy_from_slice(&old[32..]);
        assert_eq!(first_wrong(&new, 7, 2), Some(32));
    }
}
