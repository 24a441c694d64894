//! The CPU's part of memory calls, naively.
#![allow(unsafe_code, reason = "works on addresses, as memmove does")]

use telpher_mover::CpuCalls;

pub(crate) const CPU_CALLS: CpuCalls = CpuCalls { copy, fill, compare };

unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: our caller's promise.
    unsafe { std::ptr::copy(src, dst, len) }
}

unsafe fn fill(dst: *mut u8, byte: u8, len: usize) {
    // SAFETY: our caller's promise.
    unsafe { std::ptr::write_bytes(dst, byte, len) }
}

unsafe fn compare(a: *const u8, b: *const u8, len: usize) -> Option<usize> {
    // SAFETY: our caller's promise, for each byte.
    (0..len).find(|&i| unsafe { a.add(i).read() != b.add(i).read() })
}
