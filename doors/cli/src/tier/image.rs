//! The part that is preloaded into programs.

/// The shared object, as `build.rs` has built it.
pub(super) const GUEST: &[u8] = include_bytes!(env!("TELPHER_TIER_IMAGE"));
