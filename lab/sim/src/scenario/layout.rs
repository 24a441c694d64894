//! Device layouts: numbers of groups, queues and engines, from which configurations are made.

use crate::workload::QueueId;
use telpher_device::{Bandwidth, Capabilities, Config, EngineConfig, GroupConfig, WqConfig, WqMode};

/// Devices with identical groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Number of devices.
    pub devices: u16,
    /// Groups of each device.
    pub groups: u32,
    /// Queues of each group.
    pub wqs: u32,
    /// Engines of each group.
    pub engines: u32,
    /// Mode of the queues.
    pub mode: WqMode,
    /// Entries of each queue; by default all entries of the device, divided evenly.
    pub wq_size: Option<u32>,
    /// Limits of each group's reads and writes.
    pub bandwidth: [Bandwidth; 2],
}

impl Layout {
    /// One device, one group, one queue, one engine.
    #[must_use]
    pub const fn single(mode: WqMode) -> Self {
        Layout { devices: 1, groups: 1, wqs: 1, engines: 1, mode, wq_size: None, bandwidth: [Bandwidth::All; 2] }
    }

    /// The configurations, one per device. They are not checked here; the device checks them.
    #[must_use]
    pub fn configs(&self, capabilities: &Capabilities) -> Vec<Config> {
        let entries = u32::from(capabilities.wq_cap.total_entries());
        let size = self.wq_size.unwrap_or(entries / self.groups.saturating_mul(self.wqs).max(1));
        let config = |device: u16| {
            let wq =
                |queue: u32| WqConfig { dev: format!("wq{device}.{queue}"), ..WqConfig::new(queue, self.mode, size) };
            let engine = |engine: u32| EngineConfig { dev: format!("engine{device}.{engine}") };
            let group = |group: u32| GroupConfig {
                dev: format!("group{device}.{group}"),
                grouped_workqueues: (group * self.wqs..(group + 1) * self.wqs).map(wq).collect(),
                grouped_engines: (group * self.engines..(group + 1) * self.engines).map(engine).collect(),
                read_bandwidth: self.bandwidth[0],
                write_bandwidth: self.bandwidth[1],
                ..GroupConfig::default()
            };
            Config { dev: format!("dsa{device}"), ..Config::of_groups((0..self.groups).map(group).collect()) }
        };
        (0..self.devices).map(config).collect()
    }
}

/// All queues of some devices, ordered by their position within the device, so that consecutive queues are on different
/// devices.
#[must_use]
pub fn queue_ids(devices: &[Config]) -> Vec<QueueId> {
    let mut queues = Vec::new();
    for (device, config) in (0..).zip(devices) {
        let groups = config.groups.iter().flat_map(|group| &group.grouped_workqueues);
        let mut of: Vec<QueueId> = groups
            .filter_map(|wq| Some((wq.dev.rsplit('.').next()?.parse().ok()?, wq.mode == WqMode::Shared)))
            .map(|(wq, shared)| QueueId { device, wq, shared })
            .collect();
        of.sort_by_key(|queue| queue.wq);
        queues.extend(of.into_iter().enumerate());
    }
    queues.sort_by_key(|(turn, queue)| (*turn, queue.device));
    queues.into_iter().map(|(_, queue)| queue).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_device::Preset;

    #[test]
    fn entries_are_divided_and_queues_alternate_between_devices() {
        let layout = Layout { devices: 2, groups: 2, wqs: 2, engines: 2, ..Layout::single(WqMode::Shared) };
        let configs = layout.configs(&Preset::Spr.capabilities());
        let sizes = configs.iter().flat_map(|config| &config.groups).flat_map(|group| &group.grouped_workqueues);
        assert_eq!(sizes.map(|wq| wq.size).collect::<Vec<_>>(), [32; 8]);
        let order: Vec<_> = queue_ids(&configs).iter().map(|queue| (queue.device, queue.wq)).collect();
        assert_eq!(order[..4], [(0, 0), (1, 0), (0, 1), (1, 1)]);
    }
}
