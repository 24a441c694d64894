//! What a vhost-user backend shows of itself. `VhostQueue` is `telpher_vhost_queue` in the header, and so on; a packet is the library's own
//! [`Loose`](telpher_vhost::Loose), so that a burst is nothing to translate.

use crate::vhost::VhostLane;
pub use telpher_vhost::Loose as Packet;

/// How one virtqueue works.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VhostQueue {
    /// The lanes its copies ride.
    pub lanes: *const *const VhostLane,
    /// How many.
    pub lane_count: u32,
    /// Packets of so many bytes or more ride a lane.
    pub device_from: u32,
    /// Packets in flight at most; 0 for what the library takes.
    pub in_flight: u32,
    /// Zero.
    pub reserved: u32,
    /// Zero.
    pub reserved2: [u64; 3],
}

/// How a virtqueue stands.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VhostState {
    /// 1 if a frontend has the port.
    pub frontend: u32,
    /// 1 if the virtqueue runs and may do what is seen outside.
    pub running: u32,
    /// Why nothing is taken from it any more: one of [`vhost_broken`].
    pub broken: u32,
    /// Its descriptors; 0 if it stands still.
    pub size: u32,
    /// What the driver agreed on; 0 if it stands still.
    pub features: u64,
    /// Packets in flight.
    pub in_flight: u64,
    /// Zero.
    pub reserved: [u64; 4],
}

/// What a virtqueue has done, over all frontends.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VhostStats {
    /// Packets that got through.
    pub packets: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Packets whose copies were handed to a lane.
    pub by_lane: u64,
    /// Bytes of them.
    pub bytes_by_lane: u64,
    /// Times the driver was called.
    pub calls: u64,
    /// What was dropped, by reason: one of [`vhost_drop`].
    pub drops: [u64; 16],
    /// Zero.
    pub reserved: [u64; 3],
}

/// What a lane has done.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VhostLaneStats {
    /// Copies that the queue did.
    pub copies: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Copies that the CPU redid.
    pub redone: u64,
    /// Times the lane was found taken.
    pub contended: u64,
    /// Copies in flight.
    pub in_flight: u64,
    /// 1 if the queue gets no more.
    pub silent: u64,
    /// Zero.
    pub reserved: [u64; 2],
}

/// What has become of a socket.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VhostSocketState {
    /// 1 if a frontend is connected.
    pub connected: u32,
    /// Zero.
    pub reserved: u32,
    /// Sessions that began.
    pub sessions: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Zero.
    pub reserved2: [u64; 4],
}

numbers! {
    /// Who listens and who connects.
    vhost_role:
    /// This side listens.
    TELPHER_VHOST_SERVER = 0;
    /// This side connects.
    TELPHER_VHOST_CLIENT = 1;
}

numbers! {
    /// Why a virtqueue is broken.
    vhost_broken:
    /// It is not.
    TELPHER_VHOST_WHOLE = 0;
    /// More is available than the ring has.
    TELPHER_VHOST_AHEAD = 1;
    /// A chain begins nowhere.
    TELPHER_VHOST_HEAD = 2;
    /// Guest memory went away.
    TELPHER_VHOST_TORN = 3;
    /// Its DMA queue answers no more.
    TELPHER_VHOST_SILENT = 4;
    /// For a reason that has no number yet.
    TELPHER_VHOST_BROKEN = 255;
}

numbers! {
    /// Why a packet, or a chain, was dropped: the index of its count.
    vhost_drop:
    /// A descriptor names a next one beyond its table.
    TELPHER_VHOST_DROP_NEXT = 0;
    /// A chain goes on for too long.
    TELPHER_VHOST_DROP_LOOP = 1;
    /// A buffer of the wrong direction.
    TELPHER_VHOST_DROP_DIRECTION = 2;
    /// A buffer that is not in the guest's memory.
    TELPHER_VHOST_DROP_ADDRESS = 3;
    /// More bytes than 32 bits count.
    TELPHER_VHOST_DROP_LENGTH = 4;
    /// An indirect table where none may be.
    TELPHER_VHOST_DROP_INDIRECT = 5;
    /// An indirect table that is none.
    TELPHER_VHOST_DROP_TABLE = 6;
    /// Shorter than the header.
    TELPHER_VHOST_DROP_RUNT = 7;
    /// Longer than the pool's buffers.
    TELPHER_VHOST_DROP_LONG = 8;
    /// The guest's buffer is too short.
    TELPHER_VHOST_DROP_SHORT = 9;
    /// Its DMA queue did not answer.
    TELPHER_VHOST_DROP_SILENT = 10;
}
