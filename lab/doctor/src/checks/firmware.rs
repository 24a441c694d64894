//! Checks that there is a device, and that the firmware describes its IOMMU.

use crate::causes;
use crate::examined_machine::{ExaminedMachine, PCI, TABLES};
use crate::finding::{Evidence, Finding};

pub(super) fn examine(p: &ExaminedMachine<'_>) -> Vec<Finding> {
    let cpuinfo = || p.seen_line("/proc/cpuinfo", "model name");
    // An unreadable bus, as in some containers, proves nothing.
    let Some(functions) = &p.functions else { return Vec::new() };
    if functions.is_empty() && p.devices().next().is_none() {
        // Only Intel makes processors with DSA, so hosts with other processors cannot provide one.
        let finding = if p.cpu.is_guest() && p.cpu.vendor == "GenuineIntel" {
            Finding::of(&causes::GUEST_WITHOUT_DEVICE, "the machine")
                .seen(cpuinfo())
                .seen(p.listed(PCI))
                .because("/proc/cpuinfo lists `hypervisor`, and none of the PCI functions is a DSA (8086:0b25).")
                .remedy(
                    "if the host has a DSA: there, modprobe vfio-pci disable_denylist=1, bind a function to \
                     vfio-pci, and start QEMU with `-device \
                     intel-iommu,intremap=on,caching-mode=on,x-scalable-mode=on -device \
                     vfio-pci,host=0000:6a:01.0`",
                )
                .remedy("on a cloud: choose an instance type that offers DSA, often a bare-metal one")
        } else if p.cpu.is_of_a_family_with_dsa() {
            Finding::of(&causes::DEVICE_NOT_ENUMERATED, "the machine")
                .seen(cpuinfo())
                .seen(p.listed(PCI))
                .because("Either the firmware disables it, or this model has none.")
                .remedy(
                    "firmware setup: look for `DSA` under the processor's I/O or IIO settings of each socket, and \
                     enable it",
                )
                .remedy("look the processor up: its data sheet says how many DSA devices the model has (0 for some)")
        } else {
            Finding::of(&causes::PROCESSOR_WITHOUT_DSA, "the machine")
                .seen(cpuinfo())
                .seen(p.listed(PCI))
                .because("Intel's Xeons have DSA since the fourth generation (Sapphire Rapids).")
        };
        return vec![finding.remedy(
            "meanwhile, every command accepts the software model: `--device model:spr`, or `telpher run -- PROGRAM`",
        )];
    }
    let tables = p.iommu.tables.as_ref();
    if tables.is_some_and(|tables| !tables.iter().any(|table| table == "DMAR")) && p.lacks_sva() {
        let finding = if p.cpu.is_guest() {
            Finding::of(&causes::GUEST_WITHOUT_IOMMU, "the machine")
                .seen(p.listed(TABLES))
                .remedy(
                    "on the host: give the guest one with scalable mode (QEMU: `-device intel-iommu,intremap=on,\
                     caching-mode=on,x-scalable-mode=on`), then boot the guest with `intel_iommu=on,sm_on`",
                )
                .remedy("without one, only dedicated queues of kernel type work, for the guest's kernel")
        } else {
            Finding::of(&causes::VTD_OFF, "the machine").seen(p.listed(TABLES)).remedy(
                "firmware setup: enable `Intel VT for Directed I/O (VT-d)`, save, and boot with `intel_iommu=on,sm_on`",
            )
        };
        return vec![finding.all_seen(sva(p))];
    }
    Vec::new()
}

/// What the devices report about shared virtual addressing.
pub(super) fn sva(p: &ExaminedMachine<'_>) -> Vec<Evidence> {
    let without = p.devices().filter(|device| device.pasid_enabled == Some(false));
    without.map(|device| p.attribute(&device.name, "pasid_enabled")).collect()
}
