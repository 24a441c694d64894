//! Does every group have queues and engines, and does nothing lie idle?

use crate::doctor::causes;
use crate::doctor::finding::Finding;
use crate::doctor::patient::Patient;
use telpher_hw::{Device, Group, State};

/// Highest version whose devices know one traffic class only, as Linux and DPDK use them. Source: semantics-notes §5.
const ONE_CLASS: u32 = 0x200;

/// Groups with queues or engines, but not both.
pub(super) fn lopsided(device: &Device) -> impl Iterator<Item = &Group> {
    let any_queue = device.groups.iter().any(|group| !group.work_queues.is_empty());
    // Without any queue the device is not configured yet, whatever its engines say.
    device.groups.iter().filter(move |group| any_queue && group.work_queues.is_empty() != group.engines.is_empty())
}

pub(super) fn examine(p: &Patient<'_>) -> Vec<Finding> {
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

fn one_sided(p: &Patient<'_>, device: &Device, group: &Group) -> Finding {
    let cause = if group.engines.is_empty() { &causes::GROUP_WITHOUT_ENGINE } else { &causes::GROUP_WITHOUT_QUEUE };
    let finding = Finding::of(cause, &group.name)
        .seen(p.attribute(&group.name, "work_queues"))
        .seen(p.attribute(&group.name, "engines"))
        .seen(p.attribute(&device.name, "state"));
    let finding = if group.engines.is_empty() {
        let free = device.engines.iter().find(|engine| engine.group.is_none());
        let engine = free.or(device.engines.first()).map_or("engine0.0", |engine| engine.name.as_str());
        finding.remedy(format!("accel-config config-engine {}/{engine} --group-id={}", device.name, group.number))
    } else {
        let finding = finding.because("The device answers 0x15 (group configuration) to Enable Device.");
        group.engines.iter().fold(finding, |finding, engine| {
            finding.remedy(format!("echo -1 > /sys/bus/dsa/devices/{engine}/group_id    # or give the group a queue"))
        })
    };
    finding.remedy(format!("accel-config enable-device {}", device.name))
}

/// Engines of an enabled device that do nothing.
fn idle(p: &Patient<'_>, device: &Device) -> Option<Finding> {
    let idle: Vec<_> = device.engines.iter().filter(|engine| engine.group.is_none()).collect();
    if idle.is_empty() {
        return None;
    }
    let names = idle.iter().map(|engine| engine.name.as_str()).collect::<Vec<_>>().join(", ");
    Some(
        Finding::of(&causes::ENGINES_IDLE, &device.name)
            .all_seen(idle.iter().map(|engine| p.attribute(&engine.name, "group_id")))
            .because("More engines in a group raise its throughput, most for small transfers (Kuper et al., ASPLOS 2024, guideline G5).")
            .remedy(format!("put {names} into a group with queues: disable the device, then accel-config config-engine {}/{} --group-id=0",
                device.name, idle[0].name)),
    )
}

fn at_work(p: &Patient<'_>, device: &Device, group: &Group) -> Vec<Finding> {
    let mut findings = Vec::new();
    if group.engines.is_empty() || group.work_queues.is_empty() {
        return findings;
    }
    let engines = u32::try_from(group.engines.len()).unwrap_or(u32::MAX);
    // An equal share of all read buffers for each engine; the product fits, since devices have some hundred of them.
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
                .because(format!("An equal share for {engines} of its engines would be {share}."))
                .remedy(format!(
                    "disable the device, then: accel-config config-group {}/{} --read-buffers-allowed={share}",
                    device.name, group.name
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
                .because("The driver lets it be set with tc_override only. A class that no virtual channel carries makes descriptors end \
                          with 0x1e, and two classes weaken the order between data and completion records.")
                .remedy(format!("disable the device, then: echo 1 > /sys/bus/dsa/devices/{0}/traffic_class_a; echo 1 > \
                                 /sys/bus/dsa/devices/{0}/traffic_class_b", group.name)),
        );
    }
    findings
}
