//! Checks that every group has queues and engines, and that no engine is idle.

use super::steps;
use crate::causes;
use crate::examined_machine::ExaminedMachine;
use crate::finding::Finding;
use telpher_hw::{Device, Engine, Group, State};

/// Highest version whose devices have only one traffic class, as Linux and DPDK use them. Source: semantics-notes §5.
const ONE_CLASS: u32 = 0x200;

/// Groups with queues or engines, but not both.
pub(super) fn lopsided(device: &Device) -> impl Iterator<Item = &Group> {
    let any_queue = device.groups.iter().any(|group| !group.work_queues.is_empty());
    // Without any queue the device is not configured yet, even if its engines have groups.
    device.groups.iter().filter(move |group| any_queue && group.work_queues.is_empty() != group.engines.is_empty())
}

pub(super) fn examine(p: &ExaminedMachine<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in p.devices() {
        match device.state {
            Some(State::Disabled) => findings.extend(lopsided(device).map(|group| one_sided(p, device, group))),
            Some(State::Enabled) => {
                findings.extend(idle(p, device));
                findings.extend(device.groups.iter().flat_map(|group| at_work(p, device, group)));
            }
            Some(State::Halted) | None => {}
        }
    }
    findings
}

fn one_sided(p: &ExaminedMachine<'_>, device: &Device, group: &Group) -> Finding {
    let cause = if group.engines.is_empty() { &causes::GROUP_WITHOUT_ENGINE } else { &causes::GROUP_WITHOUT_QUEUE };
    let finding = Finding::of(cause, &group.name)
        .seen(p.attribute(&group.name, "work_queues"))
        .seen(p.attribute(&group.name, "engines"))
        .seen(p.attribute(&device.name, "state"));
    // Engines without a group are distributed over the groups without an engine; engines of a group without queues go
    // to a group with queues.
    let (engines, to): (Vec<&Engine>, u32) = if group.engines.is_empty() {
        let idle = |group: &&Group| group.engines.is_empty();
        let lacking: Vec<u32> = lopsided(device).filter(idle).map(|group| group.number).collect();
        let turn = lacking.iter().position(|number| *number == group.number).unwrap_or(0);
        let free = device.engines.iter().filter(|engine| engine.group.is_none());
        let mut given: Vec<&Engine> = free.skip(turn).step_by(lacking.len().max(1)).collect();
        if given.is_empty() {
            given.extend(device.engines.first());
        }
        (given, group.number)
    } else {
        (device.engines.iter().filter(|engine| engine.group == Some(group.number)).collect(), served(device))
    };
    let finding = if group.engines.is_empty() {
        finding
    } else {
        finding.because("The device answers 0x15 (group configuration) to Enable Device.")
    };
    let finding = finding.all_remedies(engines.iter().map(|engine| grouped(device, engine, to)));
    finding
        .remedy(format!("accel-config enable-device {}", device.name))
        .all_remedies(super::device::enable_queues(device))
}

/// A group that has queues.
fn served(device: &Device) -> u32 {
    device.groups.iter().find(|group| !group.work_queues.is_empty()).map_or(0, |group| group.number)
}

/// Returns the command that puts an engine into a group.
fn grouped(device: &Device, engine: &Engine, group: u32) -> String {
    format!("accel-config config-engine {}/{} --group-id={group}", device.name, engine.name)
}

/// Engines of an enabled device without a group.
fn idle(p: &ExaminedMachine<'_>, device: &Device) -> Option<Finding> {
    let idle: Vec<_> = device.engines.iter().filter(|engine| engine.group.is_none()).collect();
    if idle.is_empty() {
        return None;
    }
    let to = served(device);
    Some(
        Finding::of(&causes::ENGINES_IDLE, &device.name)
            .all_seen(idle.iter().map(|engine| p.attribute(&engine.name, "group_id")))
            .because(
                "More engines in a group raise its throughput, most for small transfers (Kuper et al., ASPLOS \
                 2024, guideline G5).",
            )
            .all_remedies(steps::rebuilt(device, idle.iter().map(|engine| grouped(device, engine, to)))),
    )
}

fn at_work(p: &ExaminedMachine<'_>, device: &Device, group: &Group) -> Vec<Finding> {
    let mut findings = Vec::new();
    if group.engines.is_empty() || group.work_queues.is_empty() {
        return findings;
    }
    let engines = u32::try_from(group.engines.len()).unwrap_or(u32::MAX);
    // An equal share of all read buffers for each engine; the product cannot overflow, since devices have some hundred.
    let share = match (device.max_read_buffers, device.max_engines) {
        (Some(buffers), Some(all)) if all > 0 => u64::from(buffers) * u64::from(engines.min(all)) / u64::from(all),
        _ => 0,
    };
    if group.read_buffers_allowed.is_some_and(|allowed| u64::from(allowed) < share) {
        findings.push(
            Finding::of(&causes::READ_BUFFERS_FEW, &group.name)
                .seen(p.attribute(&group.name, "read_buffers_allowed"))
                .seen(p.attribute(&group.name, "engines"))
                .seen(p.attribute(&device.name, "max_read_buffers"))
                .because(format!("The equal share of its {engines} engines would be {share}."))
                .all_remedies(steps::rebuilt(
                    device,
                    [format!(
                        "accel-config config-group {}/{} --read-buffers-allowed={share}",
                        device.name, group.name
                    )],
                )),
        );
    }
    let limit = device.read_buffer_limit.filter(|limit| *limit > 0 && u64::from(*limit) < share);
    if group.use_read_buffer_limit == Some(true) && limit.is_some() {
        findings.push(
            Finding::of(&causes::READ_BUFFERS_LIMITED, &group.name)
                .seen(p.attribute(&device.name, "read_buffer_limit"))
                .seen(p.attribute(&group.name, "engines"))
                .seen(p.attribute(&device.name, "max_read_buffers"))
                .because(format!("The equal share of its {engines} engines would be {share}."))
                .all_remedies(steps::rebuilt(
                    device,
                    [format!("accel-config config-group {}/{} --use-read-buffer-limit=0", device.name, group.name)],
                )),
        );
    }
    let other = |class: Option<u32>| class.is_some_and(|class| class != 1);
    if device.version.is_some_and(|version| version <= ONE_CLASS)
        && (other(group.traffic_class_a) || other(group.traffic_class_b))
    {
        findings.push(
            Finding::of(&causes::TRAFFIC_CLASS, &group.name)
                .seen(p.attribute(&group.name, "traffic_class_a"))
                .seen(p.attribute(&group.name, "traffic_class_b"))
                .seen(p.attribute(&device.name, "version"))
                .because(
                    "The driver lets it be set with tc_override only. A class that no virtual channel carries \
                     makes descriptors end with 0x1e, and two classes weaken the order between data and \
                     completion records.",
                )
                .all_remedies(steps::rebuilt(
                    device,
                    ["a", "b"]
                        .map(|class| format!("echo 1 > /sys/bus/dsa/devices/{}/traffic_class_{class}", group.name)),
                ))
                .remedy(
                    "and remove `tc_override` from the command line and /etc/modprobe.d, so that it is not set \
                     again",
                ),
        );
    }
    findings
}
