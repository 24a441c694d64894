//! The part that is preloaded into programs.

/// The shared object, as `build.rs` has built it.
pub const GUEST: &[u8] = include_bytes!(env!("TELPHER_GUEST_IMAGE"));
