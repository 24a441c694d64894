//! Checks that the device may use programs' addresses; if not, looks at the command line and the IOMMUs.

use crate::causes;
use crate::examined_machine::{ExaminedMachine, IOMMUS, Unit};
use crate::finding::{Evidence, Finding};

/// Scalable mode (SMTS), bit of the extended capability register. Source: VT-d specification §11.4.3.
const ECAP_SCALABLE: u32 = 43;
/// PASID support.
const ECAP_PASID: u32 = 40;
/// Page request support.
const ECAP_PAGE_REQUESTS: u32 = 29;
/// Five-level paging of first-stage tables (FL5LP), bit of the capability register. Source: VT-d specification §11.4.2.
const CAP_FIVE_LEVELS: u32 = 60;
/// Pages of 1 GiB in first-stage tables (FL1GP).
const CAP_GIBIBYTE: u32 = 56;

const CMDLINE: &str = "/proc/cmdline";

pub(super) fn examine(p: &ExaminedMachine<'_>, before: &[Finding]) -> Vec<Finding> {
    // An earlier stage, firmware or kernel, explains it.
    if !p.lacks_sva() || before.iter().any(|finding| finding.severity == super::Severity::Error) {
        return Vec::new();
    }
    let found =
        switched_off_for_module(p).or_else(|| switched_off(p)).or_else(|| incapable(p)).or_else(|| not_scalable(p));
    let found = found.unwrap_or_else(|| {
        Finding::of(&causes::SVA_OFF, "the IOMMU")
            .all_seen(p.logged(&["SVA"]))
            .all_seen(p.logged(&["DMAR"]))
            .remedy(
                "lspci -vvv -d 8086:0b25 | grep -e ATSCtl -e PRICtl -e PASIDCtl    # as root; each line must \
                 contain Enable+",
            )
            .remedy("if one of the three is missing: firmware setup, enable VT-d and PCI ENQCMD/ENQCMDS on all sockets")
            .remedy("dmesg | grep -i -e idxd -e DMAR -e IOMMU    # shows which step failed")
            .remedy(
                "modprobe -r idxd && modprobe idxd    # if the driver was loaded too early; this removes all \
                 queues",
            )
    });
    vec![found.all_seen(super::firmware::sva(p))]
}

/// The module's parameter.
fn switched_off_for_module(p: &ExaminedMachine<'_>) -> Option<Finding> {
    let off = |value: &str| ["0", "n", "N", "off"].contains(&value);
    let by_boot = p.boot.iter().any(|word| word.strip_prefix("idxd.sva=").is_some_and(off));
    if !p.module.sva.as_deref().is_some_and(off) && !by_boot {
        return None;
    }
    let finding = Finding::of(&causes::SVA_PARAMETER_OFF, "idxd").seen(p.seen("/sys/module/idxd/parameters/sva"));
    let finding = if by_boot { finding.seen(p.seen(CMDLINE)) } else { finding };
    Some(
        finding
            .remedy("remove `idxd.sva=0` from the kernel's command line, and `options idxd sva=0` from /etc/modprobe.d")
            .remedy("modprobe -r idxd && modprobe idxd sva=1"),
    )
}

/// Words of the command line that switch features off, and an IOMMU that is not switched on.
fn switched_off(p: &ExaminedMachine<'_>) -> Option<Finding> {
    let values = |key: &'static str| {
        let words = p.boot.iter().filter_map(move |word| word.strip_prefix(key));
        words.flat_map(|value| value.split(','))
    };
    if values("intel_iommu=").any(|value| value == "off") || values("iommu=").any(|value| value == "off") {
        return Some(
            Finding::of(&causes::IOMMU_SWITCHED_OFF, "the kernel")
                .seen(p.seen(CMDLINE))
                .all_remedies(boot("intel_iommu=off iommu=off", "intel_iommu=on,sm_on")),
        );
    }
    if values("pci=").any(|value| value == "noats") {
        return Some(
            Finding::of(&causes::ATS_OFF, "the kernel").seen(p.seen(CMDLINE)).all_remedies(boot("pci=noats", "")),
        );
    }
    if p.iommu.units.as_ref().is_some_and(Vec::is_empty) && !values("intel_iommu=").any(|value| value == "on") {
        return Some(
            Finding::of(&causes::IOMMU_NOT_SWITCHED_ON, "the kernel")
                .seen(p.seen(CMDLINE))
                .seen(p.listed(IOMMUS))
                .all_remedies(boot("intel_iommu", "intel_iommu=on,sm_on")),
        );
    }
    None
}

