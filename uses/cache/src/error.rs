//! The errors of this crate.

use std::ops::Range;

/// Why a block cannot be accessed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The range is empty.
    #[error("the range is empty; access at least one byte")]
    Empty,
    /// The range exceeds the source.
    #[error("bytes {} to {} exceed the source of {len} bytes", range.start, range.end)]
    Outside {
        /// The range.
        range: Range<usize>,
        /// The length of the source in bytes.
        len: usize,
    },
    /// There is no such tier.
    #[error("there is no tier {tier}: the cache has {tiers}, numbered from 0")]
    NoSuchTier {
        /// The tier named.
        tier: usize,
        /// The number of tiers.
        tiers: usize,
    },
}

/// Why a cache cannot be created.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no tier.
    #[error("a cache needs at least one tier; give it a pool")]
    NoTier,
    /// A policy names a missing tier.
    #[error("the placement names tier {tier}, but there are {tiers}, numbered from 0")]
    NoSuchTier {
        /// The tier named.
        tier: usize,
        /// The number of tiers.
        tiers: usize,
    },
}
