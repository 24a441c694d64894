//! Checks of the devices.

use super::{groups, status, steps};
use crate::causes;
use crate::examined_machine::{ExaminedMachine, PCI};
use crate::finding::{Finding, Severity};
use telpher_abi::{DeviceError, Opcode, Status, SwError};
use telpher_hw::{Device, QueueType, State};

/// Entries of the first queue of an unconfigured device: half of the device's. Source: linux-abi §10, the sample.
const ENTRIES: u32 = 64;

pub(super) fn examine(p: &ExaminedMachine<'_>) -> Vec<Finding> {
    p.devices().flat_map(|device| of(p, device)).collect()
}

fn of(p: &ExaminedMachine<'_>, device: &Device) -> Vec<Finding> {
    let mut findings = Vec::new();
    let errors = SwError(device.errors.unwrap_or_default());
    match device.state {
        Some(State::Halted) => return vec![halted(p, device, errors)],
        Some(State::Disabled) => findings.extend(disabled(p, device)),
        Some(State::Enabled) | None => {}
    }
    if errors.valid() {
        findings.push(
            Finding::of(&causes::DEVICE_ERROR, &device.name)
                .seen(p.attribute(&device.name, "errors"))
                .all_seen(p.logged(&["idxd", "err["]))
                .because(description(errors))
                .remedy(advice(errors))
                .remedy(
                    "the attribute keeps the last error until the device is probed again; watch whether it changes",
                ),
        );
    }
    if p.numa.len() > 1 && p.attribute_text(&device.name, "numa_node").as_deref() == Some("-1") {
        findings.push(
            Finding::of(&causes::NODE_UNKNOWN, &device.name)
                .seen(p.attribute(&device.name, "numa_node"))
                .because("Programs that choose the nearest device cannot.")
                .remedy(
                    "update the firmware, or tell the kernel: echo NODE > /sys/bus/pci/devices/ADDRESS/numa_node \
                     before idxd is loaded",
                ),
        );
    }
    findings
}

/// Describes a latched error.
fn description(errors: SwError) -> String {
    let code = errors.error_code();
    let what = match DeviceError::from_code(code) {
        DeviceError::Unknown(_) => Status::from_code(code).meaning(),
        known => known.meaning(),
    };
    let mut text = format!("Its code {code:#04x} means: {what}.");
    if errors.descriptor_valid() {
        let operation = Opcode::from_code(errors.operation());
        text.push_str(&format!(
            " The descriptor was a {operation:?} from the address space with PASID {}.",
            errors.pasid()
        ));
    }
    if errors.wq_index_valid() {
        text.push_str(&format!(" It came through queue number {}.", errors.wq_index()));
    }
    if errors.overflow() {
        text.push_str(" More errors followed, which the device does not keep.");
    }
    text
}

fn advice(errors: SwError) -> &'static str {
    match DeviceError::from_code(errors.error_code()) {
        DeviceError::QueueOverflow => {
            "a program wrote more descriptors to a dedicated queue than it has entries: let it count those in flight, \
             or use a larger queue"
        }
        DeviceError::ConfigurationChange => {
            "find what writes to the device's PCI configuration (setpci, vfio tools) while it is in use"
        }
        _ => {
            "look for the program that had this address space at that time: its descriptor had no completion record \
             that could be written"
        }
    }
}

fn halted(p: &ExaminedMachine<'_>, device: &Device, errors: SwError) -> Finding {
    let finding = Finding::of(&causes::DEVICE_HALTED, &device.name)
        .seen(p.attribute(&device.name, "state"))
        .seen(p.attribute(&device.name, "errors"))
        .all_seen(p.logged(&["idxd", "HALTED"]));
    let finding = if errors.valid() { finding.because(description(errors)) } else { finding };
    let address = device.pci_address.as_deref().unwrap_or("ADDRESS");
    finding
        .remedy("save the configuration while it can be read: accel-config save-config -s dsa.conf")
        .remedy(format!("echo {address} > /sys/bus/pci/drivers/idxd/unbind"))
        .remedy(format!("echo 1 > {PCI}/{address}/reset"))
        .remedy(format!("echo {address} > /sys/bus/pci/drivers/idxd/bind"))
        .remedy("accel-config load-config -c dsa.conf -e")
}

