//! The library that is preloaded into programs.

/// The shared object, built by `build.rs`.
pub(super) const GUEST: &[u8] = include_bytes!(env!("TELPHER_TIER_IMAGE"));
