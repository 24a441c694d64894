//! Kernels for x86-64.

pub(super) mod avx2;
pub(super) mod avx512;
pub(crate) mod cpuid;
mod crc;
mod crc64;
pub(super) mod flush;

/// Orders earlier stores, including streaming stores, before all later accesses.
pub(super) fn store_fence() {
    // SAFETY: SFENCE belongs to SSE, which every x86-64 CPU has; it accesses no memory.
    unsafe { core::arch::x86_64::_mm_sfence() }
}

/// Returns the 16 bytes of a pattern at `offset` bytes into the repeated pattern; the high word first, as the vector
/// intrinsics expect.
#[allow(clippy::cast_possible_truncation, reason = "splits a word into its halves; a rotation is at most 120")]
const fn rotated([low, high]: [u64; 2], offset: usize) -> (i64, i64) {
    let pattern = ((high as u128) << 64 | low as u128).rotate_right((offset % 16 * 8) as u32);
    (((pattern >> 64) as u64).cast_signed(), (pattern as u64).cast_signed())
}

/// Returns the 8 bytes of a pattern at `offset` bytes into the repeated pattern.
#[allow(clippy::cast_possible_truncation, reason = "a rotation is at most 56")]
const fn rotated_word(pattern: u64, offset: usize) -> i64 {
    pattern.rotate_right((offset % 8 * 8) as u32).cast_signed()
}

/// Fills with an 8-byte pattern by the string instruction. `dst` has at least 8 bytes.
///
/// # Panics
/// If it has fewer.
fn fill_words(dst: &mut [u8], pattern: u64) {
    // SAFETY: REP STOSQ writes `len / 8` words from the start of `dst`, which lie in it, in ascending order, because
    // the direction flag is clear on entry to `asm!`. The three registers are declared as changed.
    unsafe {
        core::arch::asm!(
            "rep stosq",
            inout("rdi") dst.as_mut_ptr() => _,
            inout("rcx") dst.len() / 8 => _,
            in("rax") pattern,
            options(nostack, preserves_flags),
        );
    }
    // The last word overlaps earlier bytes with the same values.
    let last = rotated_word(pattern, dst.len());
    *dst.last_chunk_mut().expect("at least one word") = last.to_le_bytes();
}
