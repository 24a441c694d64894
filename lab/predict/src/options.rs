//! The options of a sweep.

use telpher_abi::Opcode;
use telpher_device::{Bandwidth, WqMode};
use telpher_sim::{AccessPattern, Library, SubmitBy, Wait};

/// What a sweep simulates. An option that is `None` has the default that `telpher sim run --help` names.
#[derive(Clone, Debug)]
pub struct SweepOptions {
    /// Operations.
    pub ops: Vec<Opcode>,
    /// Transfer sizes in bytes.
    pub sizes: Vec<u64>,
    /// Descriptors or batches of a thread in flight.
    pub depths: Option<Vec<u32>>,
    /// Descriptors in a batch.
    pub batches: Option<Vec<u32>>,
    /// Submitting threads.
    pub threads: u32,
    /// Operations that arrive at each thread per second.
    pub rate: Option<u64>,
    /// Submissions of each thread, for each point.
    pub count: u64,
    /// Simulated seconds of each point, instead of `count`.
    pub seconds: Option<f64>,
    /// Name of the device.
    pub device: String,
    /// Kind of the work queues.
    pub wq_mode: Option<WqMode>,
    /// Entries of a work queue.
    pub wq_size: Option<u32>,
    /// Number of devices.
    pub devices: Option<u16>,
    /// Groups of each device.
    pub groups: Option<u32>,
    /// Work queues of each group.
    pub wqs: Option<u32>,
    /// Engines of each group.
    pub engines: Option<u32>,
    /// Limits of each group's reads and writes.
    pub bandwidth: [Option<Bandwidth>; 2],
    /// The device writes results to the cache; otherwise to memory.
    pub to_cache: bool,
    /// Memory nodes of the source and the destination.
    pub placement: Option<(u32, u32)>,
    /// Memory node whose cores the threads run on.
    pub core_node: usize,
    /// Bytes of a page of the buffers.
    pub page_bytes: u64,
    /// The source is in the cache when an operation begins; otherwise in memory.
    pub from_cache: bool,
    /// Bytes of source and destination that a thread goes through repeatedly.
    pub footprint: Option<u64>,
    /// Addresses of a core's own operations.
    pub walk: AccessPattern,
    /// How a thread waits.
    pub wait: Wait,
    /// Software between the program and the portal.
    pub library: Library,
    /// How descriptors reach the queue.
    pub through: SubmitBy,
    /// Settings of the mover, as NAME=VALUE; without one, no mover is simulated.
    pub policy: Vec<String>,
}
