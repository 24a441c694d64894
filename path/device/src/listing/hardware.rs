//! Lists this machine's devices from their driver's files.

use super::{EngineListing, GroupListing, Listing, WqListing, bitmap};
use telpher_abi::Opcode;
use telpher_hw::{Device, DeviceKind, Files, Group, Queue};
use telpher_portal::QueueMode;

/// The driver's default number of event log entries. Source: K612 `idxd.h`, `IDXD_EVL_SIZE_MIN`.
const EVENT_LOG_ENTRIES: u32 = 64;

/// Lists the DSA devices of a machine in the order of their numbers. Checks for each queue whether this process could
/// use it, without opening it.
#[must_use]
pub fn hardware(files: &dyn Files) -> Vec<Listing> {
    let machine = telpher_hw::discover(files);
    machine.devices.iter().filter(|device| device.kind == DeviceKind::Dsa).map(listing).collect()
}

fn listing(device: &Device) -> Listing {
    let groups = device.groups.iter().map(|group| group_listing(device, group));
    let operations = |known: &Opcode| device.op_cap.is_some_and(|cap| cap.contains(*known));
    Listing {
        dev: device.name.clone(),
        modelled: false,
        pci_address: device.pci_address.clone(),
        numa_node: device.numa_node,
        read_buffer_limit: device.read_buffer_limit,
        event_log_size: device.event_log_size.filter(|entries| *entries != EVENT_LOG_ENTRIES),
        max_groups: device.max_groups,
        max_work_queues: device.max_work_queues,
        max_engines: device.max_engines,
        work_queue_size: device.max_work_queues_size,
        max_read_buffers: device.max_read_buffers,
        max_batch_size: device.max_batch,
        max_transfer_size: device.max_transfer,
        version: device.version.map(|version| format!("{version:#x}")),
        gen_cap: device.gen_cap.map(|cap| format!("{:#x}", cap.0[0])),
        op_cap: device.op_cap.map(|cap| bitmap(&cap.0)),
        operations: Opcode::ALL.iter().filter(|known| operations(known)).map(|op| op.name()).collect(),
        configurable: device.configurable.map(u32::from),
        pasid_enabled: device.pasid_enabled.map(u32::from),
        state: device.state.map(|state| state.to_string()),
        clients: device.clients,
        groups: groups
            .filter(|group| !group.grouped_workqueues.is_empty() || !group.grouped_engines.is_empty())
            .collect(),
    }
}

fn group_listing(device: &Device, group: &Group) -> GroupListing {
    let of_group = |member: Option<u32>| member == Some(group.number);
    GroupListing {
        dev: group.name.clone(),
        traffic_class_a: group.traffic_class_a,
        traffic_class_b: group.traffic_class_b,
        read_buffers_reserved: group.read_buffers_reserved,
        use_read_buffer_limit: group.use_read_buffer_limit.map(u32::from),
        read_buffers_allowed: group.read_buffers_allowed,
        grouped_workqueues: device
            .queues
            .iter()
            .filter(|queue| of_group(queue.group))
            .map(|queue| wq_listing(device, queue, group.number))
            .collect(),
        grouped_engines: device
            .engines
            .iter()
            .filter(|engine| of_group(engine.group))
            .map(|engine| EngineListing { dev: engine.name.clone(), group_id: group.number })
            .collect(),
    }
}

fn wq_listing(device: &Device, queue: &Queue, group: u32) -> WqListing {
    WqListing {
        dev: queue.name.clone(),
        mode: queue.mode.map(|mode| match mode {
            QueueMode::Dedicated => "dedicated",
            QueueMode::Shared => "shared",
        }),
        size: queue.size.unwrap_or(0),
        group_id: group,
        priority: queue.priority,
        block_on_fault: queue.block_on_fault.map(u32::from),
        max_batch_size: queue.max_batch,
        max_transfer_size: queue.max_transfer,
        kind: queue.queue_type.map(|kind| kind.to_string()),
        name: queue.label.clone(),
        driver_name: queue.driver_name.clone(),
        threshold: queue.threshold.unwrap_or(0),
        ats_disable: queue.ats_disable.map(u32::from),
        prs_disable: queue.prs_disable.map(u32::from),
        state: queue.state.map(|state| state.to_string()),
        occupancy: queue.occupancy.map(u64::from),
        clients: queue.clients,
        cdev_minor: queue.cdev_minor,
        unusable: telpher_hw::look(device, queue).err().map(|error| telpher_os::chain(&error)),
    }
}
