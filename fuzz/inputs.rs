//! Inputs without a fuzzer: seeded, reproducible, for the number of seconds in `TELPHER_SOAK_SECONDS`.

use std::panic::RefUnwindSafe;
use std::time::{Duration, Instant};

/// The input of a seed: mostly up to `few` words, sometimes up to `many`.
fn input(seed: u64, [few, many]: [u64; 2]) -> Vec<u8> {
    let mut random = telpher_os::Random::new(seed);
    let words = 1 + random.next() % if random.next().is_multiple_of(4) { many } else { few };
    (0..words).flat_map(|_| random.next().to_le_bytes()).collect()
}

/// Runs one input after another; passes on the first panic, and prints its seed.
pub(crate) fn play_all(words: [u64; 2], play: impl Fn(&[u8]) + RefUnwindSafe) {
    let seconds = std::env::var("TELPHER_SOAK_SECONDS").map_or(1, |text| text.parse().expect("whole seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    // Every run begins with seed 0; a longer run continues where a shorter one ends.
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
