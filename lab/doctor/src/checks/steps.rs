//! Remedies as complete commands, which restore all configuration that they must remove.

use crate::examined_machine::ExaminedMachine;
use telpher_hw::{Device, Queue, State};
use telpher_portal::QueueMode;

/// A change of an attribute: its name in sysfs and the new value.
pub(super) type Change<'a> = (&'a str, String);

/// Attributes that a queue forgets when it is disabled, by the driver's and accel-config's names. Source: linux-abi §6.
const FORGOTTEN: [&str; 12] = [
    "mode",
    "priority",
    "block_on_fault",
    "max_batch_size",
    "max_transfer_size",
    "ats_disable",
    "prs_disable",
    "op_config",
    "type",
    "name",
    "driver_name",
    "threshold",
];

/// Maximum queues of a device that are listed individually: WQCAP counts them in eight bits. Source: SPEC, WQCAP bits
/// 23:16.
pub(super) const MOST: usize = 256;

/// Quotes a text as one shell word: it may come from a bundle of an untrusted author.
pub(super) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.,:/=+".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Returns the command that sets a queue's present attributes with the changes. A change to an empty value omits the
/// attribute.
pub(super) fn config(p: &ExaminedMachine<'_>, device: &Device, queue: &Queue, changes: &[Change<'_>]) -> String {
    let changed = |attribute: &str| changes.iter().find(|(name, _)| *name == attribute).map(|(_, value)| value.clone());
    let now = |attribute: &str| p.attribute_text(&queue.name, attribute);
    let shared = changed("mode").map_or(queue.mode == Some(QueueMode::Shared), |mode| mode == "shared");
    let restricted = queue.op_config.is_some() && queue.op_config != device.op_cap;
    let others = changes.iter().map(|(name, _)| *name).filter(|name| !FORGOTTEN.contains(name));
    let mut command = format!("accel-config config-wq {}/{}", device.name, queue.name);
    for attribute in others.chain(FORGOTTEN) {
        // Kernels without the attribute, or whose devices lack the feature, refuse it.
        let Some(value) = now(attribute).map(|value| changed(attribute).unwrap_or(value)) else { continue };
        let is_default = match attribute {
            "threshold" => !shared,
            "op_config" => !restricted,
            "block_on_fault" | "ats_disable" | "prs_disable" => value == "0",
            _ => false,
        };
        if !value.is_empty() && !is_default {
            let option = if attribute == "size" { "wq-size".into() } else { attribute.replace('_', "-") };
            command.push_str(&format!(" --{option}={}", quoted(&value)));
        }
    }
    command
}

/// Returns the attributes for an unconfigured queue for programs.
pub(super) fn fresh(device: &Device) -> Vec<Change<'static>> {
    let blocks = device.gen_cap.is_some_and(|cap| cap.block_on_fault());
    let most = |limit: Option<u64>| limit.map_or(String::new(), |limit| limit.to_string());
    vec![
        ("mode", "dedicated".into()),
        ("priority", "10".into()),
        ("block_on_fault", u8::from(blocks).to_string()),
        ("max_batch_size", most(device.max_batch.map(u64::from))),
        ("max_transfer_size", most(device.max_transfer)),
        ("type", "user".into()),
        ("name", "lane".into()),
        ("driver_name", "user".into()),
    ]
}

/// Returns steps that disable a queue, configure it as before with the changes, and enable it.
pub(super) fn anew(p: &ExaminedMachine<'_>, device: &Device, queue: &Queue, changes: &[Change<'_>]) -> Vec<String> {
    vec![
        format!("accel-config disable-wq {}/{}    # refused while programs have it open", device.name, queue.name),
        config(p, device, queue, changes),
        enable(device, queue),
    ]
}

pub(super) fn enable(device: &Device, queue: &Queue) -> String {
    format!("accel-config enable-wq {}/{}", device.name, queue.name)
}

/// Returns steps that disable a device (which makes it forget everything), restore its configuration with the changes,
/// and enable it with its queues.
pub(super) fn rebuilt(device: &Device, changes: impl IntoIterator<Item = String>) -> Vec<String> {
    let name = &device.name;
    let mut steps = vec![
        "accel-config save-config -s dsa.conf".to_owned(),
        format!("accel-config disable-device {name}    # and all its queues; refused while programs have one open"),
        "accel-config load-config -c dsa.conf".to_owned(),
    ];
    steps.extend(changes);
    steps.push(format!("accel-config enable-device {name}"));
    steps.extend(
        device
            .queues
            .iter()
            .filter(|queue| queue.state == Some(State::Enabled))
            .take(MOST)
            .map(|queue| enable(device, queue)),
    );
    steps
}

/// Returns the entries of the device that no queue has.
pub(super) fn free_entries(device: &Device) -> u32 {
    let taken = device.queues.iter().filter_map(|queue| queue.size).fold(0, u32::saturating_add);
    device.max_work_queues_size.unwrap_or(0).saturating_sub(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_bundle_stay_one_shell_word() {
        assert_eq!(quoted("dpdk_wq0.0"), "dpdk_wq0.0");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("x; reboot"), "'x; reboot'");
        assert_eq!(quoted("'$(reboot)'"), r"''\''$(reboot)'\'''");
    }
}
