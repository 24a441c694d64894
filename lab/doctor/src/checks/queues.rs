//! Checks that configured queues are enabled, and that they support what programs expect.

use super::{status, steps};
use crate::causes::{self, Cause};
use crate::examined_machine::ExaminedMachine;
use crate::finding::{Evidence, Finding, Severity};
use telpher_hw::{Device, Queue, QueueType, State};
use telpher_portal::QueueMode;

/// The driver's default of a queue's largest transfer, in bytes. Source: linux-abi §5.
const DEFAULT_TRANSFER: u64 = 2 << 20;
/// The driver's default of a queue's longest batch, in descriptors. Source: linux-abi §5.
const DEFAULT_BATCH: u32 = 32;
/// Entries with which one queue reaches nearly full throughput. Source: Kuper et al., ASPLOS 2024, guideline G6.
const ENOUGH_ENTRIES: u32 = 32;

pub(super) fn examine(p: &ExaminedMachine<'_>) -> Vec<Finding> {
    p.dsa
        .queues()
        .flat_map(|(device, queue)| match (device.state, queue.state) {
            (Some(State::Halted) | None, _) | (_, None) => Vec::new(),
            (Some(State::Enabled), Some(State::Enabled)) if queue.queue_type == Some(QueueType::User) => {
                enabled(p, device, queue)
            }
            (_, Some(State::Disabled)) => disabled(p, device, queue).into_iter().collect(),
            _ => Vec::new(),
        })
        .collect()
}

/// No queue is for programs, and no earlier finding explains it: all queues are the kernel's, or the reason is unknown.
pub(super) fn none_for_programs(p: &ExaminedMachine<'_>, before: &[Finding]) -> Option<Finding> {
    if p.usable().next().is_some() || before.iter().any(|finding| finding.severity == Severity::Error) {
        return None;
    }
    let is_kernels = |queue: &Queue| queue.state == Some(State::Enabled) && queue.queue_type == Some(QueueType::Kernel);
    let kernels: Vec<_> = p.dsa.queues().filter(|(_, queue)| is_kernels(queue)).collect();
    let Some((device, queue)) = kernels.first() else {
        let odd = p.dsa.oddities.iter().take(3);
        return Some(
            Finding::of(&causes::NO_USABLE_QUEUE, "the machine")
                .all_seen(p.devices().map(|device| p.attribute(&device.name, "state")))
                .all_seen(odd.map(|odd| Evidence { source: odd.path.display().to_string(), says: odd.why.clone() }))
                .remedy("run the doctor as root, and outside containers that hide parts of /sys")
                .remedy("dmesg | grep idxd    # shows the driver's messages"),
        );
    };
    Some(
        Finding::of(&causes::ONLY_KERNEL_QUEUES, &device.name)
            .all_seen(kernels.iter().map(|(_, queue)| p.attribute(&queue.name, "type")))
            .all_remedies(one_more(p, device, queue)),
    )
}

/// Steps for a queue for programs besides the kernel's: an unused one, if the device has one and free entries.
fn one_more(p: &ExaminedMachine<'_>, device: &Device, kernels: &Queue) -> Vec<String> {
    let entries = steps::free_entries(device).min(ENOUGH_ENTRIES);
    let Some(queue) = device.queues.iter().find(|queue| is_untouched(queue)).filter(|_| entries > 0) else {
        let changes = [("type", "user".to_owned()), ("name", "lane".into()), ("driver_name", "user".into())];
        let mut steps = vec!["the kernel has every queue or entry of the device: its users lose this one".to_owned()];
        steps.extend(steps::anew(p, device, kernels, &changes));
        return steps;
    };
    let group = kernels.group.unwrap_or(0).to_string();
    let mut changes = vec![("group_id", group), ("size", entries.to_string())];
    changes.extend(steps::fresh(device));
    let mut steps = steps::rebuilt(device, [steps::config(p, device, queue, &changes)]);
    steps.push(steps::enable(device, queue));
    steps
}

