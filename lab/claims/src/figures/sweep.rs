//! Points of figures from scenarios.

use super::{Axis, Mark, Origin, Panel, Result, Scale, Series, Shape};
use crate::lab::Lab;
use crate::verdict::quantity;
use std::rc::Rc;
use telpher_sim::{Outcome, Scenario};

/// 256 B, 512 B … 1 MiB: the horizontal axis of most of the paper's figures.
pub(super) const SIZES: [u32; 13] = doubling(256);
/// 64 B, 128 B … 1 MiB.
pub(super) const FROM_64: [u32; 15] = doubling(64);

/// Operations in flight of an asynchronous thread. Source: KUPER §4.1.
pub(super) const DEPTH: u32 = 32;

const fn doubling<const N: usize>(first: u32) -> [u32; N] {
    let mut sizes = [first; N];
    let mut power = 0;
    while power < N {
        sizes[power] = first << power;
        power += 1;
    }
    sizes
}

/// The results of scenarios, by their position on an axis.
#[derive(Debug)]
pub(super) struct Runs(Vec<(f64, Rc<Outcome>)>);

/// One scenario for each position.
pub(super) fn runs<X: Copy + Into<f64>>(
    lab: &Lab,
    places: impl IntoIterator<Item = X>,
    scenario: impl Fn(X) -> Scenario,
) -> Result<Runs> {
    places.into_iter().map(|x| Ok((x.into(), lab.run(&scenario(x))?))).collect::<Result<_>>().map(Runs)
}

impl Runs {
    /// One number of each result.
    pub(super) fn series(&self, name: impl Into<String>, read: impl Fn(&Outcome) -> f64) -> Series {
        simulated(name, self.0.iter().map(|(x, outcome)| (*x, read(outcome))))
    }

    /// The throughput of each result.
    pub(super) fn rates(&self, name: impl Into<String>) -> Series {
        self.series(name, rate)
    }
}

/// Throughput of one scenario for each position.
pub(super) fn rates<X: Copy + Into<f64>>(
    lab: &Lab,
    name: impl Into<String>,
    places: impl IntoIterator<Item = X>,
    scenario: impl Fn(X) -> Scenario,
) -> Result<Series> {
    Ok(runs(lab, places, scenario)?.rates(name))
}

/// A series of the values of a function.
pub(super) fn measured<X: Copy + Into<f64>>(
    name: impl Into<String>,
    places: impl IntoIterator<Item = X>,
    mut measure: impl FnMut(X) -> Result<f64>,
) -> Result<Series> {
    let points = places.into_iter().map(|x| Ok((x.into(), measure(x)?)));
    Ok(simulated(name, points.collect::<Result<Vec<_>>>()?))
}

/// A simulated series.
pub(super) fn simulated(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
    Series { name: name.into(), origin: Origin::Simulated, points: points.into_iter().collect() }
}

/// A published series.
pub(super) fn published(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
    Series { origin: Origin::Published, ..simulated(name, points) }
}

/// Gigabytes a second of all loads together.
pub(super) fn rate(outcome: &Outcome) -> f64 {
    outcome.loads.iter().map(|load| load.gigabytes_per_second()).sum()
}

/// The axis of sizes.
pub(super) fn transfer_size() -> Axis {
    axis("transfer size", "B", Scale::Binary)
}

pub(super) fn axis(label: &str, unit: &'static str, scale: Scale) -> Axis {
    Axis { label: label.into(), unit, scale }
}

/// A linear axis for GB/s.
pub(super) fn throughput() -> Axis {
    axis("throughput", "GB/s", Scale::Linear)
}

/// A line chart over sizes.
pub(super) fn over_sizes(title: impl Into<String>, y: Axis, series: Vec<Series>, marks: Vec<Mark>) -> Panel {
    lines(title, transfer_size(), y, series, marks)
}

/// A line chart.
pub(super) fn lines(title: impl Into<String>, x: Axis, y: Axis, series: Vec<Series>, marks: Vec<Mark>) -> Panel {
    Panel { title: title.into(), x, y, shape: Shape::Lines, series, marks }
}

/// `4 KiB`, `300 B`.
pub(super) fn bytes(size: impl Into<f64>) -> String {
    quantity(size.into(), "bytes")
}
