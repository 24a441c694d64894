//! The raw series of LightDSA, point by point.

use crate::lab::Lab;
use crate::published::{ExecutedBy as MeasuredOn, Series, Use};
use crate::setups::{alone, asplos, one_by_one};
use telpher_abi::Opcode;
use telpher_device::WqMode;
use telpher_sim::{AccessPattern, BufferPlacement, ExecutedBy, Library, Scenario, ScenarioError, Stream};

/// A size with its published and simulated rates.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// Bytes of an operation.
    pub size: u32,
    /// Published rate, MiB a second.
    pub published: f64,
    /// Simulated rate, MiB a second.
    pub simulated: f64,
}

impl Point {
    /// Deviation, as a share of the published rate.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        self.simulated / self.published - 1.0
    }
}

/// A series with its simulation.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The series.
    pub series: &'static Series,
    /// Its points by size.
    pub points: Vec<Point>,
}

impl Comparison {
    /// Mean absolute deviation.
    #[must_use]
    pub fn mean(&self) -> f64 {
        mean(self.points.iter())
    }

    /// The point with the largest deviation.
    #[must_use]
    pub fn worst(&self) -> Option<&Point> {
        self.points.iter().max_by(|a, b| a.deviation().abs().total_cmp(&b.deviation().abs()))
    }

    /// True if several descriptors compete for a device. One at a time, and on a core alone, nothing does.
    #[must_use]
    pub fn contends(&self) -> bool {
        self.series.by == MeasuredOn::Device && !self.series.id.contains(".single.")
    }

    /// True if it is held out.
    #[must_use]
    pub fn is_held_out(&self) -> bool {
        self.series.usage == Use::Validate
    }

    /// True if it is held out, and a device's.
    #[must_use]
    pub fn is_held_out_device(&self) -> bool {
        self.series.usage == Use::Validate && self.series.by == MeasuredOn::Device
    }

    /// True if it is held out, and a core's.
    #[must_use]
    pub fn is_held_out_core(&self) -> bool {
        self.series.usage == Use::Validate && self.series.by == MeasuredOn::Cpu
    }
}

/// Mean absolute deviation of points.
#[must_use]
#[allow(clippy::cast_precision_loss, reason = "for people")]
pub fn mean<'a>(points: impl Iterator<Item = &'a Point>) -> f64 {
    let (count, sum) = points.fold((0usize, 0.0), |(count, sum), point| (count + 1, sum + point.deviation().abs()));
    if count == 0 { 0.0 } else { sum / count as f64 }
}

/// Simulates every point of a series.
///
/// # Errors
/// The machine lacks something, or a device refuses something.
pub fn compare(lab: &Lab, series: &'static Series) -> Result<Comparison, ScenarioError> {
    let mut points = Vec::new();
    for (size, published) in series.size.iter().zip(&series.mib_per_s) {
        let simulated = mebibytes(lab, series, *size)?;
        points.push(Point { size: *size, published: *published, simulated });
    }
    Ok(Comparison { series, points })
}

/// Bytes that the artifact passes through in every series, in pages of 4 KiB.
const WALK: u64 = 4 << 30;

fn mebibytes(lab: &Lab, series: &Series, size: u32) -> Result<f64, ScenarioError> {
    let outcome = lab.run(&scenario(series, size))?;
    Ok(outcome.loads[0].gigabytes_per_second() * 1e9 / 1_048_576.0)
}

fn operation(series: &Series) -> Opcode {
    Opcode::ALL.iter().copied().find(|op| op.name() == series.op).unwrap_or(Opcode::MemoryMove)
}

/// The measurement of one size as a scenario.
#[must_use]
pub fn scenario(series: &Series, size: u32) -> Scenario {
    // The library builds each descriptor.
    let far = BufferPlacement { footprint: WALK, ..BufferPlacement::on(0) };
    let one = Stream {
        by: ExecutedBy::SHARED,
        library: Library::Lean,
        src: far,
        dst: far,
        ..one_by_one(operation(series), size, 1)
    };
    // id = lightdsa.ENGINES.HOW.…, or lightdsa.naive.…
    let mut words = series.id.split('.').skip(1);
    let how = match words.next() {
        Some("naive") => "naive",
        _ => words.next().unwrap_or(""),
    };
    let stream = match (series.by, how) {
        (MeasuredOn::Cpu, how) => {
            let walk = if how == "random" { AccessPattern::Random } else { AccessPattern::Sequential };
            Stream { by: ExecutedBy::Cpu, library: Library::Raw, walk, submissions: 400, ..one }
        }
        (MeasuredOn::Device, "single") => one,
        (MeasuredOn::Device, "sg64") => Stream { depth: 128, submissions: 3000, ..one },
        (MeasuredOn::Device, "batch") => Stream { depth: 20, batch: 32, submissions: 300, ..one },
        (MeasuredOn::Device, "naive") => {
            // Buffers begin at 0x555 of a page, as in the artifact's motivation_speed_test.cpp; written data is read
            // back.
            let askew = BufferPlacement { skew: 0x555, ..far };
            Stream { src: askew, dst: askew, readback: true, depth: 80, batch: 32, submissions: 300, ..one }
        }
        (MeasuredOn::Device, _) => Stream { depth: 80, batch: 32, submissions: 600, ..one },
    };
    alone(asplos(1, WqMode::Shared, series.engines.max(1)), stream)
}
