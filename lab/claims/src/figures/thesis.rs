//! Fürst, TU Dresden 2024: Figures 3.4 to 3.8.

use super::sweep::{axis, lines, measured, over_sizes, simulated};
use super::{Axis, Mark, Panel, Result, Scale, Shape, Sheet, level_mark, place_mark};
use crate::experiments::thesis::{DESTINATIONS, by_cores, by_software, by_threads, mean, submitted, with_devices};
use crate::lab::Lab;

pub(super) const SHEETS: &[Sheet] = &[
    Sheet {
        id: "thesis-3.4",
        source: "Fürst, TU Dresden 2024, Figure 3.4",
        title: "Throughput of single submissions and of batches",
        how: "One thread copies within node 0 through Intel's DML, a shared queue and one engine, one submission at a \
              time: a copy, or a batch of 50.",
        claims: &["T-010", "T-011", "T-012", "T-013", "T-043"],
        draw: figure_4,
    },
    Sheet {
        id: "thesis-3.5",
        source: "Fürst, TU Dresden 2024, Figure 3.5",
        title: "Throughput of threads that share a queue",
        how: "1, 2 or 12 threads copy within node 0 through DML and the same shared queue, each one copy at a time.",
        claims: &["T-020", "T-021", "T-022"],
        draw: figure_5,
    },
    Sheet {
        id: "thesis-3.6",
        source: "Fürst, TU Dresden 2024, Figure 3.6",
        title: "Throughput from node 0's DDR5 to HBM nodes, by number of devices",
        how: "1 GiB from node 0 to the HBM of node 8 (next to it), 11 (the farthest of the socket), 12 and 15 (the \
              other socket), in equal parts by one device, two (those of source and destination), the socket's four, \
              or all eight; the slowest counts.",
        claims: &["T-030", "T-031", "T-032", "T-033", "T-034", "T-035", "T-036", "T-038"],
        draw: figure_6,
    },
    Sheet {
        id: "thesis-3.7",
        source: "Fürst, TU Dresden 2024, Figure 3.7",
        title: "Mean throughput and scaling over the number of devices",
        how: "The mean of the four destinations of thesis-3.6, and its multiple of one device's.",
        claims: &["T-037", "T-038"],
        draw: figure_7,
    },
    Sheet {
        id: "thesis-3.8",
        source: "Fürst, TU Dresden 2024, Figure 3.8",
        title: "Throughput from node 0's DDR5 to HBM nodes by cores",
        how: "Consecutive copies of 1 MiB from node 0 to an HBM node: (a) by eight cores, one at each node, like DML's \
              software path instead of eight devices; (b) by the twelve cores of node 0.",
        claims: &["T-030", "T-040", "T-041", "T-042"],
        draw: figure_8,
    },
];

fn gibibytes() -> Axis {
    axis("throughput", "GiB/s", Scale::Linear)
}

fn nodes() -> Axis {
    axis("destination", "", Scale::Names(DESTINATIONS.map(|node| format!("node {node}")).into()))
}

/// Bars for the four destinations.
fn bars(title: &str, series: Vec<super::Series>, marks: Vec<Mark>) -> Panel {
    Panel { title: title.into(), x: nodes(), y: gibibytes(), shape: Shape::Bars, series, marks }
}

fn figure_4(lab: &Lab) -> Result<Vec<Panel>> {
    let sizes = || (10..=26).map(|power| 1u32 << power);
    let single = measured("single", sizes(), |size| submitted(lab, size, 1))?;
    let batch = measured("batches of 50", sizes(), |size| submitted(lab, size, 50))?;
    let marks = vec![place_mark("T-010"), level_mark("T-013")];
    Ok(vec![over_sizes("", gibibytes(), vec![single, batch], marks)])
}

fn figure_5(lab: &Lab) -> Result<Vec<Panel>> {
    let mut series = Vec::new();
    for (name, size) in [("1 MiB", 1 << 20), ("1 GiB", 1 << 30)] {
        series.push(simulated(name, [1.0, 2.0, 12.0].into_iter().zip(by_threads(lab, size)?)));
    }
    Ok(vec![lines("", axis("threads", "", Scale::Linear), gibibytes(), series, Vec::new())])
}

fn figure_6(lab: &Lab) -> Result<Vec<Panel>> {
    let mut series = Vec::new();
    for (name, devices) in [("1 device", 1), ("2: push and pull", 2), ("4: the socket's", 4), ("8: all", 8)] {
        series.push(simulated(name, (0u8..).map(f64::from).zip(with_devices(lab, devices)?)));
    }
    Ok(vec![bars("", series, vec![level_mark("T-032"), level_mark("T-030")])])
}

fn figure_7(lab: &Lab) -> Result<Vec<Panel>> {
    let counts = || [1u32, 2, 4, 8];
    let means =
        measured("mean of four destinations", counts(), |devices| Ok(mean(&with_devices(lab, devices as usize)?)))?;
    let one = means.points[0].1;
    let factors = simulated("multiple of one device", means.points.iter().map(|point| (point.0, point.1 / one)));
    let x = || axis("devices", "", Scale::Binary);
    Ok(vec![
        lines("(a) throughput", x(), gibibytes(), vec![means], Vec::new()),
        lines("(b) scaling", x(), axis("multiple of one device", "", Scale::Linear), vec![factors], Vec::new()),
    ])
}

fn figure_8(lab: &Lab) -> Result<Vec<Panel>> {
    let panel = |title, name: &str, rate: &dyn Fn(usize) -> Result<f64>| {
        let rates = DESTINATIONS.map(rate).into_iter().collect::<Result<Vec<_>>>()?;
        let series = simulated(name, (0u8..).map(f64::from).zip(rates));
        Ok(bars(title, vec![series], vec![level_mark("T-030")]))
    };
    Ok(vec![
        panel("(a) the library's software path", "8 cores", &|dst| by_software(lab, 8, dst))?,
        panel("(b) all cores of the node", "12 cores", &|dst| by_cores(lab, 12, dst))?,
    ])
}
