//! The stages of an examination, from the firmware to the program. Each stage returns findings; a later stage does not
//! repeat what an earlier one has already explained.

mod container;
mod device;
mod firmware;
mod groups;
mod instructions;
mod iommu;
mod kernel;
mod memory;
mod modules;
mod numa;
mod permissions;
mod program;
mod queues;
mod settings;
mod status;
mod steps;
mod submission;

use super::causes;
use super::examined_machine::{DEVICES, ExaminedMachine};
use super::finding::{Finding, Severity, Stage};
use serde::Serialize;
use telpher_hw::State;

/// The result of an examination.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Examination {
    /// The worst of the findings; absent if there are none.
    pub worst: Option<Severity>,
    /// One step for each stage.
    pub(crate) walk: Vec<Step>,
    /// The findings in the order of the stages, errors first within a stage.
    pub(crate) findings: Vec<Finding>,
}

/// The result line of one stage.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Step {
    pub(crate) stage: Stage,
    /// The result of the stage.
    pub(crate) state: StepState,
    /// What was examined, or why the stage was skipped.
    pub(crate) says: String,
}

/// The result of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StepState {
    /// No findings.
    Fine,
    /// There are findings.
    Findings,
    /// The stage was skipped.
    Skipped,
}

/// Reasons to skip a stage.
const NO_DEVICE: &str = "there is no device";
const NO_DRIVER: &str = "the driver shows no device";
const EMULATED: &str = "the device is emulated by `telpher run`; this stage is about hardware";

/// Examines a machine.
pub(crate) fn examine(p: &ExaminedMachine<'_>) -> Examination {
    let mut findings = Vec::new();
    let has_device = p.devices().next().is_some();
    if !p.emulated {
        findings.extend(firmware::examine(p));
    }
    let nothing = !has_device && !findings.is_empty();
    if !p.emulated && !nothing {
        findings.extend(kernel::examine(p));
        findings.extend(iommu::examine(p, &findings));
        findings.extend(modules::examine(p, &findings));
    }
    if has_device {
        findings.extend(device::examine(p));
        findings.extend(groups::examine(p));
        findings.extend(queues::examine(p));
        findings.extend(permissions::examine(p));
        findings.extend(submission::examine(p));
        findings.extend(numa::examine(p, &findings));
        findings.extend(instructions::examine(p));
        findings.extend(memory::examine(p));
        findings.extend(container::examine(p));
        findings.extend(queues::none_for_programs(p, &findings));
        if !p.emulated {
            findings.extend(settings::examine(p));
        }
    } else if findings.iter().all(|finding| finding.severity < Severity::Error) {
        // A machine without a device always has a finding, even if no check found the reason.
        findings.push(
            Finding::of(&causes::DRIVER_REFUSED_DEVICE, "the machine")
                .seen(p.listed(DEVICES))
                .all_seen(p.logged(&["idxd"]))
                .remedy("dmesg | grep -i idxd    # shows the driver's reason"),
        );
    }
    if !has_device {
        findings.extend(memory::transparent(p));
    }
    findings.extend(program::examine(p));
    findings.sort_by_key(|finding| (finding.stage, std::cmp::Reverse(finding.severity)));
    let stages = Stage::ALL.into_iter().filter(|stage| *stage != Stage::Program || p.program.is_some());
    let walk = stages.map(|stage| step(p, stage, nothing, has_device, &findings)).collect();
    Examination { worst: findings.iter().map(|finding| finding.severity).max(), walk, findings }
}

fn step(p: &ExaminedMachine<'_>, stage: Stage, nothing: bool, has_device: bool, findings: &[Finding]) -> Step {
    let below = stage <= Stage::Modules;
    let skipped = match stage {
        _ if p.emulated && below => Some(EMULATED),
        Stage::Firmware | Stage::Program => None,
        _ if nothing => Some(NO_DEVICE),
        _ if !has_device && !below => Some(NO_DRIVER),
        _ => None,
    };
    let found = findings.iter().filter(|finding| finding.stage == stage).count();
    if let Some(why) = skipped.filter(|_| found == 0) {
        return Step { stage, state: StepState::Skipped, says: why.into() };
    }
    let state = if found == 0 { StepState::Fine } else { StepState::Findings };
    Step { stage, state, says: looked_at(p, stage) }
}

