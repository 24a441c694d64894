//! How devices are cut up: groups, queues and engines as numbers, from which configurations are made.

use crate::work::Lane;
use telpher_device::{Capabilities, Config, EngineConfig, GroupConfig, WqConfig, WqMode};

/// So many devices, each in so many groups that are alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Devices.
    pub devices: u16,
    /// Groups of each.
    pub groups: u32,
    /// Queues of each group.
    pub wqs: u32,
    /// Engines of each group.
    pub engines: u32,
    /// What kind the queues are of.
    pub mode: WqMode,
    /// Entries of each queue; all that the device has, shared out evenly, if not told.
    pub wq_size: Option<u32>,
}

impl Layout {
    /// One device, one group, one queue, one engine.
    #[must_use]
    pub const fn single(mode: WqMode) -> Self {
        Layout { devices: 1, groups: 1, wqs: 1, engines: 1, mode, wq_size: None }
    }

    /// The configurations, one a device. Whether a device takes them, the device says.
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
                ..GroupConfig::default()
            };
            Config { dev: format!("dsa{device}"), ..Config::of_groups((0..self.groups).map(group).collect()) }
        };
        (0..self.devices).map(config).collect()
    }
}

/// Every queue of some devices, the first of each device first, so that who takes them in turn meets all devices.
#[must_use]
pub fn lanes(devices: &[Config]) -> Vec<Lane> {
    let mut lanes = Vec::new();
    for (device, config) in (0..).zip(devices) {
        let groups = config.groups.iter().flat_map(|group| &group.grouped_workqueues);
        let mut of: Vec<Lane> = groups
            .filter_map(|wq| Some((wq.dev.rsplit('.').next()?.parse().ok()?, wq.mode == WqMode::Shared)))
            .map(|(wq, shared)| Lane { device, wq, shared })
            .collect();
        of.sort_by_key(|lane| lane.wq);
        lanes.extend(of.into_iter().enumerate());
    }
    lanes.sort_by_key(|(turn, lane)| (*turn, lane.device));
    lanes.into_iter().map(|(_, lane)| lane).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_device::Preset;

    #[test]
    fn entries_are_shared_out_and_lanes_meet_all_devices() {
        let layout = Layout { devices: 2, groups: 2, wqs: 2, engines: 2, ..Layout::single(WqMode::Shared) };
        let configs = layout.configs(&Preset::Spr.capabilities());
        let sizes = configs.iter().flat_map(|config| &config.groups).flat_map(|group| &group.grouped_workqueues);
        assert_eq!(sizes.map(|wq| wq.size).collect::<Vec<_>>(), [32; 8]);
        let order: Vec<_> = lanes(&configs).iter().map(|lane| (lane.device, lane.wq)).collect();
        assert_eq!(order[..4], [(0, 0), (1, 0), (0, 1), (1, 1)]);
    }
}
