//! The kernels, and the only place of this crate with unsafe code.
//!
//! ```text
//! Kernels ──match level──► x86::avx512::{bytes, crc32c, guard}
//!                          x86::avx2::{bytes, crc32c, guard}
//!                          portable::{bytes, crc32c, guard}       siblings have the same rooms and signatures
//! ```
//!
//! Every kernel is a safe `#[target_feature]` function over slices: its own body proves its loads and stores in bounds.
//! What is left to prove here is one thing, that the CPU has the features: a [`Kernels`] of a level exists only where
//! the level is available.
#![allow(unsafe_code, reason = "kernels are vector intrinsics; each block proves its bounds or its CPU features")]

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::dispatch::Level;
use telpher_abi::DifBlock;

/// The right to run the kernels of one level: a copyable token, and the level's operations as methods.
///
/// The free functions of this crate use [`Kernels::best`]; tests and benches walk [`Kernels::available`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kernels {
    /// Available on this CPU, always.
    level: Level,
}

/// Whether this CPU can run `level`.
pub(crate) fn is_available(level: Level) -> bool {
    match level {
        Level::Portable => true,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => x86::avx2::is_available(),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => x86::avx512::is_available(),
        #[cfg(not(target_arch = "x86_64"))]
        Level::Avx2 | Level::Avx512 => false,
    }
}

/// Calls the kernel of the level that a `Kernels` stands for.
macro_rules! run {
    ($kernels:expr, $room:ident :: $name:ident $(::<$generic:ident>)? ($($argument:expr),*)) => {
        match $kernels.level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Kernels` of a level exists only where the CPU has all features of the level.
            Level::Avx512 => unsafe { x86::avx512::$room::$name$(::<$generic>)?($($argument),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Kernels` of a level exists only where the CPU has all features of the level.
            Level::Avx2 => unsafe { x86::avx2::$room::$name$(::<$generic>)?($($argument),*) },
            _ => portable::$room::$name$(::<$generic>)?($($argument),*),
        }
    };
}

/// The constructors; the operations stand in the modules named after them.
impl Kernels {
    /// The kernels that run anywhere.
    pub const PORTABLE: Kernels = Kernels { level: Level::Portable };

    /// The kernels of `level`, if this CPU has them.
    #[must_use]
    pub fn new(level: Level) -> Option<Kernels> {
        level.is_available().then_some(Kernels { level })
    }

    /// The kernels of `level` without asking the CPU.
    ///
    /// # Safety
    /// `level.is_available()` holds on every CPU that this token's methods will run on.
    #[must_use]
    pub const unsafe fn new_unchecked(level: Level) -> Kernels {
        Kernels { level }
    }

    /// Which level these kernels are of.
    #[must_use]
    #[inline]
    pub const fn level(self) -> Level {
        self.level
    }

    /// Copies with stores that pass by the cache; [`Kernels::fence`] must follow before anyone else looks.
    ///
    /// # Panics
    /// If the lengths differ.
    pub(crate) fn stream_copy(self, src: &[u8], dst: &mut [u8]) {
        assert_eq!(src.len(), dst.len(), "source and destination have the same length");
        run!(self, bytes::stream_copy(src, dst));
    }

    /// Writes `pattern`, little-endian and its first word first, again and again; with `STREAM` the stores pass by the
    /// cache and are fenced.
    #[inline]
    pub(crate) fn fill_pattern<const STREAM: bool>(self, dst: &mut [u8], pattern: [u64; 2]) {
        run!(self, bytes::fill::<STREAM>(dst, pattern));
    }

    /// Orders earlier streaming stores before everything that follows.
    pub(crate) fn fence(self) {
        #[cfg(target_arch = "x86_64")]
        x86::store_fence();
    }

    /// Offset of the first byte in which two slices of the same length differ.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub(crate) fn mismatch(self, a: &[u8], b: &[u8]) -> Option<usize> {
        assert_eq!(a.len(), b.len(), "both slices have the same length");
        run!(self, bytes::mismatch(a, b))
    }

    /// Offset of the first byte in which a slice differs from a repeated pattern.
    #[inline]
    pub(crate) fn mismatch_pattern(self, a: &[u8], pattern: u64) -> Option<usize> {
        run!(self, bytes::mismatch_pattern(a, pattern))
    }

    /// Feeds `data` to a reflected CRC32C register; with `REVERSE` each byte's bits are reversed first.
    #[inline]
    pub(crate) fn crc32c_feed<const REVERSE: bool>(self, state: u32, data: &[u8]) -> u32 {
        run!(self, crc32c::feed::<REVERSE>(state, data))
    }

    /// The same, and copies the data in the same pass.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub(crate) fn crc32c_feed_copy<const REVERSE: bool>(self, state: u32, src: &[u8], dst: &mut [u8]) -> u32 {
        assert_eq!(src.len(), dst.len(), "source and destination have the same length");
        run!(self, crc32c::feed_copy::<REVERSE>(state, src, dst))
    }

    /// Guards of the blocks that begin at multiples of `stride` in `src`, one for each element of `guards`.
    ///
    /// # Panics
    /// If a block does not lie in `src`.
    #[inline]
    pub(crate) fn guards(self, block: DifBlock, seed: u16, src: &[u8], stride: usize, guards: &mut [u16]) {
        debug_assert!(blocks_fit(block, guards.len(), stride, src.len()), "every block lies in the source");
        run!(self, guard::guards(block, seed, src, stride, guards));
    }

    /// The same, and copies each block to a multiple of `dst_stride` in `dst` in the same pass.
    ///
    /// # Panics
    /// If a block does not lie in `src` or `dst`.
    #[inline]
    pub(crate) fn guards_copy(
        self,
        block: DifBlock,
        seed: u16,
        (src, stride): (&[u8], usize),
        (dst, dst_stride): (&mut [u8], usize),
        guards: &mut [u16],
    ) {
        debug_assert!(blocks_fit(block, guards.len(), stride, src.len()), "every block lies in the source");
        debug_assert!(blocks_fit(block, guards.len(), dst_stride, dst.len()), "every block lies in the destination");
        run!(self, guard::guards_copy(block, seed, (src, stride), (dst, dst_stride), guards));
    }

    /// Writes back and drops every cache line that `buf` touches, and waits until it has happened.
    pub(crate) fn flush_lines(self, buf: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        x86::flush::flush(buf);
        #[cfg(not(target_arch = "x86_64"))]
        let _ = buf;
    }

    /// Writes back every cache line that `buf` touches, and waits until it has happened.
    pub(crate) fn write_back_lines(self, buf: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        x86::flush::write_back(buf);
        #[cfg(not(target_arch = "x86_64"))]
        let _ = buf;
    }
}

/// The guard's register after `data` of any length, by the portable kernel.
pub(crate) fn guard_of_any_length(seed: u16, data: &[u8]) -> u16 {
    portable::guard::feed(seed, data)
}

/// Whether `count` blocks at distance `stride` lie in `len` bytes.
fn blocks_fit(block: DifBlock, count: usize, stride: usize, len: usize) -> bool {
    match count.checked_sub(1) {
        None => true,
        Some(last) => last
            .checked_mul(stride)
            .and_then(|start| start.checked_add(block.bytes() as usize))
            .is_some_and(|end| end <= len),
    }
}
