//! What can be cached: memory that stays where it is, and is kept by whoever needs it.

use std::sync::Arc;
use telpher_mem::{Piece, Region, StableBuf};

/// Memory to cache blocks of. A clone is another owner of the same bytes, as of an [`Arc`]: entries and handles have one each, so that
/// the memory is there, unchanged and nobody else's, as long as any of them is.
pub trait Source: StableBuf + Clone + Sync {}

impl<B: StableBuf + Clone + Sync> Source for B {}

/// A source whose bytes can be read.
pub trait Readable: Source {
    /// All of them.
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
readable!(Vec<u8>, Box<[u8]>, Region, Piece);
