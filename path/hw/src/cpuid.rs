//! The processor's own feature reports, and whether instructions are emulated.
#![allow(unsafe_code, reason = "CPUID, which older compilers call unsafe; dlsym(3)")]

use std::arch::x86_64::{__cpuid_count, CpuidResult};
use std::ffi::CStr;

/// A symbol that the library that emulates instructions exports for this check.
const EMULATES: &CStr = c"telpher_emulates";

/// True if that library is in this process. The environment's announcement also reaches programs that have unloaded the
/// library, and static programs, which never load it.
pub(crate) fn is_emulated() -> bool {
    // SAFETY: a terminated name; the result is neither called nor read.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, EMULATES.as_ptr()) }.is_null()
}

/// Returns a CPUID leaf; zeros if the processor has no such leaf.
pub(crate) fn leaf(number: u32) -> CpuidResult {
    #[allow(unused_unsafe, reason = "safe since Rust 1.94, unsafe in the oldest supported one")]
    // SAFETY: every x86-64 processor has CPUID and leaf 0.
    let highest = unsafe { __cpuid_count(0, 0) }.eax;
    if highest < number {
        return CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
    }
    #[allow(unused_unsafe, reason = "as above")]
    // SAFETY: leaf 0 has just reported that this leaf exists.
    let leaf = unsafe { __cpuid_count(number, 0) };
    leaf
}
