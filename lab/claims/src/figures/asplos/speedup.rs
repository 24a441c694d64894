//! The device against a core: Figure 2.

use crate::experiments::measure::{core_alone, core_walks, one_by_one_gigabytes};
use crate::figures::sweep::{DEPTH, FROM_64, axis, measured, over_sizes, rate};
use crate::figures::{At, Mark, Panel, Result, Scale, place_mark};
use crate::lab::Lab;
use crate::setups::{alone, asplos, flushed, in_flight};
use telpher_abi::Opcode;
use telpher_device::WqMode;
use telpher_sim::{AccessPattern, BufferPlacement, Stream};

/// The name in the legend, the operation, and whether its results go to the cache.
const OPERATIONS: [(&str, Opcode, bool); 5] = [
    ("copy", Opcode::MemoryMove, false),
    ("fill", Opcode::Fill, true),
    ("fill past the cache", Opcode::Fill, false),
    ("compare", Opcode::Compare, false),
    ("compare with a pattern", Opcode::ComparePattern, false),
];

fn panel(lab: &Lab, title: &str, depth: u32, claim: &'static str) -> Result<Panel> {
    let setup = || asplos(1, WqMode::Dedicated, 1);
    let mut series = Vec::new();
    for (name, op, cache_control) in OPERATIONS {
        series.push(measured(name, FROM_64, |size| {
            let (device, nanos) = match depth {
                1 => (
                    one_by_one_gigabytes(lab, setup(), Stream { cache_control, ..flushed(op, size, 1) })?,
                    core_alone(lab, setup(), op, size, BufferPlacement::on(0), BufferPlacement::on(0))?,
                ),
                depth => {
                    let stream = Stream { cache_control, ..in_flight(op, size, depth, 1) };
                    let rate = rate(&*lab.run(&alone(setup(), stream))?);
                    (rate, core_walks(lab, setup(), op, size, AccessPattern::Random)?)
                }
            };
            Ok(device * nanos / f64::from(size))
        })?);
    }
    let marks = vec![place_mark(claim), Mark { claim, at: At::Level(1.0) }];
    Ok(over_sizes(title, axis("device's throughput over a core's", "", Scale::Log), series, marks))
}

pub(super) fn figure_2(lab: &Lab) -> Result<Vec<Panel>> {
    Ok(vec![
        panel(lab, "(a) one at a time", 1, "K-021")?,
        panel(lab, "(b) asynchronous, 32 in flight", DEPTH, "K-022")?,
    ])
}
