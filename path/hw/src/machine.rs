//! What the driver shows: devices with their groups, engines and queues, as values.
//!
//! Kernels from 5.15 on differ in their attributes; an attribute that a kernel does not have is `None`.

use std::fmt;
use std::path::PathBuf;
use telpher_abi::registers::{DsaCap0, DsaCap1, DsaCap2, GenCap, OpCap};
use telpher_portal::QueueMode;

/// All devices of a machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Machine {
    /// The devices in the order of their numbers.
    pub devices: Vec<Device>,
    /// Drivers of the bus, by name (`idxd`, `user`, `dmaengine`, …).
    pub drivers: Vec<String>,
    /// Attributes that exist but could not be read or parsed.
    pub oddities: Vec<UnreadableAttribute>,
}

/// An attribute that exists but could not be read or parsed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnreadableAttribute {
    /// Its path.
    pub path: PathBuf,
    /// The system's error, or the text found.
    pub why: String,
}

/// The kind of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum DeviceKind {
    /// Data Streaming Accelerator, `dsaM`.
    Dsa,
    /// In-memory Analytics Accelerator, `iaxM`: another set of operations, which this project does not support.
    Iax,
}

/// State of a device or queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum State {
    /// Takes no descriptors; can be configured.
    Disabled,
    /// Takes descriptors.
    Enabled,
    /// Stopped by an error until it is reset. Devices only.
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
    /// Its number, which is part of its queues' names.
    pub number: u32,
    /// DSA or IAX.
    pub kind: DeviceKind,
    /// Address of its PCI function, such as `0000:6a:01.0`.
    pub pci_address: Option<String>,
    /// The driver it is bound to; `idxd` for an enabled device.
    pub driver: Option<String>,
    /// Version register: 0x100 for 1.x.
    pub version: Option<u32>,
    /// Its state.
    pub state: Option<State>,
    /// NUMA node of the device.
    pub numa_node: Option<u32>,
    /// General capabilities.
    pub gen_cap: Option<GenCap>,
    /// Capabilities of 3.0, which Linux shows from 7.0 on.
    pub dsa_caps: Option<(DsaCap0, DsaCap1, DsaCap2)>,
    /// Operations as the driver shows them: without Batch where programs may not submit one.
    pub op_cap: Option<OpCap>,
    /// True if groups, engines and queues can be configured.
    pub configurable: Option<bool>,
    /// True if programs' address spaces can be used.
    pub pasid_enabled: Option<bool>,
    /// The most groups.
    pub max_groups: Option<u32>,
    /// The most queues.
    pub max_work_queues: Option<u32>,
    /// Entries of all queues together.
    pub max_work_queues_size: Option<u32>,
    /// The number of engines.
    pub max_engines: Option<u32>,
    /// Largest batch, in descriptors.
    pub max_batch: Option<u32>,
    /// Largest transfer, in bytes.
    pub max_transfer: Option<u64>,
    /// Read buffers.
    pub max_read_buffers: Option<u32>,
    /// Read buffers shared by groups that use the limit; 0 for no limit.
    pub read_buffer_limit: Option<u32>,
    /// Entries of the event log.
    pub event_log_size: Option<u32>,
    /// Open files and kernel users of all its queues.
    pub clients: Option<u32>,
    /// Result of the last command: 0, the device's code, or the driver's code with bit 31.
    pub cmd_status: Option<u32>,
    /// SWERROR as of the last error interrupt, low word first; zero if there was none.
    pub errors: Option<[u64; 4]>,
    /// Major number of its queues' nodes.
    pub cdev_major: Option<u32>,
    /// The groups in the order of their numbers.
    pub groups: Vec<Group>,
    /// The engines in the order of their numbers.
    pub engines: Vec<Engine>,
    /// The queues in the order of their numbers.
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
    /// True if it uses the device's read buffer limit.
    pub use_read_buffer_limit: Option<bool>,
    /// Read buffers reserved for this group.
    pub read_buffers_reserved: Option<u32>,
    /// The most read buffers of this group.
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

/// The users of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum QueueType {
    /// Not configured yet.
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
    /// Its state.
    pub state: Option<State>,
    /// Dedicated or shared.
    pub mode: Option<QueueMode>,
    /// Entries.
    pub size: Option<u32>,
    /// The most entries of a shared queue that programs may fill.
    pub threshold: Option<u32>,
    /// Its group.
    pub group: Option<u32>,
    /// Priority within the group.
    pub priority: Option<u32>,
    /// True if it accepts the Block On Fault flag.
    pub block_on_fault: Option<bool>,
    /// Its type.
    pub queue_type: Option<QueueType>,
    /// The name that the administrator gave it.
    pub label: Option<String>,
    /// The driver it is configured for; kernels since 6.7.
    pub driver_name: Option<String>,
    /// The driver it is bound to.
    pub driver: Option<String>,
    /// Open files and kernel users.
    pub clients: Option<u32>,
    /// Minor number of its node, while the node exists.
    pub cdev_minor: Option<u32>,
    /// Largest transfer, in bytes.
    pub max_transfer: Option<u64>,
    /// Largest batch, in descriptors.
    pub max_batch: Option<u32>,
    /// True if the device does not cache translations.
    pub ats_disable: Option<bool>,
    /// True if page requests are off.
    pub prs_disable: Option<bool>,
    /// The number of waiting descriptors. Stale as soon as it is read.
    pub occupancy: Option<u32>,
    /// How often the driver retries a write() to a full shared queue.
    pub enqcmds_retries: Option<u32>,
    /// Operations it accepts, if they can be set per queue.
    pub op_config: Option<OpCap>,
}

impl Queue {
    /// Returns the path of its node, which exists while the queue is bound to the driver for programs.
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
    /// Returns a device by its name, `dsa0`.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// Returns a DSA queue by its name, `wq0.1`, with its device.
    #[must_use]
    pub fn queue(&self, name: &str) -> Option<(&Device, &Queue)> {
        self.queues().find(|(_, queue)| queue.name == name)
    }

    /// Returns all DSA queues with their devices.
    pub fn queues(&self) -> impl Iterator<Item = (&Device, &Queue)> {
        let devices = self.devices.iter().filter(|device| device.kind == DeviceKind::Dsa);
        devices.flat_map(|device| device.queues.iter().map(move |queue| (device, queue)))
    }
}
