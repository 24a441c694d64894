//! What there is, in the shape of `accel-config list`.

use crate::config::Config;
use serde::Serialize;
use telpher_abi::Opcode;
use telpher_abi::registers::{DeviceState, GrpCfg, WqState};
use telpher_model::Device;

/// One device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Listing {
    /// `dsa0`.
    pub dev: String,
    /// Read buffer limit; 0 for none.
    pub read_buffer_limit: u32,
    /// Groups it can have.
    pub max_groups: u32,
    /// Queues it can have.
    pub max_work_queues: u32,
    /// Engines it has.
    pub max_engines: u32,
    /// Entries of all queues together.
    pub work_queue_size: u32,
    /// Read buffers.
    pub max_read_buffers: u32,
    /// Largest batch, in descriptors.
    pub max_batch_size: u32,
    /// Largest transfer, in bytes.
    pub max_transfer_size: u64,
    /// Version, as hexadecimal text.
    pub version: String,
    /// GENCAP, as hexadecimal text.
    pub gen_cap: String,
    /// OPCAP, most significant word first, as sysfs prints it.
    pub op_cap: String,
    /// Names of the operations in OPCAP.
    pub operations: Vec<&'static str>,
    /// 1 if the tables can be configured.
    pub configurable: u32,
    /// 1 if PASIDs are used.
    pub pasid_enabled: u32,
    /// `enabled`, `disabled`, `halted`.
    pub state: &'static str,
    /// Groups with members.
    pub groups: Vec<GroupListing>,
}

/// One group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct GroupListing {
    /// `group0.0`.
    pub dev: String,
    /// Traffic class A.
    pub traffic_class_a: u8,
    /// Traffic class B.
    pub traffic_class_b: u8,
    /// Read buffers reserved.
    pub read_buffers_reserved: u8,
    /// Read buffers allowed.
    pub read_buffers_allowed: u8,
    /// Queues.
    pub grouped_workqueues: Vec<WqListing>,
    /// Engines.
    pub grouped_engines: Vec<EngineListing>,
}

/// One queue.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct WqListing {
    /// `wq0.0`.
    pub dev: String,
    /// `dedicated` or `shared`.
    pub mode: &'static str,
    /// Entries.
    pub size: u16,
    /// Group.
    pub group_id: u32,
    /// Priority.
    pub priority: u8,
    /// 1 if descriptors may wait for pages.
    pub block_on_fault: u8,
    /// Largest batch, in descriptors.
    pub max_batch_size: u32,
    /// Largest transfer, in bytes.
    pub max_transfer_size: u64,
    /// `user`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Entries the limited portal may fill; 0 for a dedicated queue.
    pub threshold: u16,
    /// `enabled` or `disabled`.
    pub state: &'static str,
    /// Waiting descriptors.
    pub occupancy: u64,
}

/// One engine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct EngineListing {
    /// `engine0.0`.
    pub dev: String,
    /// Group.
    pub group_id: u32,
}

impl Listing {
    pub(crate) fn of(device: &Device, config: &Config) -> Self {
        let caps = device.capabilities();
        let groups = u32::from(caps.grp_cap.groups());
        let name_of = |queue: usize| {
            let wanted = format!("wq0.{queue}");
            let wqs = config.groups.iter().flat_map(|group| &group.grouped_workqueues);
            wqs.filter(|wq| wq.dev == wanted).find_map(|wq| wq.name.clone()).unwrap_or_default()
        };
        Listing {
            dev: config.dev.clone(),
            read_buffer_limit: config.read_buffer_limit,
            max_groups: groups,
            max_work_queues: caps.wq_cap.queues().into(),
            max_engines: caps.eng_cap.engines().into(),
            work_queue_size: caps.wq_cap.total_entries().into(),
            max_read_buffers: caps.grp_cap.read_buffers().into(),
            max_batch_size: caps.max_batch(),
            max_transfer_size: caps.max_transfer(),
            version: format!("{:#x}", caps.version),
            gen_cap: format!("{:#x}", caps.gen_cap.0[0]),
            op_cap: bitmap(&caps.op_cap.0),
            operations: Opcode::ALL.iter().filter(|op| caps.op_cap.contains(**op)).map(|op| op.name()).collect(),
            configurable: caps.gen_cap.configurable().into(),
            pasid_enabled: device.pci().pasid.into(),
            state: match device.state() {
                DeviceState::Enabled => "enabled",
                DeviceState::Halted => "halted",
                DeviceState::Disabled | DeviceState::Draining => "disabled",
            },
            groups: (0..groups)
                .map(|group| group_listing(device, group, name_of))
                .filter(|group| !group.grouped_workqueues.is_empty() || !group.grouped_engines.is_empty())
                .collect(),
        }
    }
}

/// 256 bits as eight hexadecimal words, most significant first. Source: K612 `Documentation/ABI/stable`, `op_cap`.
fn bitmap(words: &[u64; 4]) -> String {
    let halves = words.iter().rev().flat_map(|word| [word >> 32, word & 0xffff_ffff]);
    halves.map(|half| format!("{half:08x}")).collect::<Vec<_>>().join(",")
}

fn group_listing(device: &Device, group: u32, name_of: impl Fn(usize) -> String) -> GroupListing {
    let config: GrpCfg = device.grp_cfg(group as usize);
    let members = |set: u64| (0..64_usize).filter(move |bit| set >> bit & 1 == 1);
    GroupListing {
        dev: format!("group0.{group}"),
        traffic_class_a: config.tc_a(),
        traffic_class_b: config.tc_b(),
        read_buffers_reserved: config.read_buffers_reserved(),
        read_buffers_allowed: config.read_buffers_allowed(),
        grouped_workqueues: members(config.wqs())
            .map(|queue| {
                let wq = device.wq_cfg(queue);
                WqListing {
                    dev: format!("wq0.{queue}"),
                    mode: if wq.dedicated() { "dedicated" } else { "shared" },
                    size: wq.size(),
                    group_id: group,
                    priority: wq.priority(),
                    block_on_fault: wq.block_on_fault().into(),
                    max_batch_size: 1 << wq.max_batch_shift(),
                    max_transfer_size: 1 << wq.max_transfer_shift(),
                    kind: "user",
                    name: name_of(queue),
                    threshold: wq.threshold(),
                    state: if device.wq_state(queue) == WqState::Enabled { "enabled" } else { "disabled" },
                    occupancy: device.wq_occupancy(queue),
                }
            })
            .collect(),
        grouped_engines: members(config.engines())
            .map(|engine| EngineListing { dev: format!("engine0.{engine}"), group_id: group })
            .collect(),
    }
}
