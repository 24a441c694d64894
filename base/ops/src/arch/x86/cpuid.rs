//! CPUID features that `std` does not detect, and the choices of kernels that depend on the processor's family.

use core::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

/// Facts about this CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// It has CLFLUSHOPT. Source: CPUID leaf 7, EBX bit 23.
    pub(super) clflushopt: bool,
    /// It has CLWB. Source: CPUID leaf 7, EBX bit 24.
    pub(super) clwb: bool,
    /// What its family needs.
    pub(super) choices: Choices,
}

/// The variants of the AVX-512 kernels that are fastest on a family of processors. No variant changes a result.
///
/// Source: measured, each side in turns with its best alternative, on warm and on cold data from 1 KiB to 16 MiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Choices {
    /// The family, for people.
    pub(super) family: &'static str,
    /// CRC32C: the `crc32` instruction takes a part of long messages beside the multiplies. This pays off if a 512-bit
    /// carry-less multiply takes more than a cycle, and the prefetchers follow four positions at once.
    pub(super) fuse_crc: bool,
    /// Compare: vectors of 32 bytes for data beyond 256 bytes.
    pub(super) compare_by_32: bool,
    /// How far ahead of its loads a streaming copy prefetches, in bytes.
    pub(super) stream_prefetch: usize,
    /// The same for guards of T10-DIF.
    pub(super) guard_prefetch: usize,
}

/// AMD family 26 (Zen 5). The `crc32` instruction beside the multiply reaches 1.4 times the multiply alone. Streaming
/// copies from 1 to 64 MiB from memory reach 1.28 to 1.40 of `memcpy`, with less variation than without prefetches and
/// than at a distance of 1 KiB.
const ZEN_5: Choices = Choices {
    family: "AMD family 26",
    fuse_crc: true,
    compare_by_32: false,
    stream_prefetch: 4096,
    guard_prefetch: 4096,
};

/// AMD family 25 with AVX-512 (Zen 4), whose data paths are 32 bytes wide. Of cold data from 4 KiB on, multiplies alone
/// reach 0.95 to 1.05 of ISA-L's CRC32C, and with the `crc32` instruction 0.52 to 0.82; vectors of 32 bytes compare
/// 0.97 to 1.23 times as fast as `memcmp`, and of 64 bytes 0.81 to 0.99. Guards reach 0.95 to 1.04 of ISA-L's with a
/// distance of 512 bytes, and 0.78 to 0.94 with 4 KiB; streaming copies 1.70 to 1.74 of `memcpy`, and 1.50 to 1.54.
const ZEN_4: Choices = Choices {
    family: "AMD family 25",
    fuse_crc: false,
    compare_by_32: true,
    stream_prefetch: 512,
    guard_prefetch: 512,
};

/// Intel. *Assumed*: as on Zen 5, whose data paths are 64 bytes wide, too; but a multiply takes one cycle.
const INTEL: Choices = Choices { family: "Intel", fuse_crc: false, ..ZEN_5 };

/// Returns the choices for a vendor and family. *Assumed* for families that were not measured: as on the newest one.
fn choices(vendor: &[u8], family: u32) -> Choices {
    match (vendor, family) {
        (b"AuthcAMDenti", 25) => ZEN_4,
        (b"AuthcAMDenti", _) => ZEN_5,
        _ => INTEL,
    }
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
            choices: choices(&vendor.map(u32::to_le_bytes).concat(), family(leaf(1).0)),
        }
    })
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
    fn families_have_their_choices() {
        // The signatures of a Genoa, a Turin and a Sapphire Rapids.
        assert_eq!([0x00a1_0f11, 0x00b0_0f21, 0x0008_06f8].map(family), [25, 26, 6]);
        assert_eq!([choices(b"AuthcAMDenti", 25), choices(b"AuthcAMDenti", 26)], [ZEN_4, ZEN_5]);
        assert!(!choices(b"GenuntelineI", 6).fuse_crc);
    }

    #[test]
    fn the_vendor_agrees_with_the_kernels_report() {
        let Ok(cpuinfo) = std::fs::read_to_string("/proc/cpuinfo") else {
            return eprintln!("skipped: no /proc/cpuinfo");
        };
        let flag = |name| cpuinfo.split_whitespace().any(|word| word == name);
        let facts = facts();
        let field = |name: &str| cpuinfo.lines().find_map(|line| line.strip_prefix(name)?.split_once(':'));
        let family: u32 = field("cpu family").expect("a field of each x86 CPU").1.trim().parse().expect("a number");
        let vendor: &[u8] = if flag("AuthenticAMD") { b"AuthcAMDenti" } else { b"" };
        assert_eq!(facts.choices, choices(vendor, family));
        assert_eq!((facts.clflushopt, facts.clwb), (flag("clflushopt"), flag("clwb")));
    }
}
