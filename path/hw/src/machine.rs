//! What the driver says there is: devices with their groups, engines and queues, as values.
//!
//! Kernels from 5.15 on differ in which attributes they have; what a kernel does not tell is `None`.

use std::fmt;
use std::path::PathBuf;
use telpher_abi::registers::{GenCap, OpCap};
use telpher_portal::QueueMode;

/// All devices of a machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Machine {
    /// In the order of their numbers.
    pub devices: Vec<Device>,
    /// Drivers of the bus, by name (`idxd`, `user`, `dmaengine`, …).
    pub drivers: Vec<String>,
    /// Attributes that are there and could not be read or understood.
    pub oddities: Vec<Oddity>,
}

/// An attribute that says nothing, though it is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Oddity {
    /// Which.
    pub path: PathBuf,
    /// What the system said, or what was read.
    pub why: String,
}

/// What kind of device it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum DeviceKind {
    /// Data Streaming Accelerator, `dsaM`.
    Dsa,
    /// In-memory Analytics Accelerator, `iaxM`: another set of operations, which nothing here speaks.
    Iax,
}

/// State of a device or queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum State {
    /// Takes nothing; can be configured.
    Disabled,
    /// Works.
    Enabled,
    /// Stopped by an error until somebody resets it. Devices only.
    Halted,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Disabled => "disabled",
            State::Enabled => "enabled",
            State::Halted => "halted",
        })
    }
}

/// One device. Source: ABI, `dsa<m>/…`, for each attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// `dsa0`.
    pub name: String,
    /// Its number, which its queues' names carry.
    pub number: u32,
    /// DSA or IAX.
    pub kind: DeviceKind,
    /// Address of its PCI function, such as `0000:6a:01.0`.
    pub pci_address: Option<String>,
    /// Driver it is bound to; `idxd` on a device that is enabled.
    pub driver: Option<String>,
    /// Version register: 0x100 for 1.x.
    pub version: Option<u32>,
    /// Whether it works.
    pub state: Option<State>,
    /// Node it is attached to.
    pub numa_node: Option<u32>,
    /// General capabilities.
    pub gen_cap: Option<GenCap>,
    /// Operations, as the driver shows them: without Batch where programs may not submit one.
    pub op_cap: Option<OpCap>,
    /// Groups, engines and queues can be configured.
    pub configurable: Option<bool>,
    /// Programs' address spaces can be used.
    pub pasid_enabled: Option<bool>,
    /// Groups it can have.
    pub max_groups: Option<u32>,
    /// Queues it can have.
    pub max_work_queues: Option<u32>,
    /// Entries of all queues together.
    pub max_work_queues_size: Option<u32>,
    /// Engines it has.
    pub max_engines: Option<u32>,
    /// Largest batch, in descriptors.
    pub max_batch: Option<u32>,
    /// Largest transfer, in bytes.
    pub max_transfer: Option<u64>,
    /// Read buffers.
    pub max_read_buffers: Option<u32>,
    /// Read buffers that groups with the limit share; 0 for no limit.
    pub read_buffer_limit: Option<u32>,
    /// Entries of the event log.
    pub event_log_size: Option<u32>,
    /// Open files and kernel users of all its queues.
    pub clients: Option<u32>,
    /// How the last command ended: 0, the device's code, or the driver's with bit 31.
    pub cmd_status: Option<u32>,
    /// SWERROR as of the last error interrupt, low word first; zero if there was none.
    pub errors: Option<[u64; 4]>,
    /// Major number of its queues' nodes.
    pub cdev_major: Option<u32>,
    /// In the order of their numbers.
    pub groups: Vec<Group>,
    /// In the order of their numbers.
    pub engines: Vec<Engine>,
    /// In the order of their numbers.
    pub queues: Vec<Queue>,
}

