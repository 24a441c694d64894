//! `--show-features`: the feature bits offered to guests, those that a guest accepted, and their meanings.

use crate::args::Format;
use serde::Serialize;
use std::fmt::Write;
use telpher_report::csv;
use telpher_vhost::Offer;
use telpher_vhost::message::ProtocolFeatures;
use telpher_vhost::words::Features;

/// One bit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Bit {
    bit: u32,
    /// Its name in the specification.
    name: &'static str,
    meaning: &'static str,
    offered: bool,
    /// `None` until a frontend has negotiated.
    agreed: Option<bool>,
}

/// One bit, as a line of CSV.
#[derive(Clone, Serialize)]
struct BitRow {
    /// `device` or `protocol`.
    of: &'static str,
    #[serde(flatten)]
    bit: Bit,
}

/// The offered and negotiated features.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Shown {
    /// Of the device (VirtIO 1.2 §5.1.3 and §6).
    device: Vec<Bit>,
    /// Of the protocol (vhost-user, "Protocol features").
    protocol: Vec<Bit>,
}

/// Names and meanings of the device's bits. Source: VirtIO 1.2 §5.1.3, §6; vhost-user.
const DEVICE: [(Features, &str, &str); 16] = [
    (Features::CSUM, "VIRTIO_NET_F_CSUM", "the device computes checksums of packets that the guest sends"),
    (Features::GUEST_CSUM, "VIRTIO_NET_F_GUEST_CSUM", "the guest accepts packets without a complete checksum"),
    (Features::MRG_RXBUF, "VIRTIO_NET_F_MRG_RXBUF", "a packet to the guest may spread over several of its buffers"),
    (Features::STATUS, "VIRTIO_NET_F_STATUS", "the guest can read whether the link is up (from its frontend)"),
    (Features::CTRL_VQ, "VIRTIO_NET_F_CTRL_VQ", "the guest has a queue for commands (its frontend answers them)"),
    (Features::GUEST_ANNOUNCE, "VIRTIO_NET_F_GUEST_ANNOUNCE", "a guest that has migrated announces itself"),
    (Features::MQ, "VIRTIO_NET_F_MQ", "several pairs of queues"),
    (
        Features::LOG_ALL,
        "VHOST_F_LOG_ALL",
        "writes to the guest's memory are logged for live migration, including the device's copies",
    ),
    (Features::ANY_LAYOUT, "VIRTIO_F_ANY_LAYOUT", "header and packet may share a descriptor"),
    (Features::INDIRECT_DESC, "VIRTIO_F_INDIRECT_DESC", "a descriptor may name a table of descriptors"),
    (Features::EVENT_IDX, "VIRTIO_F_EVENT_IDX", "each side sets the index at which it wants to be notified"),
    (Features::PROTOCOL_FEATURES, "VHOST_USER_F_PROTOCOL_FEATURES", "the protocol's own features are negotiated"),
    (Features::VERSION_1, "VIRTIO_F_VERSION_1", "a device of VirtIO 1.0 or later"),
    (Features::ACCESS_PLATFORM, "VIRTIO_F_ACCESS_PLATFORM", "addresses go through an IOMMU"),
    (Features::RING_PACKED, "VIRTIO_F_RING_PACKED", "packed rings instead of split ones"),
    (Features::IN_ORDER, "VIRTIO_F_IN_ORDER", "buffers come back in the order in which they were made available"),
];

/// Names and meanings of the protocol's bits. Source: vhost-user, "Protocol features".
const PROTOCOL: [(ProtocolFeatures, &str, &str); 8] = [
    (ProtocolFeatures::MQ, "MQ", "the frontend can ask for the number of queues"),
    (ProtocolFeatures::LOG_SHMFD, "LOG_SHMFD", "the log for live migration is a shared file"),
    (ProtocolFeatures::RARP, "RARP", "the switch announces a guest that has migrated here"),
    (ProtocolFeatures::REPLY_ACK, "REPLY_ACK", "the frontend gets the result of each request"),
    (
        ProtocolFeatures::INFLIGHT_SHMFD,
        "INFLIGHT_SHMFD",
        "descriptors in flight are recorded, so that they survive the switch",
    ),
    (ProtocolFeatures::RESET_DEVICE, "RESET_DEVICE", "the frontend can reset the device"),
    (
        ProtocolFeatures::CONFIGURE_MEM_SLOTS,
        "CONFIGURE_MEM_SLOTS",
        "memory can be added and removed while packets flow",
    ),
    (ProtocolFeatures::STATUS, "STATUS", "the switch gets the driver's status"),
];

