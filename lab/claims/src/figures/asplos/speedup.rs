//! The device against a core: Figure 2.

use crate::figures::pen::{DEPTH, FROM_64, Pen, alone, axis, bytes, enough, fact, over_sizes, rate, simulated};
use crate::figures::{At, Drawing, Mark, Panel, Scale, Series};
use telpher_abi::Opcode;
use telpher_sim::{By, ScenarioError, Stream};

/// What the legend calls it, the operation, whether its results go to the cache.
const OPERATIONS: [(&str, Opcode, bool); 5] = [
    ("copy", Opcode::MemoryMove, false),
    ("fill", Opcode::Fill, true),
    ("fill, past the cache", Opcode::Fill, false),
    ("compare", Opcode::Compare, false),
    ("compare with a pattern", Opcode::ComparePattern, false),
];

fn panel(pen: &mut Pen, title: &str, depth: u32, marks: Vec<Mark>) -> Result<Panel, ScenarioError> {
    let mut series = Vec::new();
    for (name, op, cache_control) in OPERATIONS {
        let stream = |size| Stream { depth, cache_control, ..Stream::of(op, size) };
        let device = pen.run(FROM_64, |size| alone(enough(stream(size)), 1))?.series(name, rate);
        let core =
            pen.run(FROM_64, |size| alone(enough(Stream { by: By::Cpu, ..stream(size) }), 1))?.series(name, rate);
        let ratios = device.points.iter().zip(&core.points).map(|(device, core)| (device.0, device.1 / core.1));
        series.push(simulated(name, ratios));
    }
    let faster = axis("device's throughput over a core's", "", Scale::Log);
    Ok(over_sizes(title, faster, series, marks))
}

fn crossings(panel: &Panel) -> String {
    let of = |series: &Series| format!("{} from {}", series.name, bytes(series.reaches(1.0)));
    panel.series.iter().map(of).collect::<Vec<_>>().join(", ")
}

/// The sizes from which the device is faster, all in a range.
fn all_within(panel: &Panel, low: f64, high: f64) -> bool {
    panel.series.iter().all(|series| series.reaches(1.0).is_some_and(|size| (low..=high).contains(&size)))
}

pub(super) fn figure_2(pen: &mut Pen) -> Result<Drawing, ScenarioError> {
    let pays_from = |fact, size| vec![Mark { fact, at: At::Place(size) }, Mark { fact, at: At::Level(1.0) }];
    let one = panel(pen, "(a) one at a time", 1, pays_from(0, 4096.0))?;
    let many = panel(pen, "(b) asynchronous, 32 in flight", DEPTH, pays_from(1, 256.0))?;
    let facts = vec![
        fact(
            "§4.2",
            "One at a time, the device pays above 4 KB.",
            all_within(&one, 2048.0, 8192.0),
            format!("The device is faster: {}.", crossings(&one)),
        ),
        fact(
            "§4.2",
            "Asynchronously, it passes software much earlier, around 256 bytes.",
            all_within(&many, 128.0, 512.0),
            format!("The device is faster: {}.", crossings(&many)),
        ),
    ];
    let how = "One thread, one dedicated queue, one engine, no batches, memory of the device's own socket; against one core that \
               does the same in software with nothing in its caches. Descriptors are there already: their allocation counts on \
               neither side.";
    Ok(Drawing { how, panels: vec![one, many], facts })
}
