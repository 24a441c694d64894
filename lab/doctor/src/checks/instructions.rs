//! Checks for the instructions with which programs submit and wait.

use crate::causes::{self, Cause};
use crate::examined_machine::ExaminedMachine;
use crate::finding::{Evidence, Finding};
use telpher_portal::QueueMode;

/// First kernel that does not let programs use ENQCMD. Source: linux-abi §9.
const MASKED_FROM: (u32, u32) = (5, 13);
/// First later kernel that lets programs use it again. Source: linux-abi §9.
const MASKED_BEFORE: (u32, u32) = (5, 18);

pub(super) fn examine(p: &ExaminedMachine<'_>) -> Vec<Finding> {
    let modes: Vec<_> = p.usable().filter_map(|(_, queue)| queue.mode).collect();
    let mut findings = Vec::new();
    let lacking = |cause: &Cause, flag: &str| {
        let says = format!("flags do not list {flag}");
        Finding::of(cause, "the processor").seen(Evidence { source: "/proc/cpuinfo".into(), says })
    };
    if modes.contains(&QueueMode::Dedicated) && p.cpu.lacks("movdir64b") {
        findings.push(
            lacking(&causes::MOVDIR64B_MISSING, "movdir64b")
                .remedy("in a virtual machine: give it the host's processor (QEMU: -cpu host), or add +movdir64b")
                .remedy("remove clearcpuid= from the kernel's command line if it names this flag"),
        );
    }
    if modes.contains(&QueueMode::Shared) && p.cpu.lacks("enqcmd") {
        let masked = p.kernel.version.is_some_and(|version| (MASKED_FROM..MASKED_BEFORE).contains(&version));
        findings.push(if masked {
            lacking(&causes::ENQCMD_MASKED, "enqcmd")
                .seen(p.seen("/proc/sys/kernel/osrelease"))
                .remedy("use Linux 5.18 or later, or dedicated queues")
        } else {
            lacking(&causes::ENQCMD_MISSING, "enqcmd")
                .because(
                    "The firmware disables it, a virtual machine's host hides it, or the kernel was built without \
                     PASID support.",
                )
                .remedy("firmware setup: enable `PCI ENQCMD/ENQCMDS` (often under IIO configuration)")
                .remedy(
                    "in a virtual machine: give it the host's processor (QEMU: -cpu host) and an IOMMU with \
                     scalable mode",
                )
                .remedy("or use dedicated queues")
        });
    }
    if !modes.is_empty() && p.cpu.lacks("waitpkg") {
        findings.push(
            lacking(&causes::UMWAIT_MISSING, "waitpkg")
                .remedy("in a virtual machine: +waitpkg on QEMU, with -overcommit cpu-pm=on")
                .remedy(
                    "otherwise nothing: telpher waits with PAUSE, and sleeps until shortly before the expected end of \
                     a long job",
                ),
        );
    }
    findings
}
