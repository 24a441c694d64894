//! The layouts of virtqueues and of network packets in them. Little-endian, as on every machine this crate runs on.
//!
//! Sources: VirtIO 1.2 §2.7 (split virtqueues), §2.8 (packed virtqueues), §5.1 (network device), §6 (reserved feature
//! bits).

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

bitflags! {
    /// Features that driver and device have negotiated. Source: VirtIO 1.2 §5.1.3 (network), §6 (reserved), vhost-user
    /// (`PROTOCOL_FEATURES`, `LOG_ALL`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct Features: u64 {
        /// `VIRTIO_NET_F_CSUM`: packets from the guest may lack their checksum.
        const CSUM = 1 << 0;
        /// `VIRTIO_NET_F_GUEST_CSUM`: packets to the guest may lack their checksum.
        const GUEST_CSUM = 1 << 1;
        /// `VIRTIO_NET_F_MRG_RXBUF`: a packet to the guest may span several chains.
        const MRG_RXBUF = 1 << 15;
        /// `VIRTIO_NET_F_STATUS`: the link's state is reported.
        const STATUS = 1 << 16;
        /// `VIRTIO_NET_F_CTRL_VQ`: there is a control queue (handled by the frontend).
        const CTRL_VQ = 1 << 17;
        /// `VIRTIO_NET_F_GUEST_ANNOUNCE`: the guest announces itself on request.
        const GUEST_ANNOUNCE = 1 << 21;
        /// `VIRTIO_NET_F_MQ`: several pairs of queues.
        const MQ = 1 << 22;
        /// `VHOST_F_LOG_ALL`: every write is marked in the dirty log.
        const LOG_ALL = 1 << 26;
        /// `VIRTIO_F_ANY_LAYOUT`: the header may share a descriptor with the packet.
        const ANY_LAYOUT = 1 << 27;
        /// `VIRTIO_F_INDIRECT_DESC`: a descriptor may refer to a table of descriptors.
        const INDIRECT_DESC = 1 << 28;
        /// `VIRTIO_F_EVENT_IDX`: each side says from which index on it wants notifications.
        const EVENT_IDX = 1 << 29;
        /// `VHOST_USER_F_PROTOCOL_FEATURES`: the protocol's own features are negotiated.
        const PROTOCOL_FEATURES = 1 << 30;
        /// `VIRTIO_F_VERSION_1`: a modern device.
        const VERSION_1 = 1 << 32;
        /// `VIRTIO_F_ACCESS_PLATFORM`: addresses need translation by an IOMMU.
        const ACCESS_PLATFORM = 1 << 33;
        /// `VIRTIO_F_RING_PACKED`: packed virtqueues.
        const RING_PACKED = 1 << 34;
        /// `VIRTIO_F_IN_ORDER`: buffers are used in the order they were made available.
        const IN_ORDER = 1 << 35;
    }
}

/// Bytes of a descriptor, split or packed. Source: VirtIO 1.2 §2.7.5, §2.8.13.
pub const DESCRIPTOR_BYTES: u32 = 16;
/// Bytes of an element of a split ring's used ring. Source: VirtIO 1.2 §2.7.8.
pub const USED_ELEMENT_BYTES: u32 = 8;
/// The most descriptors of a ring. Source: VirtIO 1.2 §2.7, §2.8 (queue size at most 2¹⁵).
pub const MOST_DESCRIPTORS: u16 = 1 << 15;

bitflags! {
    /// Flags of a descriptor. Source: VirtIO 1.2 §2.7.5, §2.8.1, §2.8.13.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct DescriptorFlags: u16 {
        /// `VIRTQ_DESC_F_NEXT`: the chain continues.
        const NEXT = 1 << 0;
        /// `VIRTQ_DESC_F_WRITE`: the device writes; otherwise it reads.
        const WRITE = 1 << 1;
        /// `VIRTQ_DESC_F_INDIRECT`: it refers to a table of descriptors.
        const INDIRECT = 1 << 2;
        /// `VIRTQ_DESC_F_AVAIL` (packed): the driver's wrap counter when it was made available.
        const AVAIL = 1 << 7;
        /// `VIRTQ_DESC_F_USED` (packed): equal to `AVAIL` when used.
        const USED = 1 << 15;
    }
}

