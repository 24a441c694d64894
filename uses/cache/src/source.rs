//! Sources: memory that does not move and that each user keeps alive.

use std::sync::Arc;
use telpher_mem::{PoolBuffer, Region, StableBuf};

/// Memory whose blocks can be cached. A clone is another owner of the same bytes, like an [`Arc`]. Each entry and
/// handle has one, so the memory exists, unchanged and not reused, as long as any of them.
pub trait Source: StableBuf + Clone + Sync {}

impl<B: StableBuf + Clone + Sync> Source for B {}

/// A source whose bytes can be read.
pub trait Readable: Source {
    /// Returns all bytes.
    fn bytes(&self) -> &[u8];
}

impl Readable for Arc<[u8]> {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Readable for &'static [u8] {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self
    }
}

macro_rules! readable {
    ($($owned:ty),*) => {$(
        impl Readable for Arc<$owned> {
            #[inline]
            fn bytes(&self) -> &[u8] {
                self
            }
        }
    )*};
}
readable!(Vec<u8>, Box<[u8]>, Region, PoolBuffer);