/// Returns true for an unconfigured queue.
fn is_untouched(queue: &Queue) -> bool {
    queue.size.unwrap_or(0) == 0 && queue.group.is_none() && queue.queue_type == Some(QueueType::None)
}

/// `cmd_status` when a queue had no name. Source: linux-abi §6.
const NO_NAME: u32 = 0x8004_0000;

/// Returns true for a queue whose type the driver removed because it refused to enable the queue (K612 cdev.c,
/// `idxd_user_drv_probe`). A queue that never had a type, or was disabled, has no name either.
fn was_refused(device: &Device, queue: &Queue) -> bool {
    let status = device.cmd_status.unwrap_or(0);
    queue.queue_type == Some(QueueType::None) && (status != 0 && queue.label.is_some() || status == NO_NAME)
}

/// Returns a threshold for a shared queue of this size: three quarters; the rest is for the kernel.
fn threshold_of(size: u32) -> u32 {
    size - size / 4
}

/// A cause, the attribute that shows it, and the value to write.
type Gap = (&'static Cause, &'static str, String);

/// What is missing in the configuration of a queue that is not enabled.
fn gap(p: &ExaminedMachine<'_>, device: &Device, queue: &Queue) -> Option<Gap> {
    let shared = queue.mode == Some(QueueMode::Shared);
    let (size, refused) = (queue.size.unwrap_or(0), was_refused(device, queue));
    if queue.queue_type == Some(QueueType::None) && !refused {
        return Some((&causes::QUEUE_WITHOUT_TYPE, "type", "user".into()));
    }
    if queue.group.is_none() {
        return Some((&causes::QUEUE_WITHOUT_GROUP, "group_id", "0".into()));
    }
    if size == 0 {
        return Some((&causes::QUEUE_WITHOUT_SIZE, "size", ENOUGH_ENTRIES.to_string()));
    }
    if queue.label.is_none() {
        return Some((&causes::QUEUE_WITHOUT_NAME, "name", "lane".into()));
    }
    if queue.priority == Some(0) {
        return Some((&causes::PRIORITY_ZERO, "priority", "10".into()));
    }
    if shared && queue.threshold.unwrap_or(0) == 0 {
        return Some((&causes::THRESHOLD_MISSING, "threshold", threshold_of(size).to_string()));
    }
    // Kernels before 6.7 have no such attribute.
    let driver = p.attribute_text(&queue.name, "driver_name")?;
    let for_programs = queue.queue_type != Some(QueueType::Kernel);
    let proper = if for_programs { "user" } else { "dmaengine" };
    if driver.is_empty() {
        Some((&causes::DRIVER_NAME_MISSING, "driver_name", proper.into()))
    } else if for_programs != (driver == "user") && !refused {
        Some((&causes::DRIVER_NAME_MISMATCH, "driver_name", proper.into()))
    } else {
        None
    }
}

