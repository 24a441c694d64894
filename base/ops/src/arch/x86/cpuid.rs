//! CPUID features that `std` does not detect, and the processor's family.

use core::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// Facts about this CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// It has CLFLUSHOPT. Source: CPUID leaf 7, EBX bit 23.
    pub(super) clflushopt: bool,
    /// It has CLWB. Source: CPUID leaf 7, EBX bit 24.
    pub(super) clwb: bool,
}

/// Returns the facts, determined once.
#[inline]
pub(super) fn facts() -> Facts {
    static FACTS: OnceLock<Facts> = OnceLock::new();
    *FACTS.get_or_init(|| {
        let (highest, _) = leaf(0);
        // Leaf 7 exists if leaf 0 reports a highest leaf of at least 7.
        let features = if highest >= 7 { leaf(7).1[0] } else { 0 };
        Facts { clflushopt: features >> 23 & 1 == 1, clwb: features >> 24 & 1 == 1 }
    })
}

/// Returns the vendor and the family of this processor.
pub(crate) fn vendor_and_family() -> ([u8; 12], u32) {
    let (_, [ebx, ecx, edx]) = leaf(0);
    let mut vendor = [0; 12];
    for (bytes, register) in vendor.as_chunks_mut().0.iter_mut().zip([ebx, edx, ecx]) {
        *bytes = register.to_le_bytes();
    }
    (vendor, family(leaf(1).0))
}

/// Returns the family in EAX of leaf 1. Source: Intel, Software Developer's Manual, CPUID: the extended family is added
/// to a family of 15.
fn family(signature: u32) -> u32 {
    match signature >> 8 & 0xf {
        0xf => 0xf + (signature >> 20 & 0xff),
        family => family,
    }
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
    fn extended_families_are_added() {
        // The signatures of a Genoa, a Turin and a Sapphire Rapids.
        assert_eq!([0x00a1_0f11, 0x00b0_0f21, 0x0008_06f8].map(family), [25, 26, 6]);
    }

    #[test]
    fn vendor_family_and_flags_agree_with_the_kernels_report() {
        let Ok(cpuinfo) = std::fs::read_to_string("/proc/cpuinfo") else {
            return eprintln!("skipped: no /proc/cpuinfo");
        };
        let flag = |name| cpuinfo.split_whitespace().any(|word| word == name);
        let facts = facts();
        let field = |name: &str| {
            let line = cpuinfo.lines().find_map(|line| line.strip_prefix(name)?.split_once(':'));
            line.expect("a field of each x86 CPU").1.trim()
        };
        let (vendor, family) = vendor_and_family();
        assert_eq!(
            (str::from_utf8(&vendor).unwrap(), family),
            (field("vendor_id"), field("cpu family").parse().unwrap())
        );
        assert_eq!((facts.clflushopt, facts.clwb), (flag("clflushopt"), flag("clwb")));
    }
}
