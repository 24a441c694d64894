//! Checks that this process may open the nodes of enabled queues.

use crate::bundle::Node;
use crate::causes;
use crate::examined_machine::{APPARMOR, ExaminedMachine, LABEL, SELINUX, STATUS};
use crate::finding::{Evidence, Finding, Severity};
use std::io;
use std::path::Path;

/// Answers of open(2) when the driver cannot bind the process' address space. Source: linux-abi §7, §8.
const NO_ADDRESS_SPACE: [i32; 4] = [libc::EOPNOTSUPP, libc::ENODEV, libc::EINVAL, libc::ENOSPC];

/// Causes that may be intended: the queue is meant for other users.
const OTHERS: [&str; 3] = [causes::NODE_MISSING.id, causes::NODE_PERMISSION.id, causes::DEVICE_CGROUP.id];

pub(super) fn examine(p: &ExaminedMachine<'_>) -> Vec<Finding> {
    let found = p.usable().filter_map(|(device, queue)| {
        let node = p.nodes.get(&queue.name)?;
        of(p, &queue.name, &queue.node(device.kind), node)
    });
    let ours = p.usable().map(|(_, queue)| queue.name.as_str()).filter(|name| p.nodes.get(*name).is_some_and(is_ours));
    let ours: Vec<&str> = ours.collect();
    let adjusted = |finding: Finding| {
        if OTHERS.contains(&finding.id) && !ours.is_empty() {
            let here = ours.iter().take(4).copied().collect::<Vec<_>>().join(", ");
            finding
                .severity(Severity::Note)
                .because(format!("Other queues can be opened ({here}), so this one may be meant for other users."))
        } else {
            finding
        }
    };
    found.map(adjusted).collect()
}

/// Returns true if the process may open the queue, even if another process has it open now.
fn is_ours(node: &Node) -> bool {
    node.stat.is_none() && node.open.is_none_or(|errno| errno == libc::EBUSY)
}

/// Returns true if a node's permission bits let this process read and write. With an access control list the group's
/// bits are an upper bound of what it grants.
fn is_permitted(p: &ExaminedMachine<'_>, node: &Node) -> bool {
    let bits = u32::from_str_radix(&node.mode, 8).unwrap_or(0);
    let both = |shift: u32| bits >> shift & 6 == 6;
    let process = &p.process;
    if process.overrides == Some(true) && !process.in_user_namespace {
        true
    } else if process.uid == Some(node.uid) {
        both(6)
    } else if process.groups.contains(&node.gid) {
        both(3)
    } else {
        both(0)
    }
}

/// The result of a call on a node, as evidence.
pub(super) fn answered(call: &str, path: &Path, errno: i32) -> Evidence {
    Evidence { source: format!("{call} {}", path.display()), says: io::Error::from_raw_os_error(errno).to_string() }
}

