//! Attributes of the PCI function. The list is complete, because a bus scan fails if one is missing (observed clients).

use super::super::Kernel;
use super::super::attribute::{Attribute, Id, Store, ValueFormat, check, line, read_only, read_write, write_only};
use super::super::pci::{CLASS, DEVICE, VENDOR};
use crate::tree::Errno;

/// The NUMA node of all devices: node 0 exists on every machine, and clients look for the device's own node (observed
/// clients).
pub(crate) const NUMA_NODE: i32 = 0;

/// The attribute table.
pub(crate) static ROWS: &[Attribute] = &[
    read_only("ari_enabled", |_, _| line(0)),
    read_write("broken_parity_status", |_, _| line(0), ACCEPTED_FLAG),
    read_only("class", |_, _| line(format_args!("{CLASS:#08x}"))),
    read_only("consistent_dma_mask_bits", |_, _| line(64)),
    read_write("d3cold_allowed", |_, _| line(1), ACCEPTED_FLAG),
    read_only("device", |_, _| line(format_args!("{DEVICE:#06x}"))),
    read_only("dma_mask_bits", |_, _| line(64)),
    // Other drivers (vfio-pci, uio) cannot bind the function: it has no memory to map.
    read_write("driver_override", |_, _| line("(null)"), Store::Act(|_, _, _| Err(Errno::BUSY))),
    // Cannot be changed while a driver is bound. Source: K612 `drivers/pci/pci-sysfs.c`, enable_store.
    read_write("enable", |_, _| line(1), Store::Act(|_, _, _| Err(Errno::BUSY))),
    read_only("irq", |_, _| line(0)),
    read_only("local_cpulist", |k, _| line(k.cpus().list())),
    read_only("local_cpus", |k, _| line(k.cpus().mask())),
    read_only("modalias", |_, _| line(modalias())),
    read_write("msi_bus", |_, _| line(1), ACCEPTED_FLAG),
    read_write(
        "numa_node",
        |_, _| line(NUMA_NODE),
        Store::value(
            ValueFormat::Signed,
            &[check(Errno::INVAL, |_, _, input| input.number == NUMA_NODE.into())],
            |_, _, _| {},
        ),
    ),
    read_only("power_state", |_, _| line("D0")),
    // Removing the function would remove its devices; no supported client does this.
    write_only("remove", |_, _, _| Err(Errno::BUSY)),
    write_only("rescan", |_, _, text| if text == "1" { Ok(()) } else { Err(Errno::INVAL) }),
    write_only("reset", |k, id, text| {
        if text != "1" {
            return Err(Errno::INVAL);
        }
        k.dsa_mut(id).registers.function_level_reset();
        Ok(())
    }),
    read_write("reset_method", |_, _| line("flr"), Store::Act(|_, _, text| accept(matches!(text, "flr" | "default")))),
    read_only("resource", |k, id| Ok(k.dsa(id).config_space.resources())),
    read_only("revision", |_, _| line("0x00")),
    read_only("subsystem_device", |_, _| line("0x0000")),
    read_only("subsystem_vendor", |_, _| line(format_args!("{VENDOR:#06x}"))),
    read_write("uevent", uevent, Store::Act(|_, _, text| super::common::synthesise(text))),
    read_only("vendor", |_, _| line(format_args!("{VENDOR:#06x}"))),
];

/// One entry of `msi_irqs/`; its file name is the interrupt number.
pub(crate) static MSI: Attribute = read_only("msi", |_, _| line("msix"));

const ACCEPTED_FLAG: Store = Store::value(ValueFormat::Flag, &[], |_, _, _| {});

fn accept(known: bool) -> Result<(), Errno> {
    if known { Ok(()) } else { Err(Errno::INVAL) }
}

fn modalias() -> String {
    format!(
        "pci:v{VENDOR:08X}d{DEVICE:08X}sv{VENDOR:08X}sd{:08X}bc{:02x}sc{:02x}i{:02x}",
        0,
        CLASS >> 16,
        CLASS >> 8 & 0xff,
        CLASS & 0xff
    )
}

fn uevent(kernel: &Kernel, id: Id) -> Result<String, Errno> {
    Ok(format!(
        "DRIVER=idxd\nPCI_CLASS={CLASS:X}\nPCI_ID={VENDOR:04X}:{DEVICE:04X}\nPCI_SUBSYS_ID={VENDOR:04X}:0000\n\
         PCI_SLOT_NAME={}\nMODALIAS={}\n",
        kernel.dsa(id).address,
        modalias()
    ))
}
