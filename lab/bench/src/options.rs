//! The options of each benchmark.

use std::path::PathBuf;
use telpher_abi::Opcode;
use telpher_mem::PageSize;
use telpher_query::OnLate;

/// NUMA nodes of the source and the destination buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Placement {
    /// Node of the source buffers.
    pub src: u32,
    /// Node of the destination buffers.
    pub dst: u32,
}

/// The kind of work queue that is configured on a modelled device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueKind {
    /// One client, posted writes; never answers that it is full.
    Dedicated,
    /// Many clients; answers Retry when full.
    Shared,
}

/// The pages of a sweep's buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// 4 KiB.
    Small,
    /// 2 MiB, as far as the system has them: [`PageSize::Huge`].
    Huge,
    /// 1 GiB, from the system's pool.
    Gigantic,
}

/// Where a device leaves results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hint {
    /// In the cache.
    Cache,
    /// In memory.
    Memory,
}

/// Options of the sweep over operations, sizes and modes.
#[derive(Clone, Debug)]
pub struct SweepOptions {
    /// Operations.
    pub ops: Vec<Opcode>,
    /// Transfer sizes in bytes.
    pub sizes: Vec<u64>,
    /// Descriptors or batches in flight.
    pub depths: Option<Vec<u32>>,
    /// Descriptors that a batch carries.
    pub batches: Option<Vec<u32>>,
    /// Submitting threads.
    pub threads: u32,
    /// Kind of work queue; dedicated unless given.
    pub queue: Option<QueueKind>,
    /// Entries of a work queue; the device's entries divided among its queues unless given.
    pub wq_size: Option<u32>,
    /// Engines behind the queues; one unless given.
    pub engines: Option<u32>,
    /// NUMA nodes of the buffers; where the kernel puts them unless given.
    pub placement: Option<Placement>,
    /// Pages of the buffers.
    pub pages: Pages,
    /// Where the device leaves results.
    pub hint: Hint,
    /// Name of the device.
    pub device: String,
    /// Measure the energy of each way of waiting, too.
    pub waits: bool,
    /// Measuring time in seconds.
    pub seconds: f64,
}

/// Options of the measurement from which a tuning file is made.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// Operations.
    pub ops: Vec<Opcode>,
    /// Transfer sizes in bytes.
    pub sizes: Vec<u64>,
    /// Operations in flight; 1 waits for each before the next.
    pub in_flight: u32,
    /// Name of the device.
    pub device: String,
    /// The executor of descriptors, if the device is a model. `Auto` takes the quicker of both at each size.
    pub runner: telpher_device::Runner,
    /// Measuring time in seconds.
    pub seconds: f64,
}

/// Options of the comparison of each operation with the best alternative.
#[derive(Clone, Debug)]
pub struct OpsOptions {
    /// Operations.
    pub ops: Vec<Opcode>,
    /// Transfer sizes in bytes.
    pub sizes: Vec<u64>,
    /// Measuring time in seconds.
    pub seconds: f64,
}

/// Options of the cache pollution experiment.
#[derive(Clone, Debug)]
pub struct PollutionOptions {
    /// Working sets of the co-runners in bytes.
    pub working_sets: Vec<u64>,
    /// Transfer size of the copies in bytes.
    pub size: u64,
    /// Name of the device that copies.
    pub device: String,
    /// Measuring time in seconds.
    pub seconds: f64,
}

/// Options of a bench that consists of named experiments.
#[derive(Clone, Debug)]
pub struct ExperimentOptions {
    /// Names of the experiments to run; all if empty.
    pub only: Vec<String>,
    /// Measuring time in seconds.
    pub seconds: f64,
}

/// Options of the bench of libdml.
#[derive(Clone, Debug)]
pub struct DmlOptions {
    /// The experiments.
    pub experiments: ExperimentOptions,
    /// The prefix in which Intel's library is installed, to compare with it.
    pub original: Option<PathBuf>,
}

/// Options of the bench of page tiering.
#[derive(Clone, Debug)]
pub struct TierOptions {
    /// The experiments.
    pub experiments: ExperimentOptions,
    /// Programs that run alone and under `telpher tier run`, as a shell takes them; the bench's own if empty.
    pub programs: Vec<String>,
}

/// Options of the bench of the column engine against DuckDB.
#[derive(Clone, Debug)]
pub struct QueryOptions {
    /// Bytes of the columns of each table.
    pub size: u64,
    /// Threads of each side; one a core unless given.
    pub threads: Option<u32>,
    /// A Python that has the packages duckdb and numpy.
    pub python: PathBuf,
    /// Measuring time in seconds.
    pub seconds: f64,
}

