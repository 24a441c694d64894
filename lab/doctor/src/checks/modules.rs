//! Checks that the driver is bound to the PCI functions.

use crate::causes;
use crate::examined_machine::{ExaminedMachine, Function, PCI};
use crate::finding::{Evidence, Finding, Severity};

pub(super) fn examine(p: &ExaminedMachine<'_>, before: &[Finding]) -> Vec<Finding> {
    let functions = p.functions.as_deref().unwrap_or_default();
    let mut findings = Vec::new();
    let works = functions.iter().any(|function| function.driver.as_deref() == Some("idxd"));
    for function in functions {
        match function.driver.as_deref() {
            Some("idxd") | None => {}
            Some(driver) => findings.push(taken(p, function, driver, works)),
        }
    }
    let free: Vec<&Function> = functions.iter().filter(|function| function.driver.is_none()).collect();
    // A missing driver cannot be loaded; the kernel stage reports it.
    let explained = before.iter().any(|finding| finding.id == causes::DRIVER_NOT_BUILT.id);
    if !explained && !p.module.loaded && (!free.is_empty() || p.functions.is_none()) {
        findings.push(not_loaded(p));
    } else if !explained {
        findings.extend(free.iter().map(|function| refused(p, function)));
    }
    findings
}

/// Another driver is bound to the function.
fn taken(p: &ExaminedMachine<'_>, function: &Function, driver: &str, works: bool) -> Finding {
    let folder = format!("{PCI}/{}", function.address);
    let cause = if driver.starts_with("vfio") { &causes::BOUND_TO_VFIO } else { &causes::BOUND_TO_UIO };
    let finding = Finding::of(cause, &function.address).seen(p.linked(&format!("{folder}/driver")));
    let finding = if driver.starts_with("vfio") {
        finding.because(
            "That is right for a virtual machine or for SPDK and DPDK with their own driver; since INTEL-SA-01084 \
             vfio-pci refuses these devices unless loaded with disable_denylist=1.",
        )
    } else {
        finding.because(format!("The driver is {driver}, which is correct only for DPDK with its own driver."))
    };
    let address = &function.address;
    finding
        .severity(if works { Severity::Note } else { Severity::Error })
        .remedy(format!("echo {address} > {folder}/driver/unbind"))
        .remedy(format!("echo > {folder}/driver_override"))
        .remedy(format!("modprobe idxd && echo {address} > /sys/bus/pci/drivers/idxd/bind"))
        .remedy("and prevent `driverctl`, `dpdk-devbind.py` or SPDK's setup.sh from binding it again at the next boot")
}

fn not_loaded(p: &ExaminedMachine<'_>) -> Finding {
    let by_boot = p.boot.iter().filter(|word| {
        let list = ["module_blacklist=", "modprobe.blacklist="].iter().find_map(|key| word.strip_prefix(key));
        list.is_some_and(|list| list.split(',').any(|name| name == "idxd"))
    });
    let by_boot: Vec<&String> = by_boot.collect();
    if p.module.blacklisted.is_empty() && by_boot.is_empty() {
        return Finding::of(&causes::MODULE_NOT_LOADED, "idxd")
            .seen(p.listed("/sys/module/idxd"))
            .all_seen(p.logged(&["idxd"]))
            .remedy("modprobe idxd")
            .remedy("echo idxd > /etc/modules-load.d/idxd.conf    # at every boot");
    }
    let mut finding = Finding::of(&causes::MODULE_BLACKLISTED, "idxd");
    for (path, line) in &p.module.blacklisted {
        finding = finding
            .seen(Evidence { source: path.clone(), says: line.clone() })
            .remedy(format!("remove the line `{line}` from {path}"));
    }
    for word in by_boot {
        finding = finding
            .seen(p.seen("/proc/cmdline"))
            .remedy(format!("remove `{word}` from the kernel's command line, and reboot"));
    }
    finding.remedy("modprobe idxd")
}

fn refused(p: &ExaminedMachine<'_>, function: &Function) -> Finding {
    let folder = format!("{PCI}/{}", function.address);
    Finding::of(&causes::DRIVER_REFUSED_DEVICE, &function.address)
        .seen(p.linked(&format!("{folder}/driver")))
        .all_seen(p.logged(&["idxd", &function.address]))
        .remedy(format!(
            "echo {} > /sys/bus/pci/drivers/idxd/bind    # tries again; the error number is the reason",
            function.address
        ))
        .remedy(format!("dmesg | grep {}    # shows the driver's messages", function.address))
        .remedy(format!(
            "echo 1 > {folder}/reset    # if the driver reports that the device does not answer or is halted"
        ))
}
