//! The white paper's Figures 3 and 10, and the break-even of page migration.

use super::sweep::{axis, lines, measured, published, simulated};
use super::{Mark, Panel, Result, Scale, Shape, Sheet, numbers};
use crate::experiments::vhost::{self, HYBRID, PACKETS, copy_share, forwarding};
use crate::lab::Lab;
use crate::setups::on;
use telpher_device::WqMode;
use telpher_sim::{App, Copies, Lane, Migration, Offload, What};

pub(super) const SHEETS: &[Sheet] = &[
    Sheet {
        id: "vhost-3",
        source: "Intel white paper 758358, Figure 3",
        title: "Cycles of a switch's core in copies of packets to and from a virtual machine",
        how: "As vhost-10, copied by the core. Rates at 64, 256, 512 and 1518 B calibrate the costs of the switch's work; which part of them \
              is copying follows from what lies in the core's cache.",
        claims: &["V-010", "V-011", "V-012", "K-070", "K-071"],
        draw: figure_3,
    },
    Sheet {
        id: "vhost-10",
        source: "Intel white paper 758358, Figure 10 and its numbers in Table 8",
        title: "Packets that a switch's core forwards to and from a virtual machine",
        how: "Telpher's own virtqueues, packets and lanes between a port and a guest, on one core, one device with four engines and two \
              dedicated queues; packets come at 100 Gb/s. Copied by the core, or by the device in batches of a burst; or, which no paper \
              measured, by the core below 300 B and by the device from there on. The core's rates at 64, 256, 512 and 1518 B and the \
              device's at 512 B calibrate the costs of the switch's work.",
        claims: &["V-030", "V-031", "V-032", "V-033", "V-034", "V-035", "K-075", "K-076"],
        draw: figure_10,
    },
    Sheet {
        id: "migration-break-even",
        source: "Baik et al., Accelerating Page Migrations with Intel DSA, offloading costs slide",
        title: "Copying the pages of one migration by the core or by the device",
        how: "The kernel copies pages of 4 KiB that are migrated together: its core one after the other, or a device, with scatter lists, \
              their mapping, descriptors and waiting. The cost of the kernel's path is set by the break-even published.",
        claims: &["P-010", "P-012"],
        draw: break_even,
    },
];

fn figure_10(lab: &Lab) -> Result<Vec<Panel>> {
    const CORE: [&str; 7] = ["V-020", "V-021", "V-022", "V-023", "V-024", "V-025", "V-026"];
    const DEVICE: [&str; 7] = ["V-100", "V-101", "V-102", "V-103", "V-104", "V-105", "V-106"];
    let mut series = Vec::new();
    for (name, copies, claims) in [("by the core", Copies::Core, CORE), ("by the device", Copies::DEVICE, DEVICE)] {
        let rates = PACKETS.map(|packet| forwarding(lab, packet, copies)).into_iter().collect::<Result<Vec<_>>>()?;
        series.push(simulated(name, (0u8..).map(f64::from).zip(rates)));
        series.push(published(name, (0u8..).map(f64::from).zip(claims.map(|claim| numbers(claim).0))));
    }
    let rates = PACKETS.map(|packet| forwarding(lab, packet, HYBRID)).into_iter().collect::<Result<Vec<_>>>()?;
    series.push(simulated("by whoever is quicker", (0u8..).map(f64::from).zip(rates)));
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
        marks: vec![Mark::level("V-010")],
    }])
}

fn break_even(lab: &Lab) -> Result<Vec<Panel>> {
    let lane = Lane { device: 0, wq: 0, shared: false };
    let copying = |together: u32, offload| {
        let app = Migration { pages: u64::from(together) * 4, together, offload, ..Migration::compacting() };
        let scenario = on("gold-6430", 1, WqMode::Dedicated, 1).with("pages", 1, What::App(App::Migration(app)));
        Ok(vhost::measured(&*lab.run(&scenario)?, "copies of a call"))
    };
    let pages = || (0..=9).map(|power| 1u32 << power);
    let series = vec![
        measured("by the core", pages(), |together| copying(together, None))?,
        measured("by the device", pages(), |together| copying(together, Some(Offload { above: 0, lane })))?,
    ];
    let time = axis("time of the copies", "µs", Scale::Log);
    Ok(vec![lines("", axis("pages migrated together", "", Scale::Binary), time, series, vec![Mark::place("P-010")])])
}
