//! Lists devices in the format of `accel-config list`, modelled and real devices alike.
//!
//! Keys are in the order in which accel-config applies them when it loads a file: a threshold needs its mode and size
//! before it, a name its type. Values that a device does not report are left out.

mod hardware;
mod modelled;

pub use hardware::hardware;

use serde::{Serialize, Serializer};

/// One device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Listing {
    /// `dsa0`.
    pub dev: String,
    /// True for a modelled device.
    pub modelled: bool,
    /// Address of its PCI function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<String>,
    /// NUMA node of the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Read buffer limit; 0 for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_buffer_limit: Option<u32>,
    /// Entries of the event log, if they differ from the driver's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_log_size: Option<u32>,
    /// The most groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_groups: Option<u32>,
    /// The most queues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_work_queues: Option<u32>,
    /// The number of engines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_engines: Option<u32>,
    /// Entries of all queues together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_queue_size: Option<u32>,
    /// Read buffers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_read_buffers: Option<u32>,
    /// Largest batch, in descriptors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_size: Option<u32>,
    /// Largest transfer, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_transfer_size: Option<u64>,
    /// Version, as hexadecimal text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// GENCAP, as hexadecimal text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gen_cap: Option<String>,
    /// OPCAP, most significant word first, as sysfs prints it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub op_cap: Option<String>,
    /// Names of the operations in OPCAP. In JSON a single text, because accel-config stops at unknown lists.
    #[serde(serialize_with = "words")]
    pub operations: Vec<&'static str>,
    /// 1 if the tables can be configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configurable: Option<u32>,
    /// 1 if PASIDs are enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pasid_enabled: Option<u32>,
    /// `enabled`, `disabled`, `halted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Open files and kernel users of all its queues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<u32>,
    /// Groups with members.
    pub groups: Vec<GroupListing>,
}

/// One group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct GroupListing {
    /// `group0.0`.
    pub dev: String,
    /// Traffic class A.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_class_a: Option<u32>,
    /// Traffic class B.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic_class_b: Option<u32>,
    /// Read buffers reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_buffers_reserved: Option<u32>,
    /// 1 if the group shares the device's read buffer limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_read_buffer_limit: Option<u32>,
    /// Read buffers allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_buffers_allowed: Option<u32>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<&'static str>,
    /// Entries.
    pub size: u32,
    /// Group.
    pub group_id: u32,
    /// Priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// 1 if descriptors may wait for pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_on_fault: Option<u32>,
    /// Largest batch, in descriptors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_size: Option<u32>,
    /// Largest transfer, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_transfer_size: Option<u64>,
    /// `user`, `kernel` or `none`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The driver for the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_name: Option<String>,
    /// The most entries that the limited portal may fill; 0 for a dedicated queue.
    pub threshold: u32,
    /// 1 if the device does not cache translations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ats_disable: Option<u32>,
    /// 1 if page requests are off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prs_disable: Option<u32>,
    /// `enabled` or `disabled`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Waiting descriptors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occupancy: Option<u64>,
    /// Open files and kernel users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<u32>,
    /// Minor number of its device node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cdev_minor: Option<u32>,
    /// The reason why this process cannot use it, as a sentence; absent if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unusable: Option<String>,
}

/// One engine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct EngineListing {
    /// `engine0.0`.
    pub dev: String,
    /// Group.
    pub group_id: u32,
}

/// Serialises words as one text.
fn words<S: Serializer>(words: &[&str], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&words.join(" "))
}

/// Formats 256 bits as eight hexadecimal words, most significant first. Source: K612 `Documentation/ABI/stable`,
/// `op_cap`.
fn bitmap(words: &[u64; 4]) -> String {
    let halves = words.iter().rev().flat_map(|word| [word >> 32, word & 0xffff_ffff]);
    halves.map(|half| format!("{half:08x}")).collect::<Vec<_>>().join(",")
}
