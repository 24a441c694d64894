//! Which long calls the trace keeps: whole blocks of consecutive calls, all equally likely.
//!
//! Long calls are numbered in the order in which they begin, over all threads. A block is [`BLOCK`] consecutive
//! numbers, so the order and the overlap of its calls are complete. The first blocks fill the trace. After that, block
//! `i` (counted from 0) replaces a random one with probability `blocks / (i + 1)`, and is left out otherwise (Vitter,
//! "Random Sampling with a Reservoir", 1985, algorithm R). The random number is a function of `i`: every thread comes
//! to the same decision without asking the others.

/// Calls of a block. Source: chosen; 256 calls of 16 KiB take at least 0.1 ms, long enough to see several threads.
pub const BLOCK: u64 = 256;

/// Returns the slot for a call, of a trace with this number of blocks; `None` if the call is left out.
pub(crate) fn slot_of(number: u64, blocks: u64) -> Option<u64> {
    let (block, within) = (number / BLOCK, number % BLOCK);
    let place = if block < blocks { block } else { random_below(block, block.checked_add(1)?) };
    (place < blocks).then(|| place * BLOCK + within)
}

/// A number below `end` that depends on `seed` only.
fn random_below(seed: u64, end: u64) -> u64 {
    // SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
    let mut mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    // The high half of the product is below `end`; a division would take longer.
    let product = u128::from(mixed) * u128::from(end);
    u64::try_from(product >> 64).expect("the high half of 128 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_calls_fill_the_trace_in_order() {
        assert!((0..8 * BLOCK).all(|number| slot_of(number, 8) == Some(number)));
        assert_eq!(slot_of(5, 0), None);
        assert_eq!(slot_of(u64::MAX, 1 << 16).filter(|slot| *slot >= BLOCK << 16), None);
    }

    #[test]
    fn later_blocks_are_kept_or_left_out_as_a_whole() {
        for block in 8..200 {
            let slots: Vec<Option<u64>> = (0..BLOCK).map(|at| slot_of(block * BLOCK + at, 8)).collect();
            let expected: Vec<Option<u64>> = (0..BLOCK).map(|at| slots[0].map(|first| first + at)).collect();
            assert_eq!(slots, expected);
        }
    }

    /// Of 64 blocks that remain from 64 × 64, about as many are from each eighth of the time.
    #[test]
    fn what_remains_is_spread_over_the_whole_time() {
        let (blocks, all) = (64, 64 * 64);
        let mut remaining = vec![0; 64];
        for block in 0..all {
            if let Some(slot) = slot_of(block * BLOCK, blocks) {
                remaining[usize::try_from(slot / BLOCK).unwrap()] = block;
            }
        }
        let eighths: Vec<usize> =
            (0..8).map(|part| remaining.iter().filter(|block| **block * 8 / all == part).count()).collect();
        // The function has no seed, so these are always the same numbers; 8 are expected on average.
        assert!(eighths.iter().all(|count| (2..=16).contains(count)), "{eighths:?}");
    }
}
