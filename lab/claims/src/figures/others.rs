//! The white paper's Figures 3 and 10.

use super::sweep::{axis, published, simulated};
use super::{Panel, Result, Scale, Shape, Sheet, level_mark, numbers};
use crate::experiments::vhost::{HYBRID, PACKETS, copy_share, forwarding};
use crate::lab::Lab;
use telpher_sim::CopyBy;

pub(super) const SHEETS: &[Sheet] = &[
    Sheet {
        id: "vhost-3",
        source: "Intel white paper 758358, Figure 3",
        title: "Cycles of a switch's core in copies of packets to and from a virtual machine",
        how: "As vhost-10, copied by the core. Rates at 64, 256, 512 and 1518 B calibrate the costs of the switch's \
              work; the share of copying follows from the contents of the core's cache.",
        claims: &["V-010", "V-011", "V-012", "K-070", "K-071"],
        draw: figure_3,
    },
    Sheet {
        id: "vhost-10",
        source: "Intel white paper 758358, Figure 10 and its numbers in Table 8",
        title: "Packets that a switch's core forwards to and from a virtual machine",
        how: "Telpher's own virtqueues, packets and DMA queues between a port and a guest, on one core, one device \
              with four engines and two dedicated queues; packets arrive at 100 Gb/s. Copied by the core, or by the \
              device in batches of a burst; or (not measured in any paper) by the core below 300 B and by the device \
              from that size on. The core's rates at 64, 256, 512 and 1518 B and the device's at 512 B calibrate the \
              costs of the switch's work.",
        claims: &["V-030", "V-031", "V-032", "V-033", "V-034", "V-035", "K-075", "K-076"],
        draw: figure_10,
    },
];

fn figure_10(lab: &Lab) -> Result<Vec<Panel>> {
    const CORE: [&str; 7] = ["V-020", "V-021", "V-022", "V-023", "V-024", "V-025", "V-026"];
    const DEVICE: [&str; 7] = ["V-100", "V-101", "V-102", "V-103", "V-104", "V-105", "V-106"];
    let mut series = Vec::new();
    for (name, copies, claims) in [("by the core", CopyBy::Core, CORE), ("by the device", CopyBy::DEVICE, DEVICE)] {
        let rates = PACKETS.map(|packet| forwarding(lab, packet, copies)).into_iter().collect::<Result<Vec<_>>>()?;
        series.push(simulated(name, (0u8..).map(f64::from).zip(rates)));
        series.push(published(name, (0u8..).map(f64::from).zip(claims.map(|claim| numbers(claim).0))));
    }
    let rates = PACKETS.map(|packet| forwarding(lab, packet, HYBRID)).into_iter().collect::<Result<Vec<_>>>()?;
    series.push(simulated("by the faster of both", (0u8..).map(f64::from).zip(rates)));
    Ok(vec![Panel {
        title: String::new(),
        x: axis("packet", "", Scale::Names(PACKETS.map(|packet| format!("{packet} B")).into())),
        y: axis("forwarding rate", "Mpps", Scale::Linear),
        shape: Shape::Bars,
        series,
        marks: Vec::new(),
    }])
}

fn figure_3(lab: &Lab) -> Result<Vec<Panel>> {
    let shares = PACKETS.map(|packet| copy_share(lab, packet)).into_iter().collect::<Result<Vec<_>>>()?;
    let of =
        |name, share: fn(f64) -> f64| simulated(name, (0u8..).map(f64::from).zip(shares.iter().copied().map(share)));
    Ok(vec![Panel {
        title: String::new(),
        x: axis("packet", "", Scale::Names(PACKETS.map(|packet| format!("{packet} B")).into())),
        y: axis("cycles of the core", "%", Scale::Linear),
        shape: Shape::Stacks,
        series: vec![of("copies", |share| share), of("all else", |share| 100.0 - share)],
        marks: vec![level_mark("V-010")],
    }])
}
