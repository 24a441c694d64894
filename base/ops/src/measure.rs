//! Measures the variants of the kernels on this processor.
#![forbid(unsafe_code)]

use crate::crc::CrcMode;
use crate::dif::{DifConfig, Tags};
use crate::{Hint, Kernels, Level, STREAM_BYTES, Variants, flush};
use std::time::{Duration, Instant};
use telpher_abi::{DestDifFlags, DifBlock, DifFlags, SourceDifFlags};

impl Variants {
    /// Bytes of memory that [`Variants::measure`] needs: a source and a destination of a streaming copy.
    pub const SCRATCH: usize = 2 * STREAM_BYTES;

    /// Measures the variants on data that is not in the cache, in turns, for about `time`; returns the fastest ones. A
    /// variant replaces the current one if it is faster by a twentieth. Applies none. Without AVX-512 it returns the
    /// current variants.
    ///
    /// Streaming copies, which are long, are measured only if `time` is at least ten milliseconds.
    ///
    /// The variants of the process change while it measures; other threads get correct results all the same.
    ///
    /// # Panics
    /// If `scratch` has fewer than [`Variants::SCRATCH`] bytes.
    #[must_use]
    pub fn measure(scratch: &mut [u8], time: Duration) -> Variants {
        let before = Variants::current();
        assert!(scratch.len() >= Variants::SCRATCH, "the scratch memory has {} bytes", Variants::SCRATCH);
        if crate::dispatch::level() != Level::Avx512 {
            return before;
        }
        let share = time / u32::try_from(MEASURED.len()).expect("a few");
        let measured = MEASURED.iter().filter(|choice| choice.bytes <= BYTES || time >= LONG);
        let chosen = measured.fold(before, |best, choice| fastest(best, choice, scratch, share));
        before.apply();
        chosen
    }
}

/// One choice with the values that are measured, and the operation that depends on it.
struct MeasuredChoice {
    name: &'static str,
    values: &'static [&'static str],
    /// Bytes of a source and of a destination.
    bytes: usize,
    run: fn(&[u8], &mut [u8]),
}

/// Bytes of a measured operation. Source: chosen: several pages, and twenty runs take less than a millisecond.
const BYTES: usize = 32 << 10;

/// The shortest measurement that includes long operations: a megabyte takes a third of a millisecond, flushes included.
const LONG: Duration = Duration::from_millis(10);

/// How much faster a variant must be to replace the current one. Source: chosen, above the noise of medians.
const GAIN: f64 = 0.95;

const DISTANCES: &[&str] = &["512", "1024", "2048", "4096"];

const MEASURED: [MeasuredChoice; 4] = [
    MeasuredChoice {
        name: "crc",
        values: &["folded", "fused"],
        bytes: BYTES,
        run: |src, _| {
            std::hint::black_box(Kernels::best().crc32c(0, src, CrcMode::default()));
        },
    },
    MeasuredChoice {
        name: "compare",
        values: &["32", "64"],
        bytes: BYTES,
        run: |src, dst| {
            std::hint::black_box(Kernels::best().compare(src, dst));
        },
    },
    MeasuredChoice {
        name: "stream-prefetch",
        values: DISTANCES,
        bytes: STREAM_BYTES,
        run: |src, dst| Kernels::best().copy(src, dst, Hint::Memory),
    },
    MeasuredChoice {
        name: "guard-prefetch",
        values: DISTANCES,
        bytes: BYTES,
        run: |src, dst| {
            let config = DifConfig {
                block: DifBlock::B512,
                flags: DifFlags::empty(),
                source: SourceDifFlags::empty(),
                dest: DestDifFlags::empty(),
            };
            let mut tags = Tags { ref_tag: 0, app_mask: 0, app_tag: 0 };
            Kernels::best().dix_generate(&config, src, &mut dst[..src.len() / 64], &mut tags);
        },
    },
];

/// Returns `best` with the fastest value of a choice.
fn fastest(best: Variants, choice: &MeasuredChoice, scratch: &mut [u8], time: Duration) -> Variants {
    let mut candidates = vec![best];
    for value in choice.values {
        let mut candidate = best;
        candidate.set(choice.name, value).expect("a value of the table");
        if candidate != best {
            candidates.push(candidate);
        }
    }
    let (src, dst) = scratch.split_at_mut(STREAM_BYTES);
    let (src, dst) = (&mut src[..choice.bytes], &mut dst[..choice.bytes]);
    // Equal bytes, so that a comparison reads all of them.
    src.fill(0x5a);
    dst.fill(0x5a);
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); candidates.len()];
    let started = Instant::now();
    // Three rounds at least, so that a median is none of an interrupted run.
    while times[0].len() < 3 || started.elapsed() < time {
        for (candidate, times) in candidates.iter().zip(&mut times) {
            candidate.apply();
            flush::flush(src);
            flush::flush(dst);
            let start = Instant::now();
            (choice.run)(src, dst);
            times.push(start.elapsed());
        }
    }
    let medians = times.into_iter().map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64()
    });
    let medians: Vec<f64> = medians.collect();
    let (fastest, least) =
        candidates.iter().zip(&medians).min_by(|a, b| a.1.total_cmp(b.1)).expect("at least the current one");
    if *least < GAIN * medians[0] { *fastest } else { best }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_variants_are_legal_and_not_applied() {
        let before = Variants::current();
        let mut scratch = vec![0; Variants::SCRATCH];
        for time in [Duration::ZERO, LONG] {
            let measured = Variants::measure(&mut scratch, time);
            let mut read = before;
            for (name, value) in measured.values() {
                read.set(name, &value).unwrap();
            }
            assert_eq!(read, measured);
        }
        assert_eq!(Variants::current(), before, "measuring applies none");
    }
}
