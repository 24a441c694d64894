//! Variants of the AVX-512 kernels: what is fastest depends on the processor. No variant changes a result.
//!
//! ```text
//! table of families ──► Variants ◄── Variants::measure(scratch), on other processors and by `telpher tune`
//!                          └──apply──► one word, which the kernels read
//! ```
#![forbid(unsafe_code)]

use crate::crc::CrcMode;
use crate::dif::{DifConfig, Tags};
use crate::{Hint, Kernels, Level, STREAM_BYTES, flush};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use telpher_abi::{DestDifFlags, DifBlock, DifFlags, SourceDifFlags};

/// The variants of this process.
///
/// ```
/// use telpher_ops::Variants;
///
/// let mut variants = Variants::current();
/// variants.set("compare", "32")?;
/// assert!(variants.to_string().contains("compare=32"));
/// variants.apply();
/// # Ok::<(), telpher_ops::VariantError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variants {
    /// CRC32C: the `crc32` instruction takes a part of long messages beside the multiplies. This pays off if a 512-bit
    /// carry-less multiply takes more than a cycle, and the prefetchers follow four positions at once.
    pub(crate) fuse_crc: bool,
    /// Compare: vectors of 32 bytes for data beyond 256 bytes.
    pub(crate) compare_by_32: bool,
    /// How far ahead of its loads a streaming copy prefetches, in lines of 64 bytes.
    pub(crate) stream_prefetch: u8,
    /// The same for guards of T10-DIF.
    pub(crate) guard_prefetch: u8,
}

/// Why a variant cannot be set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VariantError {
    /// There is no choice of this name.
    Name(String),
    /// The choice has no such value.
    Value {
        /// The choice.
        name: &'static str,
        /// The value.
        value: String,
    },
}

impl fmt::Display for VariantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VariantError::Name(name) => {
                let known = Variants::CHOICES.map(|(name, _)| name).join(", ");
                write!(f, "kernels have no variants of '{name}'; the choices are {known}")
            }
            VariantError::Value { name, value } => {
                let values = Variants::CHOICES.iter().find(|(known, _)| known == name).map_or("", |(_, values)| values);
                write!(f, "'{value}' is no variant of {name}; use {values}")
            }
        }
    }
}

impl std::error::Error for VariantError {}

/// AMD family 26 (Zen 5). Source: measured. The `crc32` instruction beside the multiply reaches 1.4 times the multiply
/// alone. Streaming copies from 1 to 64 MiB from memory reach 1.28 to 1.40 of `memcpy`, with less variation than
/// without prefetches and than at a distance of 1 KiB.
const ZEN_5: Variants = Variants { fuse_crc: true, compare_by_32: false, stream_prefetch: 64, guard_prefetch: 64 };

/// AMD family 25 with AVX-512 (Zen 4), whose data paths are 32 bytes wide. Source: measured in turns with the best
/// alternative, 1 KiB to 16 MiB. Of cold data from 4 KiB on, multiplies alone reach 0.95 to 1.05 of ISA-L's CRC32C, and
/// with the `crc32` instruction 0.52 to 0.82. Vectors of 32 bytes compare 0.97 to 1.23 times as fast as `memcmp`, those
/// of 64 bytes 0.81 to 0.99. Guards reach 0.95 to 1.04 of ISA-L's with a distance of 512 bytes, and 0.78 to 0.94 with
/// 4 KiB; streaming copies 1.70 to 1.74 of `memcpy`, and 1.50 to 1.54.
const ZEN_4: Variants = Variants { fuse_crc: false, compare_by_32: true, stream_prefetch: 8, guard_prefetch: 8 };

/// Other processors. *Assumed*: as on Zen 5, whose data paths are 64 bytes wide, too; but a multiply takes one cycle,
/// as Intel documents it for its processors with AVX-512.
const OTHERS: Variants = Variants { fuse_crc: false, ..ZEN_5 };

/// Families that were measured, by vendor (EBX, EDX and ECX of CPUID leaf 0) and family.
const FAMILIES: [(&str, u32, &str, Variants); 2] =
    [("AuthenticAMD", 25, "AMD family 25", ZEN_4), ("AuthenticAMD", 26, "AMD family 26", ZEN_5)];

/// The variants as a word, and [`CHOSEN`] once they are chosen.
static CURRENT: AtomicU32 = AtomicU32::new(0);

/// Distinguishes chosen variants from the initial word.
const CHOSEN: u32 = 1 << 31;

impl Variants {
    /// The choices by name, and their values.
    pub const CHOICES: [(&'static str, &'static str); 4] = [
        ("crc", "folded or fused"),
        ("compare", "32 or 64"),
        ("stream-prefetch", "a multiple of 64, at most 16320"),
        ("guard-prefetch", "a multiple of 64, at most 16320"),
    ];

    /// Returns the variants that this process uses: those applied last, otherwise those of the processor's family.
    #[must_use]
    #[inline]
    pub fn current() -> Variants {
        // Relaxed: the word is complete by itself.
        match CURRENT.load(Ordering::Relaxed) {
            0 => Variants::of_this_processor(),
            word => Variants::from_word(word),
        }
    }

    #[cold]
    fn of_this_processor() -> Variants {
        let variants = known_family().map_or(OTHERS, |(_, variants)| variants);
        // Relaxed, see above. Variants that another thread applied meanwhile stay.
        let _ = CURRENT.compare_exchange(0, variants.to_word(), Ordering::Relaxed, Ordering::Relaxed);
        variants
    }

