//! The feature bits of a vhost-user device: offered to guests, those that a guest accepted, and their meanings.

use crate::deliver::Format;
use crate::{csv, schema};
use serde::Serialize;
use std::fmt::Write;

/// One bit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FeatureBit {
    /// Its number.
    pub bit: u32,
    /// Its name in the specification.
    pub name: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// Whether the switch offers it.
    pub offered: bool,
    /// Whether a frontend accepted it; `None` until one has negotiated.
    pub agreed: Option<bool>,
}

/// One bit, as a line of CSV.
#[derive(Clone, Serialize)]
struct BitRow {
    /// `device` or `protocol`.
    of: &'static str,
    #[serde(flatten)]
    bit: FeatureBit,
}

/// The offered and negotiated features.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct FeatureTable {
    /// Of the device (VirtIO 1.2 §5.1.3 and §6).
    pub device: Vec<FeatureBit>,
    /// Of the protocol (vhost-user, "Protocol features").
    pub protocol: Vec<FeatureBit>,
}

impl FeatureTable {
    /// Returns the features as text, JSON or CSV.
    pub fn text(&self, format: Format) -> String {
        format.render(schema::VHOST_FEATURES, self, || self.table(), || self.csv())
    }

    fn csv(&self) -> String {
        let bits = |of: &'static str, bits: &[FeatureBit]| -> Vec<BitRow> {
            bits.iter().map(|bit| BitRow { of, bit: bit.clone() }).collect()
        };
        csv::rows(&[bits("device", &self.device), bits("protocol", &self.protocol)].concat())
    }

    fn table(&self) -> String {
        let mut text = String::new();
        for (title, bits) in [("Device features", &self.device), ("Protocol features", &self.protocol)] {
            let asked = bits.iter().any(|bit| bit.agreed.is_some());
            let _ = writeln!(text, "{title}{}", if asked { " (offered, agreed on)" } else { " (offered)" });
            for bit in bits {
                let word = |yes: bool| if yes { "yes" } else { "-" };
                let agreed = bit.agreed.map_or(String::new(), |agreed| format!(" {:<4}", word(agreed)));
                let (name, meaning) = (bit.name, bit.meaning);
                let _ = writeln!(text, "  {:>2}  {:<4}{agreed} {name:<31} {meaning}", bit.bit, word(bit.offered));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bit(agreed: Option<bool>) -> FeatureBit {
        FeatureBit { bit: 15, name: "VIRTIO_NET_F_MRG_RXBUF", meaning: "several buffers", offered: true, agreed }
    }

    #[test]
    fn negotiated_features_are_listed_next_to_the_offered_ones() {
        let table = |agreed| FeatureTable { device: vec![bit(agreed)], protocol: vec![bit(agreed)] };
        let offered = table(None).text(Format::Table);
        assert!(offered.contains("Device features (offered)\n  15  yes  VIRTIO_NET_F_MRG_RXBUF"), "{offered}");
        let agreed = table(Some(false)).text(Format::Table);
        assert!(agreed.contains("(offered, agreed on)\n  15  yes  -    VIRTIO_NET_F_MRG_RXBUF"), "{agreed}");
        let csv = table(Some(true)).text(Format::Csv);
        assert_eq!(csv.lines().count(), 3);
        assert!(csv.contains("device") && csv.contains("protocol"), "{csv}");
    }
}