impl Shown {
    /// Combines the offered features with those that a frontend negotiated, if any.
    pub(crate) fn new(offer: &Offer, agreed: Option<(Features, ProtocolFeatures)>) -> Shown {
        let device = DEVICE.iter().map(|&(bit, name, meaning)| Bit {
            bit: bit.bits().trailing_zeros(),
            name,
            meaning,
            offered: offer.features.contains(bit),
            agreed: agreed.map(|(features, _)| features.contains(bit)),
        });
        let protocol = PROTOCOL.iter().map(|&(bit, name, meaning)| Bit {
            bit: bit.bits().trailing_zeros(),
            name,
            meaning,
            offered: offer.protocol.contains(bit),
            agreed: agreed.map(|(_, protocol)| protocol.contains(bit)),
        });
        Shown { device: device.collect(), protocol: protocol.collect() }
    }

    /// Returns the features as text, JSON or CSV.
    pub(crate) fn text(&self, format: Format) -> String {
        match format {
            Format::Json => serde_json::to_string_pretty(self).expect("plain data"),
            Format::Csv => {
                let bits = |of: &'static str, bits: &[Bit]| -> Vec<BitRow> {
                    bits.iter().map(|bit| BitRow { of, bit: bit.clone() }).collect()
                };
                csv::rows(&[bits("device", &self.device), bits("protocol", &self.protocol)].concat())
            }
            Format::Table => {
                let mut text = String::new();
                for (title, bits) in [("Device features", &self.device), ("Protocol features", &self.protocol)] {
                    let asked = bits.iter().any(|bit| bit.agreed.is_some());
                    let _ = writeln!(text, "{title}{}", if asked { " (offered, agreed on)" } else { " (offered)" });
                    for bit in bits {
                        let word = |yes: bool| if yes { "yes" } else { "-" };
                        let agreed = bit.agreed.map_or(String::new(), |agreed| format!(" {:<4}", word(agreed)));
                        let _ = writeln!(
                            text,
                            "  {:>2}  {:<4}{agreed} {:<31} {}",
                            bit.bit,
                            word(bit.offered),
                            bit.name,
                            bit.meaning
                        );
                    }
                }
                text
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offered_bit_has_a_name_and_a_meaning() {
        let offer = Offer::of_pairs(1);
        let shown = Shown::new(&offer, None);
        let bits = |bits: &[Bit]| bits.iter().filter(|bit| bit.offered).fold(0, |sum, bit| sum | 1_u64 << bit.bit);
        assert_eq!(bits(&shown.device), offer.features.bits());
        assert_eq!(bits(&shown.protocol), offer.protocol.bits());
        assert_eq!(Features::all().bits().count_ones() as usize, DEVICE.len());
        assert_eq!(ProtocolFeatures::all().bits().count_ones() as usize, PROTOCOL.len());
    }

    #[test]
    fn negotiated_features_are_listed_next_to_the_offered_ones() {
        let agreed = (Features::VERSION_1 | Features::RING_PACKED, ProtocolFeatures::MQ);
        let text = Shown::new(&Offer::of_pairs(1), Some(agreed)).text(Format::Table);
        assert!(text.contains("  34  yes  yes  VIRTIO_F_RING_PACKED"), "{text}");
        assert!(text.contains("  15  yes  -    VIRTIO_NET_F_MRG_RXBUF"), "{text}");
        assert!(text.contains("   0  yes  yes  MQ"), "{text}");
        assert!(!Shown::new(&Offer::of_pairs(1), None).text(Format::Table).contains("(offered, agreed on)"));
    }
}