fn disabled(p: &ExaminedMachine<'_>, device: &Device, queue: &Queue) -> Option<Finding> {
    let (name, size) = (&queue.name, queue.size.unwrap_or(0));
    if is_untouched(queue) {
        return None;
    }
    let folder = format!("/sys/bus/dsa/devices/{name}");
    let enable = steps::enable(device, queue);
    let refused = was_refused(device, queue);
    let typed = refused.then(|| {
        format!(
            "echo user > {folder}/type; echo {} > {folder}/name    # refusing the queue, the driver forgot its type, \
             and a type takes the name with it",
            steps::quoted(queue.label.as_deref().unwrap_or("lane"))
        )
    });
    if let Some((cause, attribute, value)) = gap(p, device, queue) {
        let finding = Finding::of(cause, name).seen(p.attribute(name, attribute)).seen(p.attribute(name, "state"));
        let finding = match attribute {
            "type" if size > 0 => finding
                .because("A disabled queue keeps size and group; it forgets mode, type, name, priority and threshold."),
            "driver_name" => finding.seen(p.attribute(name, "type")),
            _ if refused => finding.seen(p.attribute(&device.name, "cmd_status")),
            _ => finding,
        };
        // Size and group are the device's configuration: they take effect when the device is enabled.
        if ["size", "group_id"].contains(&attribute) && device.state == Some(State::Enabled) {
            let mut changes = vec![(attribute, value)];
            if queue.queue_type == Some(QueueType::None) {
                changes.extend(steps::fresh(device));
            }
            return Some(
                finding
                    .all_remedies(steps::rebuilt(device, [steps::config(p, device, queue, &changes)]))
                    .remedy(enable),
            );
        }
        if attribute == "type" {
            return Some(finding.remedy(steps::config(p, device, queue, &steps::fresh(device))).remedy(enable));
        }
        // The steps for the type also set a missing name.
        let write = (attribute != "name" || !refused).then(|| format!("echo {value} > {folder}/{attribute}"));
        let steps = [write, typed].into_iter().flatten();
        return Some(finding.all_remedies(steps).remedy(enable));
    }
    // The queues of a disabled device, or of one without shared virtual addressing, have no findings: the device has
    // one.
    let for_programs = queue.queue_type != Some(QueueType::Kernel);
    let shared = queue.mode == Some(QueueMode::Shared);
    if device.state != Some(State::Enabled) || device.pasid_enabled == Some(false) && (for_programs || shared) {
        return None;
    }
    if shared && p.cpu.lacks("enqcmd") {
        return Some(
            Finding::of(&causes::SHARED_UNSUPPORTED, name)
                .seen(p.attribute(name, "mode"))
                .seen(p.attribute(&device.name, "cmd_status"))
                .because("/proc/cpuinfo does not list `enqcmd`.")
                .remedy(format!("echo dedicated > {folder}/mode"))
                .all_remedies(typed)
                .remedy(enable),
        );
    }
    Some(match status::meaning(device.cmd_status.unwrap_or(0)) {
        None => Finding::of(&causes::QUEUE_NOT_ENABLED, name)
            .seen(p.attribute(name, "state"))
            .seen(p.attribute(&device.name, "cmd_status"))
            .remedy(enable),
        Some(meaning) => Finding::of(&causes::QUEUE_REFUSED, name)
            .seen(p.attribute(name, "state"))
            .seen(p.attribute(&device.name, "cmd_status"))
            .all_seen(p.logged(&["idxd", name]))
            .because(format!("The device's last command ended with {meaning}."))
            .remedy("correct the reported attribute (`telpher list` shows the configuration), then:")
            .all_remedies(typed)
            .remedy(enable),
    })
}