    /// Makes these the variants of this process.
    pub fn apply(self) {
        // Relaxed, see `current`. A kernel that runs in another thread keeps the variants with which it began.
        CURRENT.store(self.to_word(), Ordering::Relaxed);
    }

    /// Returns the name of this processor's family if its variants were measured beforehand.
    #[must_use]
    pub fn family() -> Option<&'static str> {
        known_family().map(|(name, _)| name)
    }

    /// Sets one choice by its name.
    ///
    /// # Errors
    /// If there is no such choice, or it has no such value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), VariantError> {
        let Some((name, _)) = Variants::CHOICES.into_iter().find(|(known, _)| *known == name) else {
            return Err(VariantError::Name(name.into()));
        };
        let wrong = || VariantError::Value { name, value: value.into() };
        let lines = || {
            let bytes = value.parse::<u32>().ok().filter(|bytes| bytes.is_multiple_of(64));
            bytes.and_then(|bytes| u8::try_from(bytes / 64).ok()).ok_or_else(wrong)
        };
        match (name, value) {
            ("crc", "folded") => self.fuse_crc = false,
            ("crc", "fused") => self.fuse_crc = true,
            ("compare", "32") => self.compare_by_32 = true,
            ("compare", "64") => self.compare_by_32 = false,
            ("stream-prefetch", _) => self.stream_prefetch = lines()?,
            ("guard-prefetch", _) => self.guard_prefetch = lines()?,
            _ => return Err(wrong()),
        }
        Ok(())
    }

    /// Returns each choice's name and value.
    #[must_use]
    pub fn values(self) -> [(&'static str, String); 4] {
        let [crc, compare, stream, guard] = Variants::CHOICES.map(|(name, _)| name);
        let bytes = |lines: u8| (64 * u32::from(lines)).to_string();
        [
            (crc, if self.fuse_crc { "fused" } else { "folded" }.into()),
            (compare, if self.compare_by_32 { "32" } else { "64" }.into()),
            (stream, bytes(self.stream_prefetch)),
            (guard, bytes(self.guard_prefetch)),
        ]
    }

    /// Returns the distance of a streaming copy's prefetches in bytes.
    #[inline]
    pub(crate) fn stream_bytes(self) -> usize {
        64 * usize::from(self.stream_prefetch)
    }

    /// Returns the distance of the guards' prefetches in bytes.
    #[inline]
    pub(crate) fn guard_bytes(self) -> usize {
        64 * usize::from(self.guard_prefetch)
    }

    const fn to_word(self) -> u32 {
        CHOSEN
            | self.fuse_crc as u32
            | (self.compare_by_32 as u32) << 1
            | (self.stream_prefetch as u32) << 8
            | (self.guard_prefetch as u32) << 16
    }

    const fn from_word(word: u32) -> Variants {
        let [flags, stream_prefetch, guard_prefetch, _] = word.to_le_bytes();
        Variants { fuse_crc: flags & 1 == 1, compare_by_32: flags & 2 == 2, stream_prefetch, guard_prefetch }
    }

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

impl fmt::Display for Variants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values().map(|(name, value)| format!("{name}={value}"));
        f.write_str(&values.join(","))
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
    let begun = Instant::now();
    // Three rounds at least, so that a median is none of an interrupted run.
    while times[0].len() < 3 || begun.elapsed() < time {
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

/// Returns the entry of this processor's family.
fn known_family() -> Option<(&'static str, Variants)> {
    let (vendor, family) = crate::arch::vendor_and_family()?;
    FAMILIES
        .into_iter()
        .find(|(known, number, ..)| known.as_bytes() == vendor && *number == family)
        .map(|(_, _, name, variants)| (name, variants))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_texts_keep_every_choice() {
        for variants in [ZEN_4, ZEN_5, OTHERS] {
            assert_eq!(Variants::from_word(variants.to_word()), variants);
            assert_ne!(variants.to_word(), 0);
            let mut read = ZEN_5;
            for (name, value) in variants.values() {
                read.set(name, &value).unwrap();
            }
            assert_eq!(read, variants);
        }
        assert_eq!(ZEN_4.to_string(), "crc=folded,compare=32,stream-prefetch=512,guard-prefetch=512");
    }

    #[test]
    fn wrong_choices_are_refused_with_the_right_ones() {
        let refused = |name, value| ZEN_4.clone().set(name, value).unwrap_err().to_string();
        assert!(refused("crcs", "folded").contains("the choices are crc, compare,"));
        assert!(refused("crc", "fast").contains("folded or fused"));
        for value in ["100", "16384", "-64", ""] {
            assert!(refused("stream-prefetch", value).contains("a multiple of 64"), "{value}");
        }
    }

    #[test]
    fn the_variants_of_the_processors_family_are_used_and_measured_ones_are_legal() {
        let family = known_family();
        assert_eq!(Variants::family(), family.map(|(name, _)| name));
        let mut scratch = vec![0; Variants::SCRATCH];
        for time in [Duration::ZERO, LONG] {
            let measured = Variants::measure(&mut scratch, time);
            assert_eq!(Variants::from_word(measured.to_word()), measured);
        }
        assert_eq!(Variants::current(), family.map_or(OTHERS, |(_, variants)| variants), "measuring applies none");
    }
}
