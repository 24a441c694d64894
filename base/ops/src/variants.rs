//! Variants of the AVX-512 kernels: what is fastest depends on the processor. No variant changes a result.
//!
//! ```text
//! table of families ──► Variants ◄── Variants::measure(scratch), on other processors and by `telpher tune`
//!                          └──apply──► one word, which the kernels read
//! ```
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

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
}

impl fmt::Display for Variants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values().map(|(name, value)| format!("{name}={value}"));
        f.write_str(&values.join(","))
    }
}

/// Returns the entry of this processor's family.
#[cfg(target_arch = "x86_64")]
fn known_family() -> Option<(&'static str, Variants)> {
    let (vendor, family) = crate::arch::x86::cpuid::vendor_and_family();
    FAMILIES
        .into_iter()
        .find(|(known, number, ..)| known.as_bytes() == vendor && *number == family)
        .map(|(_, _, name, variants)| (name, variants))
}

/// Other architectures have no such kernels.
#[cfg(not(target_arch = "x86_64"))]
fn known_family() -> Option<(&'static str, Variants)> {
    None
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
}
