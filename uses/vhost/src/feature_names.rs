//! The names of feature bits in the specifications, and their meanings.

use crate::layout::Features;
use crate::message::ProtocolFeatures;

/// A feature bit with its name and meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FeatureName<F> {
    /// The bit.
    pub feature: F,
    /// Its name in the specification.
    pub name: &'static str,
    /// What it means if both sides have it.
    pub meaning: &'static str,
}

const fn named<F: Copy>(feature: F, name: &'static str, meaning: &'static str) -> FeatureName<F> {
    FeatureName { feature, name, meaning }
}

/// Names and meanings of the device's bits. Source: VirtIO 1.2 §5.1.3, §6; vhost-user.
pub const DEVICE: [FeatureName<Features>; 16] = [
    named(Features::CSUM, "VIRTIO_NET_F_CSUM", "the device computes checksums of packets that the guest sends"),
    named(Features::GUEST_CSUM, "VIRTIO_NET_F_GUEST_CSUM", "the guest accepts packets without a complete checksum"),
    named(
        Features::MRG_RXBUF,
        "VIRTIO_NET_F_MRG_RXBUF",
        "a packet to the guest may spread over several of its buffers",
    ),
    named(Features::STATUS, "VIRTIO_NET_F_STATUS", "the guest can read whether the link is up (from its frontend)"),
    named(Features::CTRL_VQ, "VIRTIO_NET_F_CTRL_VQ", "the guest has a queue for commands (its frontend answers them)"),
    named(Features::GUEST_ANNOUNCE, "VIRTIO_NET_F_GUEST_ANNOUNCE", "a guest that has migrated announces itself"),
    named(Features::MQ, "VIRTIO_NET_F_MQ", "several pairs of queues"),
    named(
        Features::LOG_ALL,
        "VHOST_F_LOG_ALL",
        "writes to the guest's memory are logged for live migration, including the device's copies",
    ),
    named(Features::ANY_LAYOUT, "VIRTIO_F_ANY_LAYOUT", "header and packet may share a descriptor"),
    named(Features::INDIRECT_DESC, "VIRTIO_F_INDIRECT_DESC", "a descriptor may name a table of descriptors"),
    named(Features::EVENT_IDX, "VIRTIO_F_EVENT_IDX", "each side sets the index at which it wants to be notified"),
    named(Features::PROTOCOL_FEATURES, "VHOST_USER_F_PROTOCOL_FEATURES", "the protocol's own features are negotiated"),
    named(Features::VERSION_1, "VIRTIO_F_VERSION_1", "a device of VirtIO 1.0 or later"),
    named(Features::ACCESS_PLATFORM, "VIRTIO_F_ACCESS_PLATFORM", "addresses go through an IOMMU"),
    named(Features::RING_PACKED, "VIRTIO_F_RING_PACKED", "packed rings instead of split ones"),
    named(Features::IN_ORDER, "VIRTIO_F_IN_ORDER", "buffers come back in the order in which they were made available"),
];

/// Names and meanings of the protocol's bits. Source: vhost-user, "Protocol features".
pub const PROTOCOL: [FeatureName<ProtocolFeatures>; 8] = [
    named(ProtocolFeatures::MQ, "MQ", "the frontend can ask for the number of queues"),
    named(ProtocolFeatures::LOG_SHMFD, "LOG_SHMFD", "the log for live migration is a shared file"),
    named(ProtocolFeatures::RARP, "RARP", "the switch announces a guest that has migrated here"),
    named(ProtocolFeatures::REPLY_ACK, "REPLY_ACK", "the frontend gets the result of each request"),
    named(
        ProtocolFeatures::INFLIGHT_SHMFD,
        "INFLIGHT_SHMFD",
        "descriptors in flight are recorded, so that they survive the switch",
    ),
    named(ProtocolFeatures::RESET_DEVICE, "RESET_DEVICE", "the frontend can reset the device"),
    named(
        ProtocolFeatures::CONFIGURE_MEM_SLOTS,
        "CONFIGURE_MEM_SLOTS",
        "memory can be added and removed while packets flow",
    ),
    named(ProtocolFeatures::STATUS, "STATUS", "the switch gets the driver's status"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_has_one_name() {
        let device = DEVICE.iter().fold(Features::empty(), |all, named| all | named.feature);
        let protocol = PROTOCOL.iter().fold(ProtocolFeatures::empty(), |all, named| all | named.feature);
        assert_eq!((device, protocol), (Features::all(), ProtocolFeatures::all()));
        assert_eq!(Features::all().bits().count_ones() as usize, DEVICE.len());
        assert_eq!(ProtocolFeatures::all().bits().count_ones() as usize, PROTOCOL.len());
    }
}