/// Returns one line about what a stage examined.
fn looked_at(p: &ExaminedMachine<'_>, stage: Stage) -> String {
    let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let known = |text: &str| if text.is_empty() { "not known".to_owned() } else { text.to_owned() };
    match stage {
        Stage::Firmware => {
            let functions = p.functions.iter().flatten().map(|function| function.address.as_str());
            let functions: Vec<&str> = functions.collect();
            match functions[..] {
                [] => format!("no DSA function; processor {}", known(&p.cpu.name)),
                _ => format!("{} at {}", count(functions.len(), "DSA function"), functions.join(", ")),
            }
        }
        Stage::Kernel => format!("Linux {}", known(p.kernel.release.as_deref().unwrap_or_default())),
        Stage::Boot => {
            let telling =
                ["intel_iommu=", "iommu=", "idxd.", "pci=", "no5lvl", "module_blacklist=", "modprobe.blacklist="];
            let words = p.boot.iter().filter(|word| telling.iter().any(|start| word.starts_with(start)));
            let words: Vec<&str> = words.map(String::as_str).collect();
            if words.is_empty() { "nothing about IOMMU or idxd on the command line".into() } else { words.join(" ") }
        }
        Stage::Iommu => {
            let units = p.iommu.units.as_ref().map_or(0, Vec::len);
            let sva = if p.lacks_sva() { "off" } else { "on" };
            format!(
                "{}; shared virtual addressing is {}",
                count(units, "unit"),
                if p.devices().next().is_some() { sva } else { "not known" }
            )
        }
        Stage::Modules => {
            if p.module.loaded {
                "idxd is present".into()
            } else {
                "idxd is missing".into()
            }
        }
        Stage::Device => {
            let states = p.devices().map(|device| {
                let state = device.state.map_or("not known".into(), |state: State| state.to_string());
                format!("{} {state}", device.name)
            });
            states.collect::<Vec<_>>().join(", ")
        }
        Stage::Groups => {
            let used = p.devices().flat_map(|device| &device.groups);
            let used = used.filter(|group| !group.work_queues.is_empty() || !group.engines.is_empty()).count();
            format!("{used} in use")
        }
        Stage::Engines => {
            let all = || p.devices().flat_map(|device| &device.engines);
            let used = all().filter(|engine| engine.group.is_some()).count();
            format!("{used} of {} in a group", all().count())
        }
        Stage::Queues => {
            let names: Vec<&str> = p.usable().map(|(_, queue)| queue.name.as_str()).collect();
            match names[..] {
                [] => "none is enabled for programs".into(),
                _ => format!("{} enabled for programs: {}", names.len(), names.join(", ")),
            }
        }
        Stage::Permissions => {
            match p.nodes.values().filter(|node| node.stat.is_none() && node.open.is_none()).count() {
                _ if p.nodes.is_empty() => "no node to open".into(),
                open => format!("{open} of {} open", count(p.nodes.len(), "node")),
            }
        }
        Stage::Submission => {
            let asked = p.nodes.values().filter(|node| node.stat.is_none() && node.open.is_none());
            match (asked.clone().count(), asked.filter(|node| node.map.is_none()).count()) {
                (0, _) => "no portal to map".into(),
                (all, mapped) => format!("{mapped} of {} can be mapped", count(all, "portal")),
            }
        }
        Stage::Numa => count(p.numa.len(), "node"),
        Stage::Instructions => {
            let wanted = ["movdir64b", "enqcmd", "waitpkg"];
            let there: Vec<&str> = wanted.into_iter().filter(|flag| p.cpu.flags.contains(*flag)).collect();
            if there.is_empty() { "none of movdir64b, enqcmd, waitpkg".into() } else { there.join(", ") }
        }
        Stage::Memory => format!(
            "{}, {} free",
            count(usize::try_from(p.memory.reserved).unwrap_or(usize::MAX), "huge page"),
            p.memory.free
        ),
        Stage::Container => match &p.container.signs[..] {
            [] => "no sign of one".into(),
            signs => signs.join(", "),
        },
        Stage::Program => program::looked_at(p),
    }
}
