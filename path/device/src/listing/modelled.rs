//! Lists a modelled device from its registers.

use super::{EngineListing, GroupListing, Listing, WqListing, bitmap};
use crate::config::Config;
use telpher_abi::Opcode;
use telpher_abi::registers::{DeviceState, GrpCfg, WqState};
use telpher_model::Device;

impl Listing {
    pub(crate) fn of(device: &Device, config: &Config) -> Self {
        let caps = device.capabilities();
        let groups = u32::from(caps.grp_cap.groups());
        let name_of = |queue: usize| {
            let wanted = format!("wq0.{queue}");
            let wqs = config.groups.iter().flat_map(|group| &group.grouped_workqueues);
            wqs.filter(|wq| wq.dev == wanted).find_map(|wq| wq.name.clone())
        };
        let state = match device.state() {
            DeviceState::Enabled => "enabled",
            DeviceState::Halted => "halted",
            DeviceState::Disabled | DeviceState::Draining => "disabled",
        };
        Listing {
            dev: config.dev.clone(),
            modelled: true,
            pci_address: None,
            numa_node: None,
            read_buffer_limit: Some(config.read_buffer_limit),
            event_log_size: None,
            max_groups: Some(groups),
            max_work_queues: Some(caps.wq_cap.queues().into()),
            max_engines: Some(caps.eng_cap.engines().into()),
            work_queue_size: Some(caps.wq_cap.total_entries().into()),
            max_read_buffers: Some(caps.grp_cap.read_buffers().into()),
            max_batch_size: Some(caps.max_batch()),
            max_transfer_size: Some(caps.max_transfer()),
            version: Some(format!("{:#x}", caps.version)),
            gen_cap: Some(format!("{:#x}", caps.gen_cap.0[0])),
            op_cap: Some(bitmap(&caps.op_cap.0)),
            operations: Opcode::ALL.iter().filter(|op| caps.op_cap.contains(**op)).map(|op| op.name()).collect(),
            configurable: Some(caps.gen_cap.configurable().into()),
            pasid_enabled: Some(device.pci().pasid.into()),
            state: Some(state.into()),
            clients: None,
            groups: (0..groups)
                .map(|group| group_listing(device, group, name_of))
                .filter(|group| !group.grouped_workqueues.is_empty() || !group.grouped_engines.is_empty())
                .collect(),
        }
    }
}

fn group_listing(device: &Device, group: u32, name_of: impl Fn(usize) -> Option<String>) -> GroupListing {
    let config: GrpCfg = device.grp_cfg(group as usize);
    let members = |set: u64| (0..64_usize).filter(move |bit| set >> bit & 1 == 1);
    GroupListing {
        dev: format!("group0.{group}"),
        traffic_class_a: Some(config.tc_a().into()),
        traffic_class_b: Some(config.tc_b().into()),
        read_buffers_reserved: Some(config.read_buffers_reserved().into()),
        use_read_buffer_limit: Some(config.use_global_limit().into()),
        read_buffers_allowed: Some(config.read_buffers_allowed().into()),
        grouped_workqueues: members(config.wqs())
            .map(|queue| {
                let wq = device.wq_cfg(queue);
                let enabled = device.wq_state(queue) == WqState::Enabled;
                WqListing {
                    dev: format!("wq0.{queue}"),
                    mode: Some(if wq.dedicated() { "dedicated" } else { "shared" }),
                    size: wq.size().into(),
                    group_id: group,
                    priority: Some(wq.priority().into()),
                    block_on_fault: Some(wq.block_on_fault().into()),
                    max_batch_size: Some(1 << wq.max_batch_shift()),
                    max_transfer_size: Some(1 << wq.max_transfer_shift()),
                    kind: Some("user".into()),
                    name: name_of(queue),
                    // Linux 6.7 and later enables no queue whose file names no driver.
                    driver_name: Some("user".into()),
                    threshold: wq.threshold().into(),
                    ats_disable: None,
                    prs_disable: None,
                    state: Some(if enabled { "enabled" } else { "disabled" }.into()),
                    occupancy: Some(device.wq_occupancy(queue)),
                    clients: None,
                    cdev_minor: None,
                    unusable: None,
                }
            })
            .collect(),
        grouped_engines: members(config.engines())
            .map(|engine| EngineListing { dev: format!("engine0.{engine}"), group_id: group })
            .collect(),
    }
}