/// Options of the bench of a cache under load.
#[derive(Clone, Debug)]
pub struct CacheLikeOptions {
    /// The cache and its load: `paper`, or a file in CacheBench's format.
    pub load: String,
    /// CPUs for all threads; half as many as threads unless given.
    pub cores: Option<u32>,
    /// Threads; those of the load unless given.
    pub threads: Option<u32>,
    /// Gets of each thread; those of the load unless given.
    pub gets: Option<u64>,
    /// Copies of this many bytes or more may go to the device.
    pub threshold: u64,
    /// Names of the devices; a modelled device with four shared queues if empty.
    pub devices: Vec<String>,
    /// Names of the sides; all if empty.
    pub only: Vec<String>,
    /// Run the load in this process, without `telpher offload`.
    pub alone: bool,
}

/// Options of a query that is executed with prefetched columns and without. An option that is `None` has the default
/// that `telpher qdp --help` names.
#[derive(Clone, Debug)]
pub struct PrefetchOptions {
    /// The query: `thesis`, `q1`, `q6`, or SQL text.
    pub query: String,
    /// Files with the columns; columns are generated if empty.
    pub input: Vec<PathBuf>,
    /// Bytes of the generated columns.
    pub size: u64,
    /// Seed of the generated columns.
    pub seed: u64,
    /// Hardware threads for the query.
    pub threads: Option<u32>,
    /// Groups of threads.
    pub groups: Option<u32>,
    /// Rows that a group scans, and that are prefetched, together.
    pub chunk: Option<u64>,
    /// Threads of a group that scan.
    pub scanners: Option<u32>,
    /// Threads of a group that prefetch.
    pub fetchers: Option<u32>,
    /// Threads of a group that sum.
    pub aggregators: Option<u32>,
    /// How a block is read whose copy is in flight.
    pub late: OnLate,
    /// NUMA node whose CPUs the threads run on.
    pub node: Option<u32>,
    /// NUMA node of the columns that are scanned.
    pub scanned_node: Option<u32>,
    /// NUMA node of the columns that are prefetched.
    pub fetched_node: Option<u32>,
    /// NUMA node of the fast memory.
    pub tier_node: Option<u32>,
    /// Bytes of the fast memory.
    pub tier_size: Option<u64>,
    /// Pages of the columns and of the fast memory.
    pub pages: PageSize,
    /// Measured executions of each configuration.
    pub repeat: u32,
    /// Execute the query by the engine alone: no groups, no cache.
    pub plain: bool,
}

/// Options of the bench of packets into virtual machines and out of them.
#[derive(Clone, Debug)]
pub struct VhostOptions {
    /// Parts to measure; all if empty.
    pub only: Vec<VhostPart>,
    /// Lengths of packets in bytes.
    pub sizes: Option<Vec<u64>>,
    /// Rings and drivers.
    pub rings: Vec<VhostRing>,
    /// Directions in which packets travel.
    pub traffic: Vec<VhostTraffic>,
    /// Packets of this many bytes or more are copied by the device in the hybrid pipeline; learned unless given.
    pub threshold: Option<u32>,
    /// Times that every point is measured.
    pub rounds: Option<u32>,
    /// Three lengths, one round, short windows.
    pub quick: bool,
    /// Use our own guest, also where testpmd is installed.
    pub own_guest: bool,
}

/// A part of the bench of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VhostPart {
    /// CPU copies against DPDK's net_vhost.
    Copies,
    /// The hybrid pipeline with an inline engine against our CPU copies.
    Pipeline,
    /// An engine with a thread of its own against DPDK's asynchronous path with its software DMA.
    Threads,
    /// What a chain costs in a ring.
    Rings,
    /// What a packet costs the forwarding core while a device copies.
    Flat,
    /// How much longer a packet takes through the pipeline.
    Latency,
    /// Packets between a network interface and a guest.
    Interface,
}

/// A ring layout and the guest driver's use of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VhostRing {
    /// A split ring, mergeable buffers.
    Split,
    /// A packed ring, mergeable buffers.
    Packed,
    /// A split ring used in order.
    SplitInorder,
    /// A packed ring used in order, buffers not merged.
    PackedInorder,
    /// A split ring, vector instructions.
    SplitVec,
    /// A packed ring used in order, vector instructions.
    PackedVec,
}

/// The direction in which packets travel, as seen from the backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VhostTraffic {
    /// Backend to frontend.
    B2f,
    /// Frontend to backend.
    F2b,
    /// Around.
    Loop,
}

/// Options of the bench of messages between processes.
#[derive(Clone, Debug)]
pub struct FabricOptions {
    /// Parts to measure; all if empty.
    pub only: Vec<FabricPart>,
    /// Measuring time in seconds.
    pub seconds: f64,
    /// Few lengths, one round.
    pub quick: bool,
    /// The folder of the programs of an MPICH that uses libfabric.
    pub mpich: Option<PathBuf>,
}

/// A part of the bench of messages between processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FabricPart {
    /// Short messages, half round trips.
    Latency,
    /// Longer messages, half round trips.
    Long,
    /// Bytes a second in one direction.
    Bandwidth,
    /// Bytes a second written to and read from remote memory.
    Rma,
    /// Short messages a second.
    Rate,
    /// Sums over the ranks of an MPI.
    Allreduce,
    /// Messages while the ranks compute.
    Overlap,
}
