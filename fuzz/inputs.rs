//! Inputs where no fuzzer is: seeded, the same ones each time, for as long as `TELPHER_SOAK_SECONDS` says.

use std::panic::RefUnwindSafe;
use std::time::{Duration, Instant};

/// Deterministic chance: splitmix64, Steele et al. 2014. Input `seed`, of a few words or of many, below so many each.
fn input(seed: u64, [few, many]: [u64; 2]) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    };
    let words = 1 + next() % if next() % 4 == 0 { many } else { few };
    (0..words).flat_map(|_| next().to_le_bytes()).collect()
}

/// Plays one input after another; panics as the first does that panics, and says which that is.
pub(crate) fn play_all(words: [u64; 2], play: impl Fn(&[u8]) + RefUnwindSafe) {
    let seconds = std::env::var("TELPHER_SOAK_SECONDS").map_or(1, |text| text.parse().expect("whole seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    // A short run repeats itself; a longer one goes on where the short one ended.
    for seed in 0.. {
        let input = input(seed, words);
        if let Err(panic) = std::panic::catch_unwind(|| play(&input)) {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
        if Instant::now() > end {
            eprintln!("{} inputs", seed + 1);
            return;
        }
    }
}
