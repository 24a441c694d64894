//! The kernels, and the only module of this crate with unsafe code.
//!
//! ```text
//! Kernels ──match level──► x86::avx512::{bytes, compute, crc32c, crc64, guard}
//!                          x86::avx2::{bytes, compute, crc32c, crc64, guard}
//!                          portable::{bytes, compute, crc32c, crc64, guard}       with the same modules and signatures
//! ```
//!
//! Every kernel is a safe `#[target_feature]` function over slices: its own body proves its loads and stores in bounds.
//! This module only has to prove that the CPU has the features: a [`Kernels`] of a level exists only if the level is
//! available.
#![allow(unsafe_code, reason = "kernels are vector intrinsics; each block proves its bounds or its CPU features")]

mod portable;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

use crate::dispatch::Level;
use crate::number::Arithmetic;
pub(crate) use portable::step::Step;
use telpher_abi::{ComputeResult, DifBlock};

/// The right to run the kernels of one level: a copyable token with the level's operations as methods.
///
/// The free functions of this crate use [`Kernels::best`]; tests and benches iterate over [`Kernels::available`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kernels {
    /// Always available.
    level: Level,
}

/// Returns true if this CPU can run `level`.
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

/// Calls the kernel of the level of a `Kernels`.
macro_rules! run {
    ($kernels:expr, $room:ident :: $name:ident $(::<$generic:ident>)? ($($argument:expr),*)) => {
        match $kernels.level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Kernels` of a level exists only if the CPU has all features of the level.
            Level::Avx512 => unsafe { x86::avx512::$room::$name$(::<$generic>)?($($argument),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a `Kernels` of a level exists only if the CPU has all features of the level.
            Level::Avx2 => unsafe { x86::avx2::$room::$name$(::<$generic>)?($($argument),*) },
            _ => portable::$room::$name$(::<$generic>)?($($argument),*),
        }
    };
}

/// The constructors; the operations are in the modules named after them.
impl Kernels {
    /// Returns the kernels that run on any CPU.
    pub const PORTABLE: Kernels = Kernels { level: Level::Portable };

    /// Returns the kernels of `level`, if this CPU supports them.
    #[must_use]
    pub fn new(level: Level) -> Option<Kernels> {
        level.is_available().then_some(Kernels { level })
    }

    /// Returns the kernels of `level` without checking the CPU.
    ///
    /// # Safety
    /// `level.is_available()` holds on every CPU that this token's methods will run on.
    #[must_use]
    pub const unsafe fn new_unchecked(level: Level) -> Kernels {
        Kernels { level }
    }

    /// Returns the level of these kernels.
    #[must_use]
    #[inline]
    pub const fn level(self) -> Level {
        self.level
    }

    /// Copies with stores that bypass the cache; [`Kernels::fence`] must follow before other code reads the
    /// destination.
    ///
    /// # Panics
    /// If the lengths differ.
    pub(crate) fn stream_copy(self, src: &[u8], dst: &mut [u8]) {
        assert_eq!(src.len(), dst.len(), "source and destination have the same length");
        run!(self, bytes::stream_copy(src, dst));
    }

    /// Fills with `pattern`, little-endian and its first word first; with `STREAM` the stores bypass the cache and are
    /// fenced.
    #[inline]
    pub(crate) fn fill_pattern<const STREAM: bool>(self, dst: &mut [u8], pattern: [u64; 2]) {
        run!(self, bytes::fill::<STREAM>(dst, pattern));
    }

    /// Orders earlier streaming stores before all later accesses.
    pub(crate) fn fence(self) {
        #[cfg(target_arch = "x86_64")]
        x86::store_fence();
    }

    /// Returns the offset of the first byte in which two slices of the same length differ.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub(crate) fn mismatch(self, a: &[u8], b: &[u8]) -> Option<usize> {
        assert_eq!(a.len(), b.len(), "both slices have the same length");
        run!(self, bytes::mismatch(a, b))
    }

    /// Returns the offset of the first byte in which a slice differs from a repeated pattern.
    #[inline]
    pub(crate) fn mismatch_pattern(self, a: &[u8], pattern: u64) -> Option<usize> {
        run!(self, bytes::mismatch_pattern(a, pattern))
    }

    /// Adds `data` to a reflected CRC32C register; with `REVERSE` each byte's bits are reversed first.
    #[inline]
    pub(crate) fn crc32c_feed<const REVERSE: bool>(self, state: u32, data: &[u8]) -> u32 {
        run!(self, crc32c::feed::<REVERSE>(state, data))
    }

    /// Moves a reflected CRC32C register forward over `len` zero bytes.
    #[inline]
    pub(crate) fn crc32c_skip(self, state: u32, len: usize) -> u32 {
        run!(self, crc32c::skip(state, len))
    }

    /// Adds `src` to a reflected CRC32C register, and copies it in the same pass.
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline]
    pub(crate) fn crc32c_feed_copy<const REVERSE: bool>(self, state: u32, src: &[u8], dst: &mut [u8]) -> u32 {
        assert_eq!(src.len(), dst.len(), "source and destination have the same length");
        run!(self, crc32c::feed_copy::<REVERSE>(state, src, dst))
    }

    /// Adds `data` to a reflected CRC64 register; with `REVERSE` each byte's bits are reversed first.
    #[inline]
    pub(crate) fn crc64_feed<const REVERSE: bool>(self, state: u64, data: &[u8]) -> u64 {
        run!(self, crc64::feed::<REVERSE>(state, data))
    }

    /// Computes the guards of the blocks at multiples of `stride` in `src`, one for each element of `guards`.
    ///
    /// # Panics
    /// If a block does not lie in `src`.
    #[inline]
    pub(crate) fn guards(self, block: DifBlock, seed: u16, src: &[u8], stride: usize, guards: &mut [u16]) {
        debug_assert!(blocks_fit(block, guards.len(), stride, src.len()), "every block lies in the source");
        run!(self, guard::guards(block, seed, src, stride, guards));
    }

    /// Computes the guards, and copies each block to a multiple of `dst_stride` in `dst` in the same pass.
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

    /// Converts whole elements, as many as both slices have.
    ///
    /// # Panics
    /// If integers are copied and the lengths differ.
    #[inline]
    pub(crate) fn convert_elements(self, arithmetic: &Arithmetic, src: &[u8], dst: &mut [u8]) -> ComputeResult {
        run!(self, compute::convert(arithmetic, src, dst))
    }

    /// Computes whole elements, as many as all slices have.
    #[inline]
    pub(crate) fn combine_elements(self, step: &Step<'_>, left: &[u8], right: &[u8], dst: &mut [u8]) -> ComputeResult {
        run!(self, compute::combine(step, left, right, dst))
    }

    /// Writes back and drops every cache line that `buf` touches, and waits for completion.
    pub(crate) fn flush_lines(self, buf: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        x86::flush::flush(buf);
        #[cfg(not(target_arch = "x86_64"))]
        let _ = buf;
    }

    /// Writes back every cache line that `buf` touches, and waits for completion.
    pub(crate) fn write_back_lines(self, buf: &[u8]) {
        #[cfg(target_arch = "x86_64")]
        x86::flush::write_back(buf);
        #[cfg(not(target_arch = "x86_64"))]
        let _ = buf;
    }
}

/// Returns the guard's register after `data` of any length, by the portable kernel.
pub(crate) fn guard_of_any_length(seed: u16, data: &[u8]) -> u16 {
    portable::guard::feed(seed, data)
}

/// Returns true if `count` blocks at distance `stride` fit in `len` bytes.
fn blocks_fit(block: DifBlock, count: usize, stride: usize, len: usize) -> bool {
    match count.checked_sub(1) {
        None => true,
        Some(last) => last
            .checked_mul(stride)
            .and_then(|start| start.checked_add(block.bytes() as usize))
            .is_some_and(|end| end <= len),
    }
}