/// Missing capabilities of an IOMMU.
fn incapable(p: &ExaminedMachine<'_>) -> Option<Finding> {
    let seen = |units: &[&Unit], register: &str| -> Vec<Evidence> {
        units.iter().map(|unit| p.seen(&format!("{}/{register}", unit.folder))).collect()
    };
    let functions = p.functions.as_deref().unwrap_or_default();
    let without = |register: fn(&Unit) -> Option<u64>, bit| p.iommu.without(functions, register, bit);
    let flat = without(|unit| unit.ecap, ECAP_SCALABLE);
    if !flat.is_empty() {
        return Some(
            Finding::of(&causes::IOMMU_WITHOUT_SCALABLE_MODE, "the IOMMU")
                .all_seen(seen(&flat, "ecap"))
                .because(format!("Bit {ECAP_SCALABLE} of ecap is clear."))
                .remedy(
                    "in a virtual machine: let the host emulate scalable mode (QEMU: `-device \
                     intel-iommu,x-scalable-mode=on`)",
                )
                .remedy("on a physical machine: update the firmware; Sapphire Rapids and later have it"),
        );
    }
    for (bit, feature) in [(ECAP_PASID, "PASID"), (ECAP_PAGE_REQUESTS, "page requests")] {
        let units = without(|unit| unit.ecap, bit);
        if !units.is_empty() {
            return Some(
                Finding::of(&causes::IOMMU_WITHOUT_PASID, "the IOMMU")
                    .all_seen(seen(&units, "ecap"))
                    .all_seen(p.logged(&["inconsistent"]))
                    .because(format!("Missing: {feature} (bit {bit} of ecap)."))
                    .remedy("firmware setup: give all sockets and I/O stacks the same VT-d settings (PASID, PRS, ATS)")
                    .remedy("in a virtual machine: let the host emulate it, or use the kernel's dedicated queues")
                    .remedy("update the firmware"),
            );
        }
    }
    let four_levels = without(|unit| unit.cap, CAP_FIVE_LEVELS);
    if p.cpu.flags.contains("la57") && !four_levels.is_empty() {
        return Some(
            Finding::of(&causes::FIVE_LEVEL_PAGING, "the IOMMU")
                .all_seen(seen(&four_levels, "cap"))
                .because(format!("/proc/cpuinfo lists `la57`, and bit {CAP_FIVE_LEVELS} of cap is clear."))
                .all_remedies(boot("", "no5lvl")),
        );
    }
    let small_pages = without(|unit| unit.cap, CAP_GIBIBYTE);
    if p.cpu.flags.contains("pdpe1gb") && !small_pages.is_empty() {
        return Some(
            Finding::of(&causes::GIBIBYTE_PAGES, "the IOMMU")
                .all_seen(seen(&small_pages, "cap"))
                .all_seen(p.logged(&["SVM disabled"]))
                .because(format!("/proc/cpuinfo lists `pdpe1gb`, and bit {CAP_GIBIBYTE} of cap is clear."))
                .remedy(
                    "in a virtual machine, on the host: `-device intel-iommu,fs1gp=on` (QEMU 9.2 or later), or \
                     `-cpu host,-pdpe1gb`",
                ),
        );
    }
    None
}

/// Scalable mode that is not switched on.
fn not_scalable(p: &ExaminedMachine<'_>) -> Option<Finding> {
    let says = |wanted: &str| {
        let words = p.boot.iter().filter_map(|word| word.strip_prefix("intel_iommu="));
        words.flat_map(|value| value.split(',')).any(|value| value == wanted)
    };
    let by_default = p.kernel.has("INTEL_IOMMU_SCALABLE_MODE_DEFAULT_ON") == Some(true);
    if says("sm_on") || by_default && !says("sm_off") {
        return None;
    }
    Some(
        Finding::of(&causes::SCALABLE_MODE_OFF, "the kernel")
            .seen(p.seen(CMDLINE))
            .all_remedies(boot("intel_iommu", "intel_iommu=on,sm_on")),
    )
}

/// Returns steps that replace words of the kernel's command line.
fn boot(old: &str, new: &str) -> Vec<String> {
    let file = "/etc/default/grub";
    let option =
        |name: &str, words: &str| if words.is_empty() { String::new() } else { format!(" --{name}=\"{words}\"") };
    let debian = match (old, new) {
        (_, "") => format!("remove `{old}` from {file}, then: update-grub"),
        ("", _) => format!("sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{new} /' {file} && update-grub"),
        _ => format!("in GRUB_CMDLINE_LINUX of {file} replace `{old}` by `{new}`, then: update-grub"),
    };
    vec![
        format!("grubby --update-kernel=ALL{}{}    # Fedora, RHEL", option("remove-args", old), option("args", new)),
        format!("{debian}    # Debian, Ubuntu"),
        "reboot".into(),
    ]
}