/// One group. Source: ABI, `group<m>.<n>/…`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// `group0.1`.
    pub name: String,
    /// Its number in the device.
    pub number: u32,
    /// Names of its queues.
    pub work_queues: Vec<String>,
    /// Names of its engines.
    pub engines: Vec<String>,
    /// It shares the device's read buffer limit.
    pub use_read_buffer_limit: Option<bool>,
    /// Read buffers for it alone.
    pub read_buffers_reserved: Option<u32>,
    /// Most read buffers it may have.
    pub read_buffers_allowed: Option<u32>,
    /// Traffic class A.
    pub traffic_class_a: Option<u32>,
    /// Traffic class B.
    pub traffic_class_b: Option<u32>,
}

/// One engine. Source: ABI, `engine<m>.<n>/…`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Engine {
    /// `engine0.1`.
    pub name: String,
    /// Its number in the device.
    pub number: u32,
    /// Its group.
    pub group: Option<u32>,
}

/// Who a queue is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum QueueType {
    /// Nobody yet.
    None,
    /// The kernel.
    Kernel,
    /// Programs.
    User,
}

impl fmt::Display for QueueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QueueType::None => "none",
            QueueType::Kernel => "kernel",
            QueueType::User => "user",
        })
    }
}

/// One work queue. Source: ABI, `wq<m>.<n>/…`, for each attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Queue {
    /// `wq0.1`.
    pub name: String,
    /// Its number in the device.
    pub number: u32,
    /// Whether it takes descriptors.
    pub state: Option<State>,
    /// Dedicated or shared.
    pub mode: Option<QueueMode>,
    /// Entries.
    pub size: Option<u32>,
    /// Entries that programs may fill of a shared queue.
    pub threshold: Option<u32>,
    /// Its group.
    pub group: Option<u32>,
    /// Priority within the group.
    pub priority: Option<u32>,
    /// Accepts the Block On Fault flag.
    pub block_on_fault: Option<bool>,
    /// Who it is for.
    pub queue_type: Option<QueueType>,
    /// The name its administrator gave it.
    pub label: Option<String>,
    /// Driver it is meant for; kernels since 6.7.
    pub driver_name: Option<String>,
    /// Driver it is bound to.
    pub driver: Option<String>,
    /// Open files and kernel users.
    pub clients: Option<u32>,
    /// Minor number of its node, while it has one.
    pub cdev_minor: Option<u32>,
    /// Largest transfer, in bytes.
    pub max_transfer: Option<u64>,
    /// Largest batch, in descriptors.
    pub max_batch: Option<u32>,
    /// Translations are not cached in the device.
    pub ats_disable: Option<bool>,
    /// Page requests are off.
    pub prs_disable: Option<bool>,
    /// Descriptors waiting. Out of date as soon as read.
    pub occupancy: Option<u32>,
    /// How often the driver tries again for a write() to a full shared queue.
    pub enqcmds_retries: Option<u32>,
    /// Operations it accepts, where they can be set for each queue.
    pub op_config: Option<OpCap>,
}

impl Queue {
    /// Where its node is while it is bound to the driver for programs.
    #[must_use]
    pub fn node(&self, kind: DeviceKind) -> PathBuf {
        let folder = match kind {
            DeviceKind::Dsa => "/dev/dsa",
            DeviceKind::Iax => "/dev/iax",
        };
        PathBuf::from(folder).join(&self.name)
    }
}

impl Machine {
    /// A device by its name, `dsa0`.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// A DSA queue by its name, `wq0.1`, with its device.
    #[must_use]
    pub fn queue(&self, name: &str) -> Option<(&Device, &Queue)> {
        self.queues().find(|(_, queue)| queue.name == name)
    }

    /// All DSA queues with their devices.
    pub fn queues(&self) -> impl Iterator<Item = (&Device, &Queue)> {
        let devices = self.devices.iter().filter(|device| device.kind == DeviceKind::Dsa);
        devices.flat_map(|device| device.queues.iter().map(move |queue| (device, queue)))
    }
}
