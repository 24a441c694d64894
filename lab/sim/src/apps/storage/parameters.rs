//! The parameters of a storage target, and the times that follow from them.

use crate::picos::Picos;
use crate::workload::QueueId;
use telpher_nvmf::device_engine::DEFAULT_SHORTEST;

/// What computes the digest of a reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DigestBy {
    /// No digest.
    None,
    /// The core that sends the reply.
    Core,
    /// Devices: each core uses one of the queues.
    Devices(Vec<QueueId>),
}

/// The target and its initiators.
#[derive(Clone, PartialEq, Debug)]
pub struct Storage {
    /// Bytes of a read: 512 to 16 MiB, rounded up to blocks of 512.
    pub bytes: u32,
    /// Number of cores of the target.
    pub cores: u32,
    /// What computes digests.
    pub digest: DigestBy,
    /// Smallest read, in bytes, whose digest a device computes.
    pub threshold: u32,
    /// Reads in flight, all initiators together; at most 1023 for each connection.
    pub under_way: u32,
    /// Measured reads; half as many precede them.
    pub reads: u64,
    /// Costs of the work, and rates of disks and links.
    pub costs: StorageCosts,
}

/// Costs of a read, and rates of disks and links.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StorageCosts {
    /// Core nanoseconds of a system call that waits for sockets, receives, or sends, independent of what it moves.
    pub call_ns: f64,
    /// Core nanoseconds to check a command, pass it to the disk, and take the disk's answer.
    pub command_ns: f64,
    /// Core nanoseconds to send a reply, without the call and its bytes.
    pub send_ns: f64,
    /// Core nanoseconds for each KiB sent.
    pub send_kib_ns: f64,
    /// Core nanoseconds around a digest by a device, without the submission: job, descriptor, completion.
    pub offload_ns: f64,
    /// Gigabytes a second of a core's instructions for a digest, in addition to the core's wait for memory. The default
    /// is so high that only the wait counts: instructions and wait overlap.
    pub checksum_gb_s: f64,
    /// Number of disks.
    pub disks: u32,
    /// Gigabytes a second of one disk.
    pub disk_gb_s: f64,
    /// Microseconds until a disk answers.
    pub disk_us: f64,
    /// Gigabytes a second of data on the links to both initiators together.
    pub link_gb_s: f64,
    /// Microseconds from a reply's last byte to the next command's arrival.
    pub initiator_us: f64,
}

impl Default for Storage {
    /// Reads of 16 KiB by four cores, without digests.
    fn default() -> Self {
        Storage {
            bytes: 16 << 10,
            cores: 4,
            digest: DigestBy::None,
            threshold: u32::try_from(DEFAULT_SHORTEST).unwrap_or(u32::MAX),
            under_way: 512,
            reads: 20_000,
            costs: StorageCosts::default(),
        }
    }
}

impl Default for StorageCosts {
    fn default() -> Self {
        StorageCosts {
            call_ns: 400.0,
            command_ns: 300.0,
            send_ns: 2600.0,
            send_kib_ns: 40.0,
            offload_ns: 150.0,
            checksum_gb_s: OVERLAPPED,
            disks: 16,
            disk_gb_s: 6.5,
            disk_us: 80.0,
            link_gb_s: 23.5,
            initiator_us: 10.0,
        }
    }
}

impl StorageCosts {
    /// All costs of sockets times `factor`: calls, replies and bytes.
    #[must_use]
    pub fn with_sockets(self, factor: f64) -> StorageCosts {
        StorageCosts {
            call_ns: self.call_ns * factor,
            send_ns: self.send_ns * factor,
            send_kib_ns: self.send_kib_ns * factor,
            ..self
        }
    }
}

/// A rate of instructions that takes no time.
const OVERLAPPED: f64 = 1e6;
/// Initiators. Source: KUPER appendix C.
pub(super) const INITIATORS: u32 = 2;
/// Bytes of a block of the namespaces.
pub(super) const BLOCK: u32 = 512;
/// Most bytes of a read.
pub(super) const MOST_BYTES: u32 = 16 << 20;
/// Most reads of a connection: a queue of 1024 entries has room for one less.
pub(super) const MOST_READS: u32 = 1023;
/// Times derived from costs and bytes.
pub(super) struct Times {
    pub(super) call: Picos,
    pub(super) command: Picos,
    pub(super) send: Picos,
    pub(super) send_kib: f64,
    pub(super) offload: Picos,
    pub(super) checksum: Picos,
    pub(super) disk: Picos,
    pub(super) disk_latency: Picos,
    pub(super) link_gb_s: f64,
    pub(super) initiator: Picos,
}

impl Storage {
    pub(super) fn times(&self) -> Times {
        let bytes = f64::from(self.bytes);
        let costs = &self.costs;
        let at = |gb_s: f64| Picos::from_nanos_f64(bytes / gb_s.max(1e-3));
        Times {
            call: Picos::from_nanos_f64(costs.call_ns),
            command: Picos::from_nanos_f64(costs.command_ns),
            send: Picos::from_nanos_f64(costs.send_ns),
            send_kib: costs.send_kib_ns,
            offload: Picos::from_nanos_f64(costs.offload_ns),
            checksum: if costs.checksum_gb_s < OVERLAPPED { at(costs.checksum_gb_s) } else { Picos::ZERO },
            disk: at(costs.disk_gb_s),
            disk_latency: Picos::from_nanos_f64(costs.disk_us * 1e3),
            link_gb_s: costs.link_gb_s.max(1e-3) / f64::from(INITIATORS),
            initiator: Picos::from_nanos_f64(costs.initiator_us * 1e3),
        }
    }
}
