//! The preloaded part as a file in memory.

/// The shared object, as `build.rs` has built it.
pub const GUEST: &[u8] = include_bytes!(env!("TELPHER_GUEST_IMAGE"));
