//! What cannot be asked for.

use std::ops::Range;

/// Why no block can be had.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// There is nothing to copy.
    #[error("an empty block was asked for; ask for at least one byte")]
    Empty,
    /// It is not all in the source.
    #[error("bytes {} to {} were asked for of a source of {len} bytes", range.start, range.end)]
    Outside {
        /// Asked for.
        range: Range<usize>,
        /// Bytes of the source.
        len: usize,
    },
    /// There is no such tier.
    #[error("tier {tier} was asked for, and the cache has {tiers}")]
    NoSuchTier {
        /// Asked for.
        tier: usize,
        /// How many there are.
        tiers: usize,
    },
}

/// Why a cache cannot be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is nowhere to copy to.
    #[error("a cache without a tier has nowhere to copy to; give it a pool")]
    NoTier,
    /// A policy names what is not there.
    #[error("blocks are to be placed in tier {tier}, and there are {tiers}")]
    NoSuchTier {
        /// Named.
        tier: usize,
        /// How many there are.
        tiers: usize,
    },
}