/// Findings of a working queue for programs.
fn enabled(p: &ExaminedMachine<'_>, device: &Device, queue: &Queue) -> Vec<Finding> {
    let mut findings = Vec::new();
    let name = &queue.name;
    let found = |cause: &Cause, attribute: &str| Finding::of(cause, name).seen(p.attribute(name, attribute));
    let set = |attribute: &'static str, value: &str| steps::anew(p, device, queue, &[(attribute, value.to_owned())]);
    if p.nodes.get(name).is_some_and(|node| node.open == Some(libc::EBUSY)) {
        findings.push(
            found(&causes::QUEUE_BUSY, "clients")
                .all_seen(p.holders(name))
                .remedy(format!("fuser -v {}    # shows which program has it open", queue.node(device.kind).display()))
                .remedy("end that program, configure one more dedicated queue, or a shared one"),
        );
    }
    if queue.block_on_fault == Some(false) {
        findings.push(if device.gen_cap.is_some_and(|cap| !cap.block_on_fault()) {
            found(&causes::BLOCK_ON_FAULT_UNSUPPORTED, "block_on_fault")
                .seen(p.attribute(&device.name, "gen_cap"))
                .remedy(
                    "let programs clear the flag, touch their pages first, and finish partial copies, as telpher's \
                     mover does",
                )
        } else if queue.prs_disable == Some(true) {
            found(&causes::PAGE_REQUESTS_OFF, "prs_disable").seen(p.attribute(name, "block_on_fault")).all_remedies(
                steps::anew(p, device, queue, &[("prs_disable", String::new()), ("block_on_fault", "1".into())]),
            )
        } else {
            found(&causes::BLOCK_ON_FAULT_OFF, "block_on_fault")
                .because(
                    "An absent page ends a descriptor with status 0x03; the program touches the page and \
                     continues.",
                )
                .all_remedies(set("block_on_fault", "1"))
                .remedy(
                    "or leave it: for pages that are touched first, this is faster; telpher's mover works with \
                     both",
                )
        });
    }
    if queue.ats_disable == Some(true) {
        findings.push(
            found(&causes::ADDRESS_CACHE_OFF, "ats_disable")
                .because("The IOMMU translates every access again, and write faults are not reported.")
                .all_remedies(set("ats_disable", "")),
        );
    }
    if queue.max_transfer.is_some_and(|most| most < DEFAULT_TRANSFER)
        && device.max_transfer.is_none_or(|most| most >= DEFAULT_TRANSFER)
    {
        let most = device.max_transfer.unwrap_or(DEFAULT_TRANSFER);
        findings.push(
            found(&causes::TRANSFER_LIMIT_LOW, "max_transfer_size")
                .seen(p.attribute(&device.name, "max_transfer_size"))
                .because("accel-config's sample app_profile.conf sets 16384.")
                .all_remedies(set("max_transfer_size", &most.to_string())),
        );
    }
    if queue.max_batch.is_some_and(|most| most < DEFAULT_BATCH)
        && device.max_batch.is_none_or(|most| most >= DEFAULT_BATCH)
    {
        let most = device.max_batch.unwrap_or(DEFAULT_BATCH);
        findings.push(
            found(&causes::BATCH_LIMIT_LOW, "max_batch_size")
                .seen(p.attribute(&device.name, "max_batch_size"))
                .because(
                    "Programs that collect small copies in batches (Kuper et al., ASPLOS 2024, guideline G1) \
                     submit more often.",
                )
                .all_remedies(set("max_batch_size", &most.to_string())),
        );
    }
    let size = queue.size.unwrap_or(u32::MAX);
    if size < ENOUGH_ENTRIES {
        let finding = found(&causes::QUEUE_SMALL, "size").because(
            "(Kuper et al., ASPLOS 2024, guideline G6; it matters to programs with many descriptors in flight.)",
        );
        findings.push(if ENOUGH_ENTRIES - size <= steps::free_entries(device) {
            finding.all_remedies(steps::rebuilt(
                device,
                [format!("accel-config config-wq {}/{name} --wq-size={ENOUGH_ENTRIES}", device.name)],
            ))
        } else {
            finding
                .seen(p.attribute(&device.name, "max_work_queues_size"))
                .remedy("all entries of the device are assigned: configure fewer, larger queues")
        });
    } else if queue.mode == Some(QueueMode::Shared)
        && queue.threshold.is_some_and(|most| most < ENOUGH_ENTRIES.min(threshold_of(size)))
    {
        findings.push(
            found(&causes::THRESHOLD_LOW, "threshold")
                .seen(p.attribute(name, "size"))
                .because("(Kuper et al., ASPLOS 2024, guideline G6.)")
                .all_remedies(set("threshold", &threshold_of(size).to_string())),
        );
    }
    if let (Some(all), Some(allowed)) = (device.op_cap, queue.op_config)
        && !all.is_subset_of(&allowed)
    {
        let missing = telpher_abi::Opcode::ALL.iter().filter(|op| all.contains(**op) && !allowed.contains(**op));
        let missing: Vec<&str> = missing.map(|op| op.name()).collect();
        findings.push(
            found(&causes::OPERATIONS_RESTRICTED, "op_config")
                .seen(p.attribute(&device.name, "op_cap"))
                .because(format!(
                    "A descriptor with one of these operations ends with status 0x10: {}.",
                    missing.join(", ")
                ))
                .all_remedies(set("op_config", "")),
        );
    }
    findings
}