/// A descriptor of a split ring. Source: VirtIO 1.2 §2.7.5.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SplitDescriptor {
    /// Guest address of the buffer.
    pub address: u64,
    /// Bytes of the buffer.
    pub len: u32,
    /// [`DescriptorFlags`].
    pub flags: u16,
    /// Index of the next, if there is one.
    pub next: u16,
}
const _: () = assert!(size_of::<SplitDescriptor>() == DESCRIPTOR_BYTES as usize);

/// A descriptor of a packed ring. Source: VirtIO 1.2 §2.8.13.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PackedDescriptor {
    /// Guest address of the buffer.
    pub address: u64,
    /// Bytes of the buffer; after use, the bytes that the device wrote.
    pub len: u32,
    /// The buffer's identifier.
    pub id: u16,
    /// [`DescriptorFlags`].
    pub flags: u16,
}
const _: () = assert!(size_of::<PackedDescriptor>() == DESCRIPTOR_BYTES as usize);

/// A split ring's avail flags: the driver wants no calls. Source: VirtIO 1.2 §2.7.6, `VIRTQ_AVAIL_F_NO_INTERRUPT`.
pub const NO_INTERRUPT: u16 = 1;
/// A split ring's used flags: the device wants no kicks. Source: VirtIO 1.2 §2.7.8, `VIRTQ_USED_F_NO_NOTIFY`.
pub const NO_NOTIFY: u16 = 1;

/// Events of a packed ring: always. Source: VirtIO 1.2 §2.8.14, `RING_EVENT_FLAGS_ENABLE`.
pub const EVENT_ENABLE: u16 = 0;
/// Events of a packed ring: never. Source: VirtIO 1.2 §2.8.14, `RING_EVENT_FLAGS_DISABLE`.
pub const EVENT_DISABLE: u16 = 1;
/// Events of a packed ring: at one descriptor. Source: VirtIO 1.2 §2.8.14, `RING_EVENT_FLAGS_DESC`.
pub const EVENT_DESCRIPTOR: u16 = 2;

/// Bytes of the header before each packet. Source: VirtIO 1.2 §5.1.6 (`virtio_net_hdr` with `num_buffers`).
pub const HEADER_BYTES: u32 = 12;
/// Bytes of the header for a device that is neither modern nor merges buffers. Source: VirtIO 1.2 §5.1.6.1 (legacy
/// interface).
pub const LEGACY_HEADER_BYTES: u32 = 10;
/// Offset of `num_buffers` in the header. Source: VirtIO 1.2 §5.1.6.
pub const NUM_BUFFERS_OFFSET: u32 = 10;

impl Features {
    /// Bytes of the header before each packet under these features.
    #[must_use]
    pub const fn header_bytes(self) -> u32 {
        if self.intersects(Features::VERSION_1.union(Features::MRG_RXBUF)) { HEADER_BYTES } else { LEGACY_HEADER_BYTES }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_short_only_for_legacy_devices_without_merging() {
        assert_eq!(Features::empty().header_bytes(), LEGACY_HEADER_BYTES);
        assert_eq!(Features::RING_PACKED.header_bytes(), LEGACY_HEADER_BYTES);
        assert_eq!(Features::VERSION_1.header_bytes(), HEADER_BYTES);
        assert_eq!(Features::MRG_RXBUF.header_bytes(), HEADER_BYTES);
    }

    /// The features that testpmd's virtio-user negotiated with net_vhost (DPDK 22.11.11).
    #[test]
    fn features_seen_with_peers_have_names() {
        let split = Features::MRG_RXBUF | Features::INDIRECT_DESC | Features::PROTOCOL_FEATURES | Features::VERSION_1;
        assert_eq!(split.bits(), 0x1_5000_8000);
        assert_eq!((split | Features::IN_ORDER).bits(), 0x9_5000_8000);
        assert_eq!((split | Features::IN_ORDER | Features::RING_PACKED).bits(), 0xd_5000_8000);
    }
}
