//! The written form of a configuration: the keys that accel-config needs, in the order in which it applies them.
//!
//! accel-config enables a queue only if the file names its group. Linux enables a shared queue only with a threshold,
//! and any queue only with a name. From 6.7 on it also needs the name of the driver. Source: ACCFG `accfg/config.c`;
//! K612 `cdev.c`, `device.c`.

use super::{Config, GroupConfig, WqConfig, WqMode};
use crate::listing::EngineListing;
use serde::Serialize;

/// A device.
#[derive(Serialize)]
pub(super) struct Device {
    dev: String,
    read_buffer_limit: u32,
    #[serde(skip_serializing_if = "is_zero")]
    event_log_size: u32,
    groups: Vec<Group>,
}

#[derive(Serialize)]
struct Group {
    dev: String,
    read_buffers_reserved: u32,
    use_read_buffer_limit: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    read_buffers_allowed: Option<u32>,
    grouped_workqueues: Vec<Queue>,
    grouped_engines: Vec<EngineListing>,
}

#[derive(Serialize)]
struct Queue {
    dev: String,
    mode: WqMode,
    size: u32,
    group_id: u32,
    priority: u32,
    block_on_fault: u32,
    max_batch_size: u32,
    max_transfer_size: u64,
    #[serde(rename = "type")]
    kind: String,
    /// After the type, because setting the type clears it.
    name: String,
    driver_name: &'static str,
    /// After mode and size, because it is checked against them; accel-config sets none for a dedicated queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    threshold: Option<u32>,
    /// Only if set: not every device and kernel has the attribute.
    #[serde(skip_serializing_if = "is_zero")]
    ats_disable: u32,
    #[serde(skip_serializing_if = "is_zero")]
    prs_disable: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl From<Config> for Device {
    fn from(config: Config) -> Self {
        Device {
            dev: config.dev,
            read_buffer_limit: config.read_buffer_limit,
            event_log_size: config.event_log_size,
            groups: config.groups.into_iter().map(Group::from).collect(),
        }
    }
}

impl From<GroupConfig> for Group {
    fn from(group: GroupConfig) -> Self {
        // `group0.3`; other names are refused when the file is loaded.
        let group_id = group.dev.rsplit_once('.').and_then(|(_, number)| number.parse().ok()).unwrap_or(0);
        let engine = |dev| EngineListing { dev, group_id };
        Group {
            grouped_workqueues: group.grouped_workqueues.into_iter().map(|queue| Queue::of(queue, group_id)).collect(),
            grouped_engines: group.grouped_engines.into_iter().map(|member| engine(member.dev)).collect(),
            dev: group.dev,
            read_buffers_reserved: group.read_buffers_reserved,
            use_read_buffer_limit: group.use_read_buffer_limit,
            read_buffers_allowed: group.read_buffers_allowed,
        }
    }
}

impl Queue {
    fn of(queue: WqConfig, group_id: u32) -> Self {
        let kind = queue.kind.unwrap_or_else(|| "user".into());
        Queue {
            threshold: (queue.mode == WqMode::Shared).then(|| queue.threshold.unwrap_or(queue.size)),
            name: queue.name.unwrap_or_else(|| queue.dev.clone()),
            driver_name: if kind == "kernel" { "dmaengine" } else { "user" },
            kind,
            dev: queue.dev,
            mode: queue.mode,
            size: queue.size,
            group_id,
            priority: queue.priority,
            block_on_fault: queue.block_on_fault,
            max_batch_size: queue.max_batch_size,
            max_transfer_size: queue.max_transfer_size,
            ats_disable: queue.ats_disable,
            prs_disable: queue.prs_disable,
        }
    }
}
