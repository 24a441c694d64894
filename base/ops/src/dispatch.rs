//! Selects the kernels: once at the first call, or explicitly in tests and benches.
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::OnceLock;

pub use crate::arch::Kernels;

/// A family of kernels, slowest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[non_exhaustive]
pub enum Level {
    /// Safe Rust for any target.
    Portable,
    /// x86-64 with AVX2, SSE4.2 (`crc32`) and PCLMULQDQ.
    Avx2,
    /// x86-64 with AVX-512 F/BW/DQ/VL/VBMI/VBMI2, VPCLMULQDQ and GFNI: Ice Lake, Zen 4 and later.
    Avx512,
}

impl Level {
    /// All levels, slowest first.
    pub const ALL: [Level; 3] = [Level::Portable, Level::Avx2, Level::Avx512];

    /// Returns true if this CPU can run the level's kernels.
    #[must_use]
    pub fn is_available(self) -> bool {
        crate::arch::is_available(self)
    }

    /// Returns the level's name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Level::Portable => "portable",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Returns the level that the free functions of this crate use on this CPU.
#[must_use]
pub fn level() -> Level {
    Kernels::best().level()
}

/// Returns what the free functions of this crate use on this CPU, in words: the level and, of AVX-512, the variants of
/// its kernels.
#[must_use]
pub fn description() -> String {
    match level() {
        level @ Level::Avx512 => format!("{level} ({})", crate::Variants::current()),
        level => level.to_string(),
    }
}

impl Kernels {
    /// Returns the fastest kernels of this CPU, which the free functions of this crate use.
    #[must_use]
    #[inline]
    pub fn best() -> Kernels {
        static BEST: OnceLock<Kernels> = OnceLock::new();
        *BEST.get_or_init(|| Level::ALL.into_iter().rev().find_map(Kernels::new).unwrap_or(Kernels::PORTABLE))
    }

    /// Returns the kernels of every level this CPU has, slowest first.
    pub fn available() -> impl Iterator<Item = Kernels> {
        Level::ALL.into_iter().filter_map(Kernels::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_kernels_are_the_last_available_ones() {
        assert_eq!(Kernels::available().last().map(Kernels::level), Some(level()));
        assert!(Level::Portable.is_available());
    }

    #[test]
    fn the_description_begins_with_the_level_and_names_variants_of_avx512() {
        let text = description();
        assert!(text.starts_with(level().name()), "{text}");
        assert_eq!(text.contains("(crc="), level() == Level::Avx512, "{text}");
    }

    #[test]
    fn kernels_exist_exactly_where_their_level_is_available() {
        for level in Level::ALL {
            assert_eq!(Kernels::new(level).is_some(), level.is_available(), "{level}");
            if !level.is_available() {
                eprintln!("skipped here and in all other tests: {level}, which this CPU lacks");
            }
        }
    }
}
