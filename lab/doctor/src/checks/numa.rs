//! Checks that a device is near the processors of this process.

use crate::causes;
use crate::examined_machine::{ExaminedMachine, NUMA, NumaNode, STATUS};
use crate::finding::{Finding, Stage};
use std::collections::BTreeSet;

/// Smallest distance of a node on another socket; parts of one socket (sub-NUMA clusters) are nearer. Source: Linux
/// include/linux/topology.h, REMOTE_DISTANCE, from ACPI's table SLIT.
const REMOTE: u32 = 20;

pub(super) fn examine(p: &ExaminedMachine<'_>, before: &[Finding]) -> Vec<Finding> {
    let Some(allowed) = p.process.cpus.as_ref().filter(|_| p.numa.len() > 1) else { return Vec::new() };
    let served: Option<BTreeSet<u32>> = p.usable().map(|(device, _)| device.numa_node).collect();
    // Devices of an unknown node may be near or far; without a queue, other findings matter more than distance.
    let Some(served) = served.filter(|served| !served.is_empty()) else { return Vec::new() };
    let here = |node: &&NumaNode| node.cpus.iter().any(|cpu| allowed.contains(cpu));
    let nodes: Vec<&NumaNode> = p.numa.iter().filter(here).collect();
    let far: Vec<&NumaNode> = nodes.iter().copied().filter(|node| !is_near(p, node, &served)).collect();
    let distance = |node: &NumaNode| p.seen(&format!("{NUMA}/node{}/distance", node.number));
    let devices = || {
        let names: BTreeSet<&str> = p.usable().map(|(device, _)| device.name.as_str()).collect();
        names.into_iter().map(|name| p.attribute(name, "numa_node")).collect::<Vec<_>>()
    };
    if far.len() == nodes.len() && !nodes.is_empty() {
        let near = served.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        return vec![
            Finding::of(&causes::QUEUES_FAR, "this process")
                .seen(p.seen_line(STATUS, "Cpus_allowed_list:"))
                .all_seen(devices())
                .all_seen(far.iter().map(|node| distance(node)))
                .because("Every descriptor and every byte crosses the sockets' link.")
                .remedy(format!("numactl --cpunodebind={near} PROGRAM, or widen the cpuset it runs in"))
                .remedy("or configure a device on its own node (`telpher list` shows them)"),
        ];
    }
    // A device without the driver, or one that does not work, has its own finding.
    if before.iter().any(|finding| finding.stage <= Stage::Modules) {
        return Vec::new();
    }
    let idle: BTreeSet<u32> = p.devices().filter_map(|device| device.numa_node).collect();
    far.iter()
        .filter(|node| !is_near(p, node, &idle))
        .map(|node| {
            Finding::of(&causes::NODE_WITHOUT_QUEUE, format!("node {}", node.number))
                .all_seen(devices())
                .seen(distance(node))
                .remedy(
                    "let programs that use DSA run on another node (numactl --cpunodebind), or expect slower transfers",
                )
                .remedy("if the node has a DSA that is not listed: enable it in the firmware setup of that socket")
        })
        .collect()
}

/// Returns true if a device of one of these nodes is on the node's own socket.
fn is_near(p: &ExaminedMachine<'_>, node: &NumaNode, devices: &BTreeSet<u32>) -> bool {
    let mut away = p.numa.iter().zip(&node.distances).filter(|(_, distance)| **distance < REMOTE);
    devices.contains(&node.number) || away.any(|(other, _)| devices.contains(&other.number))
}
