//! `--show-features`: the feature bits offered to guests, those that a guest accepted, and their meanings.

use crate::args::Format;
use serde::Serialize;
use std::fmt::Write;
use telpher_report::csv;
use telpher_vhost::Offer;
use telpher_vhost::feature_names::{DEVICE, FeatureName, PROTOCOL};
use telpher_vhost::layout::Features;
use telpher_vhost::message::ProtocolFeatures;

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

impl Shown {
    /// Combines the offered features with those that a frontend negotiated, if any.
    pub(crate) fn new(offer: &Offer, agreed: Option<(Features, ProtocolFeatures)>) -> Shown {
        let device = DEVICE.iter().map(|&FeatureName { feature: bit, name, meaning }| Bit {
            bit: bit.bits().trailing_zeros(),
            name,
            meaning,
            offered: offer.features.contains(bit),
            agreed: agreed.map(|(features, _)| features.contains(bit)),
        });
        let protocol = PROTOCOL.iter().map(|&FeatureName { feature: bit, name, meaning }| Bit {
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
