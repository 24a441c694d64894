//! The C structures of a vhost-user backend. `VhostQueue` is `telpher_vhost_queue` in the header, and so on. A packet
//! is the library's own [`DetachedPacket`](telpher_vhost::DetachedPacket), so a burst needs no conversion.

use crate::vhost::VhostDmaQueue;
pub use telpher_vhost::DetachedPacket as Packet;

/// The options of one virtqueue.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VhostQueue {
    /// The DMA queues for its copies.
    pub dma_queues: *const *const VhostDmaQueue,
    /// The number of DMA queues.
    pub dma_queue_count: u32,
    /// Packets of at least this many bytes use a DMA queue.
    pub device_from: u32,
    /// The most packets in flight; 0 for the default.
    pub in_flight: u32,
    /// Zero.
    pub reserved: u32,
    /// Zero.
    pub reserved2: [u64; 3],
}

/// The state of a virtqueue.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VhostState {
    /// 1 if a frontend is connected.
    pub frontend: u32,
    /// 1 if the virtqueue runs and is enabled.
    pub running: u32,
    /// Why nothing is taken from it any more: one of [`vhost_broken`].
    pub broken: u32,
    /// Its descriptors; 0 if it does not run.
    pub size: u32,
    /// The negotiated features; 0 if it does not run.
    pub features: u64,
    /// Packets in flight.
    pub in_flight: u64,
    /// Zero.
    pub reserved: [u64; 4],
}

/// The counters of a virtqueue, over all frontends.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VhostStats {
    /// Packets that got through.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets whose copies were handed to a DMA queue.
    pub by_device: u64,
    /// Their bytes.
    pub bytes_by_device: u64,
    /// How often the driver was called.
    pub calls: u64,
    /// Dropped packets, by reason: one of [`vhost_drop`].
    pub drops: [u64; 16],
    /// Zero.
    pub reserved: [u64; 3],
}

/// The counters of a DMA queue.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VhostDmaQueueStats {
    /// Copies that the queue made.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Copies that the CPU redid.
    pub redone: u64,
    /// How often a thread found the DMA queue held by another thread.
    pub contended: u64,
    /// Copies in flight.
    pub in_flight: u64,
    /// 1 if the queue is stalled and gets no more copies.
    pub silent: u64,
    /// Zero.
    pub reserved: [u64; 2],
}

/// The state of a socket.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VhostSocketState {
    /// 1 if a frontend is connected.
    pub connected: u32,
    /// Zero.
    pub reserved: u32,
    /// Sessions that started.
    pub sessions: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Zero.
    pub reserved2: [u64; 4],
}

numbers! {
    /// Which side listens and which connects.
    vhost_role:
    /// This side listens.
    TELPHER_VHOST_SERVER = 0;
    /// This side connects.
    TELPHER_VHOST_CLIENT = 1;
}

numbers! {
    /// Why a virtqueue is broken.
    vhost_broken:
    /// It is not broken.
    TELPHER_VHOST_WHOLE = 0;
    /// More chains are available than the ring can hold.
    TELPHER_VHOST_AHEAD = 1;
    /// A chain starts outside the descriptor table.
    TELPHER_VHOST_HEAD = 2;
    /// Guest memory disappeared.
    TELPHER_VHOST_TORN = 3;
    /// Its DMA queue completes no copies.
    TELPHER_VHOST_SILENT = 4;
    /// A reason without a number in this table.
    TELPHER_VHOST_BROKEN = 255;
}

numbers! {
    /// Why a packet, or a chain, was dropped: the index of its count.
    vhost_drop:
    /// A descriptor's next index is beyond its table.
    TELPHER_VHOST_DROP_NEXT = 0;
    /// A chain is too long.
    TELPHER_VHOST_DROP_LOOP = 1;
    /// A buffer has the wrong direction.
    TELPHER_VHOST_DROP_DIRECTION = 2;
    /// A buffer is not in the guest's memory.
    TELPHER_VHOST_DROP_ADDRESS = 3;
    /// A chain's length does not fit in 32 bits.
    TELPHER_VHOST_DROP_LENGTH = 4;
    /// An indirect table is not allowed there.
    TELPHER_VHOST_DROP_INDIRECT = 5;
    /// An indirect table has an invalid length or address.
    TELPHER_VHOST_DROP_TABLE = 6;
    /// Shorter than the header.
    TELPHER_VHOST_DROP_RUNT = 7;
    /// Longer than the pool's buffers.
    TELPHER_VHOST_DROP_LONG = 8;
    /// The guest's buffer is too short.
    TELPHER_VHOST_DROP_SHORT = 9;
    /// Its DMA queue did not complete it.
    TELPHER_VHOST_DROP_SILENT = 10;
}
