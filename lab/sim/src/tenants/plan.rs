//! Plans: where tenants' queues are, and their limits; and the configuration that says so.

use super::tenant::Tenants;
use crate::advise::nearest_devices;
use crate::machine::Machine;
use telpher_device::{Capabilities, Config, EngineConfig, GroupConfig, WqConfig, WqMode};

/// The Linux driver's defaults of a queue (K612 `idxd.h`), and the priority of accel-config's packaged profiles.
const TRANSFER: u64 = 2 << 20;
const BATCH: u32 = 32;
const PRIORITY: u32 = 10;

/// A group of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct GroupPlan {
    /// Its engines; `None` for an equal share of those that other groups leave.
    pub(super) engines: Option<u32>,
    /// Read buffers that only this group may use.
    pub(super) reserved: u32,
    /// The most read buffers that it uses; `None` for all that no other group has reserved.
    pub(super) allowed: Option<u32>,
}

/// The queue of a tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QueuePlan {
    pub(super) priority: u32,
    pub(super) most_transfer: u64,
    pub(super) most_batch: u32,
}

/// How tenants share devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SharingPlan {
    /// By tenant: its group. Groups are numbered in the order of their first tenants.
    pub(super) group_of: Vec<usize>,
    /// Each group is on a device of its own; otherwise all are on one device.
    pub(super) on_devices: bool,
    /// By group.
    pub(super) groups: Vec<GroupPlan>,
    /// By tenant.
    pub(super) queues: Vec<QueuePlan>,
}

impl SharingPlan {
    /// All tenants in one group of one device, with the driver's defaults.
    pub(super) fn plain(tenants: &Tenants) -> SharingPlan {
        SharingPlan::placed(tenants, vec![0; tenants.tenants.len()], false)
    }

    /// Tenants in these groups, with the driver's defaults.
    pub(super) fn placed(tenants: &Tenants, group_of: Vec<usize>, on_devices: bool) -> SharingPlan {
        let groups = group_of.iter().max().map_or(0, |last| last + 1);
        let queue = |tenant: &super::Tenant| {
            // A latency is that of whole operations.
            let whole = if tenant.bound.p99.is_some() { u64::from(tenant.work.size).next_power_of_two() } else { 0 };
            QueuePlan { priority: PRIORITY, most_transfer: TRANSFER.max(whole), most_batch: BATCH }
        };
        SharingPlan {
            on_devices,
            groups: vec![GroupPlan::default(); groups],
            queues: tenants.tenants.iter().map(queue).collect(),
            group_of,
        }
    }

    /// The tenants of a group.
    pub(super) fn members(&self, group: usize) -> impl Iterator<Item = usize> {
        self.group_of.iter().enumerate().filter(move |(_, of)| **of == group).map(|(tenant, _)| tenant)
    }

    /// Engines of a group. Groups without a number of their own share what the other groups of the device leave.
    pub(super) fn engines(&self, group: usize, capabilities: &Capabilities) -> u32 {
        if let Some(own) = self.groups[group].engines {
            return own;
        }
        let all = u32::from(capabilities.eng_cap.engines());
        if self.on_devices {
            return all;
        }
        let taken: u32 = self.groups.iter().filter_map(|group| group.engines).sum();
        let sharing = (0..self.groups.len()).filter(|other| self.groups[*other].engines.is_none());
        // What cannot be divided goes to the last groups.
        let (mut turn, mut count) = (0, 0);
        for other in sharing {
            turn += u32::from(other < group);
            count += 1;
        }
        (all.saturating_sub(taken) + turn) / count
    }

    /// The configurations of the devices up to the last in use; `None` if no device can be configured so.
    pub(super) fn configs(
        &self,
        machine: &Machine,
        capabilities: &Capabilities,
        tenants: &Tenants,
    ) -> Option<Vec<Config>> {
        let near = nearest_devices(machine, tenants.tenants.first()?.work.dst);
        let device_of = |group: usize| near.get(if self.on_devices { group } else { 0 }).copied();
        let used: Vec<usize> = (0..self.groups.len()).map(device_of).collect::<Option<_>>()?;
        let config = |device: usize| -> Option<Config> {
            let here: Vec<usize> = (0..self.groups.len()).filter(|group| used[*group] == device).collect();
            let groups = self.groups_on(device, &here, capabilities, tenants)?;
            Some(Config { dev: format!("dsa{device}"), ..Config::of_groups(groups) })
        };
        (0..=used.iter().copied().max()?).map(config).collect()
    }

    fn groups_on(
        &self,
        device: usize,
        here: &[usize],
        capabilities: &Capabilities,
        tenants: &Tenants,
    ) -> Option<Vec<GroupConfig>> {
        let queues: u32 =
            here.iter().map(|group| u32::try_from(self.members(*group).count()).unwrap_or(u32::MAX)).sum();
        let engines: u32 = here.iter().map(|group| self.engines(*group, capabilities)).sum();
        let is_possible = queues <= u32::from(capabilities.wq_cap.queues())
            && engines <= u32::from(capabilities.eng_cap.engines())
            && here.iter().all(|group| self.engines(*group, capabilities) > 0);
        if !is_possible {
            return None;
        }
        let size = u32::from(capabilities.wq_cap.total_entries()) / queues.max(1);
        let reserved: u32 = here.iter().map(|group| self.groups[*group].reserved).sum();
        let free = u32::from(capabilities.grp_cap.read_buffers()).checked_sub(reserved)?;
        let (mut wq, mut engine) = (0, 0);
        let mut configs = Vec::new();
        for (number, group) in here.iter().enumerate() {
            let plan = self.groups[*group];
            let mut grouped_workqueues = Vec::new();
            for tenant in self.members(*group) {
                let (settings, work) = (self.queues[tenant], &tenants.tenants[tenant].work);
                let mode = if work.threads > 1 { WqMode::Shared } else { WqMode::Dedicated };
                grouped_workqueues.push(WqConfig {
                    dev: format!("wq{device}.{wq}"),
                    name: Some(work.name.clone()),
                    priority: settings.priority,
                    max_transfer_size: settings.most_transfer,
                    max_batch_size: settings.most_batch,
                    ..WqConfig::new(wq, mode, size)
                });
                wq += 1;
            }
            let mut grouped_engines = Vec::new();
            for _ in 0..self.engines(*group, capabilities) {
                grouped_engines.push(EngineConfig { dev: format!("engine{device}.{engine}") });
                engine += 1;
            }
            let most = plan.reserved + free;
            configs.push(GroupConfig {
                dev: format!("group{device}.{number}"),
                read_buffers_reserved: plan.reserved,
                read_buffers_allowed: Some(plan.allowed.map_or(most, |allowed| allowed.min(most))),
                grouped_workqueues,
                grouped_engines,
                ..GroupConfig::default()
            });
        }
        Some(configs)
    }
}