fn of(p: &ExaminedMachine<'_>, queue: &str, path: &Path, node: &Node) -> Option<Finding> {
    let shown = path.display();
    let contained = !p.container.signs.is_empty();
    let permission = |evidence: Evidence| {
        let finding = |cause| {
            Finding::of(cause, queue).seen(evidence.clone()).seen(Evidence {
                source: format!("stat {shown}"),
                says: format!("mode {}, user {}, group {}", node.mode, node.uid, node.gid),
            })
        };
        if node.stat.is_none() && is_permitted(p, node) {
            return finding(&causes::NODE_CONFINED)
                .seen(p.seen(SELINUX))
                .seen(p.seen(APPARMOR))
                .seen(p.seen(LABEL))
                .remedy("journalctl -k --grep 'avc:.*denied|apparmor=.DENIED' | tail    # shows the refused accesses")
                .remedy("SELinux, container: setsebool -P container_use_devices on")
                .remedy("SELinux, service: ausearch -m avc -ts recent | audit2allow -M dsa && semodule -i dsa.pp")
                .remedy(
                    "AppArmor: the line `/dev/dsa/* rw,` in the program's profile, then apparmor_parser -r PROFILE",
                );
        }
        let user = p.process.uid.map_or("USER".into(), |uid| uid.to_string());
        finding(&causes::NODE_PERMISSION)
            .seen(p.seen_line(STATUS, "Uid:"))
            .remedy(format!("setfacl -m u:{user}:rw {shown}    # as root; lasts until the queue is enabled again"))
            .remedy(
                "permanently: echo 'SUBSYSTEM==\"dsa\", GROUP=\"GROUP\", MODE=\"0660\"' > \
                 /etc/udev/rules.d/90-dsa.rules; udevadm control --reload; udevadm trigger --subsystem-match=dsa",
            )
    };
    if let Some(errno) = node.stat {
        if errno != libc::ENOENT {
            return Some(permission(answered("stat", path, errno)));
        }
        let finding = Finding::of(&causes::NODE_MISSING, queue)
            .seen(answered("stat", path, errno))
            .seen(p.attribute(queue, "state"))
            .seen(p.attribute(queue, "cdev_minor"));
        return Some(if contained {
            finding.remedy(format!("start the container with --device {shown}"))
        } else {
            finding.remedy("mount devtmpfs on /dev, or start udev").remedy(format!(
                "or create it: mkdir -p /dev/dsa; mknod {shown} c $(cat \
                 /sys/bus/dsa/devices/dsa{}/cdev_major) $(cat /sys/bus/dsa/devices/{queue}/cdev_minor)",
                queue.trim_start_matches("wq").split('.').next().unwrap_or("0")
            ))
        });
    }
    // `telpher run` with a mount namespace shows nodes as regular files to programs without its library.
    if !node.device && !p.emulated {
        return Some(
            Finding::of(&causes::NODE_NOT_A_DEVICE, queue)
                .seen(Evidence { source: format!("stat {shown}"), says: "not a character device".into() })
                .because(
                    "A shell's `>` on a missing name creates a file, and a container's --volume creates a folder \
                     or a copy.",
                )
                .remedy(format!(
                    "rm -r {shown}, then disable and enable the queue; in a container use --device \
                     {shown}"
                )),
        );
    }
    let Some(errno) = node.open else {
        let errno = node.map.filter(|errno| *errno != libc::EPERM)?;
        return Some(failed(p, queue, answered("mmap", path, errno)));
    };
    let evidence = answered("open", path, errno);
    Some(match errno {
        libc::EBUSY => return None,
        libc::EACCES => permission(evidence),
        libc::EPERM => Finding::of(&causes::DEVICE_CGROUP, queue)
            .seen(evidence)
            .all_seen(p.container.signs.iter().map(|sign| p.seen(sign)))
            .remedy(format!("Docker, Podman: --device {shown}; Kubernetes: the Intel device plugin for DSA"))
            .remedy(format!("systemd: DeviceAllow={shown} rw")),
        errno if NO_ADDRESS_SPACE.contains(&errno) => Finding::of(&causes::NO_PASID, queue)
            .seen(evidence)
            .seen(p.attribute(queue, "state"))
            .all_seen(p.logged(&["PASID"]))
            .because(if errno == libc::ENOSPC { "No PASID is left." } else { "The IOMMU refused the PASID." })
            .remedy("boot with `intel_iommu=on,sm_on`, and look for PASID in dmesg")
            .remedy("end programs that have queues open: each address space uses one PASID"),
        _ => failed(p, queue, evidence),
    })
}

fn failed(p: &ExaminedMachine<'_>, queue: &str, evidence: Evidence) -> Finding {
    Finding::of(&causes::OPEN_FAILED, queue)
        .seen(evidence)
        .all_seen(p.logged(&["idxd"]))
        .remedy("dmesg | grep idxd    # may show the driver's reason")
        .remedy("disable and enable the queue: opening a node whose queue is gone fails with ENXIO")
}
