//! Checks that portals may be mapped. Since INTEL-SA-01084 the driver requires CAP_SYS_RAWIO. Source: linux-abi §7.

use super::permissions::answered;
use crate::causes;
use crate::examined_machine::{ExaminedMachine, STATUS, UID_MAP};
use crate::finding::Finding;

pub(super) fn examine(p: &ExaminedMachine<'_>) -> Vec<Finding> {
    let refused: Vec<_> = p
        .usable()
        .filter(|(_, queue)| p.nodes.get(&queue.name).is_some_and(|node| node.map == Some(libc::EPERM)))
        .collect();
    if refused.is_empty() {
        return Vec::new();
    }
    let names = refused.iter().map(|(_, queue)| queue.name.as_str()).collect::<Vec<_>>().join(", ");
    let of = |cause| {
        let calls = refused.iter().map(|(device, queue)| answered("mmap", &queue.node(device.kind), libc::EPERM));
        let finding = Finding::of(cause, names.as_str()).all_seen(calls);
        finding.because(
            "Each descriptor costs a system call, and batches are not possible. telpher uses write() automatically.",
        )
    };
    let held = |finding: Finding| finding.seen(p.seen_line(STATUS, "CapEff:"));
    if p.emulated {
        return vec![of(&causes::RAWIO_MISSING).remedy("start `telpher run` without --no-rawio")];
    }
    let service = "service: AmbientCapabilities=CAP_SYS_RAWIO, and CapabilityBoundingSet= must not exclude it";
    let container = "container: --cap-add SYS_RAWIO; Kubernetes: securityContext.capabilities.add: [\"SYS_RAWIO\"]";
    vec![if p.process.rawio == Some(true) && p.process.in_user_namespace {
        held(of(&causes::RAWIO_OF_A_NAMESPACE))
            .seen(p.seen(UID_MAP))
            .remedy("run the program outside the user namespace (not rootless, no userns-remap), or let it use write()")
    } else if p.process.rawio == Some(false) && p.process.rawio_reachable == Some(false) {
        held(of(&causes::RAWIO_OUT_OF_REACH)).seen(p.seen_line(STATUS, "CapBnd:")).remedy(container).remedy(service)
    } else {
        held(of(&causes::RAWIO_MISSING))
            .remedy(
                "setcap cap_sys_rawio+ep PROGRAM    # gives access to more than this device: only for trusted programs",
            )
            .remedy(service)
            .remedy(container)
    }]
}
