//! What the processor says of itself, and whether somebody stands in for it.
#![allow(unsafe_code, reason = "CPUID, which older compilers call unsafe; dlsym(3)")]

use std::arch::x86_64::{__cpuid_count, CpuidResult};
use std::ffi::CStr;

/// What the library that emulates instructions exports, for this.
const EMULATES: &CStr = c"telpher_emulates";

/// True if that library is in this process. What the environment announces reaches also programs that have shed it, and static
/// ones, which never load it.
pub(crate) fn is_emulated() -> bool {
    // SAFETY: a terminated name; what is found is neither called nor read.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, EMULATES.as_ptr()) }.is_null()
}

/// A CPUID leaf; zero if the processor has no such leaf.
pub(crate) fn leaf(number: u32) -> CpuidResult {
    #[allow(unused_unsafe, reason = "safe since Rust 1.94, unsafe in the oldest supported one")]
    // SAFETY: every x86-64 processor has CPUID and leaf 0.
    let highest = unsafe { __cpuid_count(0, 0) }.eax;
    if highest < number {
        return CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
    }
    #[allow(unused_unsafe, reason = "as above")]
    // SAFETY: leaf 0 has just said that there is such a leaf.
    let leaf = unsafe { __cpuid_count(number, 0) };
    leaf
}
