//! CPUID features that `std` does not detect.

use core::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// Facts about this CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// It has CLFLUSHOPT. Source: CPUID leaf 7, EBX bit 23.
    pub(super) clflushopt: bool,
    /// It has CLWB. Source: CPUID leaf 7, EBX bit 24.
    pub(super) clwb: bool,
    /// The 512-bit carry-less multiply takes more than a cycle, so that using the `crc32` instruction beside it pays
    /// off. Source: measured on AMD family 26 (two cycles; the two together reach 1.4 times the multiply alone).
    /// *Assumed* for other AMD families, and *assumed* not to hold for Intel, whose multiply takes one cycle.
    pub(super) slow_multiply: bool,
}

/// Returns the facts, determined once.
#[inline]
pub(super) fn facts() -> Facts {
    static FACTS: OnceLock<Facts> = OnceLock::new();
    *FACTS.get_or_init(|| {
        let (highest, vendor) = leaf(0);
        // Leaf 7 exists if leaf 0 reports a highest leaf of at least 7.
        let features = if highest >= 7 { leaf(7).1[0] } else { 0 };
        Facts {
            clflushopt: features >> 23 & 1 == 1,
            clwb: features >> 24 & 1 == 1,
            slow_multiply: vendor.map(u32::to_le_bytes).concat() == b"AuthcAMDenti",
        }
    })
}

/// Returns EAX, EBX, ECX and EDX of a CPUID leaf.
fn leaf(number: u32) -> (u32, [u32; 3]) {
    #[allow(unused_unsafe, reason = "newer compilers call CPUID safe")]
    // SAFETY: every x86-64 CPU has CPUID.
    let leaf = unsafe { __cpuid_count(number, 0) };
    (leaf.eax, [leaf.ebx, leaf.ecx, leaf.edx])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vendor_agrees_with_the_kernels_report() {
        let Ok(cpuinfo) = std::fs::read_to_string("/proc/cpuinfo") else {
            return eprintln!("skipped: no /proc/cpuinfo");
        };
        let flag = |name| cpuinfo.split_whitespace().any(|word| word == name);
        let facts = facts();
        assert_eq!(facts.slow_multiply, flag("AuthenticAMD"));
        assert_eq!((facts.clflushopt, facts.clwb), (flag("clflushopt"), flag("clwb")));
    }
}