fn disabled(p: &ExaminedMachine<'_>, device: &Device) -> Option<Finding> {
    let name = &device.name;
    // Errors of a group are findings of the group.
    if groups::lopsided(device).next().is_some() {
        return None;
    }
    if device.configurable == Some(false) {
        return Some(
            Finding::of(&causes::DEVICE_FIXED, name)
                .seen(p.attribute(name, "configurable"))
                .seen(p.attribute(name, "state"))
                .remedy("the host of this virtual machine has to configure the device with a queue of type user"),
        );
    }
    let grouped = device.queues.iter().any(|queue| queue.group.is_some());
    if !grouped {
        let others = p.usable().next().is_some();
        let queues = device.queues.iter().take(2).map(|queue| p.attribute(&queue.name, "group_id"));
        return Some(
            Finding::of(&causes::DEVICE_NOT_CONFIGURED, name)
                .seen(p.attribute(name, "state"))
                .all_seen(queues)
                .severity(if others { Severity::Note } else { Severity::Error })
                .because(if others {
                    "Other devices work; this one is idle."
                } else {
                    "This is the state after the driver loads; a program or service has to configure devices."
                })
                .all_remedies(by_hand(p, device)),
        );
    }
    let status = device.cmd_status.unwrap_or(0);
    match status::meaning(status) {
        Some(meaning) => Some(
            Finding::of(&causes::DEVICE_REFUSED, name)
                .seen(p.attribute(name, "state"))
                .seen(p.attribute(name, "cmd_status"))
                .all_seen(p.logged(&["idxd", device.pci_address.as_deref().unwrap_or("idxd")]))
                .because(format!("The last command ended with {meaning}."))
                .remedy("correct the reported attribute (`telpher list` shows the configuration), then:")
                .remedy(format!("accel-config enable-device {name}"))
                .all_remedies(enable_queues(device)),
        ),
        None => Some(
            Finding::of(&causes::DEVICE_NOT_ENABLED, name)
                .seen(p.attribute(name, "state"))
                .seen(p.attribute(name, "cmd_status"))
                .remedy(format!(
                    "accel-config enable-device {name}    # or: echo {name} > /sys/bus/dsa/drivers/idxd/bind"
                ))
                .all_remedies(enable_queues(device)),
        ),
    }
}

/// The minimal commands that make one queue work.
fn by_hand(p: &ExaminedMachine<'_>, device: &Device) -> Vec<String> {
    let name = &device.name;
    let engines = device.engines.iter().map(|engine| engine.name.as_str()).collect::<Vec<_>>().join(" ");
    let Some(queue) = device.queues.first() else { return Vec::new() };
    let size = device.max_work_queues_size.unwrap_or(ENTRIES).min(ENTRIES);
    let mut changes = vec![("group_id", "0".to_owned()), ("size", size.to_string())];
    changes.extend(steps::fresh(device));
    vec![
        format!(
            "for e in {engines}; do accel-config config-engine {name}/$e --group-id=0; done    # as root; package \
             accel-config"
        ),
        steps::config(p, device, queue, &changes),
        format!("accel-config enable-device {name}"),
        steps::enable(device, queue),
        "for every boot: accel-config save-config -s FILE, and `accel-config load-config -c FILE -e` in your own \
         systemd unit"
            .into(),
    ]
}

/// Commands that enable a device's queues for programs, once the device is enabled.
pub(super) fn enable_queues(device: &Device) -> Vec<String> {
    let ours = device.queues.iter().filter(|queue| queue.queue_type == Some(QueueType::User));
    ours.take(steps::MOST).map(|queue| steps::enable(device, queue)).collect()
}
