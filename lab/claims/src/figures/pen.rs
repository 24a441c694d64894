//! From scenarios to points.

use super::{Axis, Fact, Mark, Origin, Panel, Profile, Scale, Series, Shape};
use crate::setups;
use std::collections::BTreeSet;
use telpher_abi::Opcode;
use telpher_device::WqMode;
use telpher_sim::{By, Lane, Outcome, Scenario, ScenarioError, Stream, What};

/// 256 B, 512 B … 1 MiB: what the paper's figures have on their horizontal axis.
pub(super) const SIZES: [u32; 13] = doubling(256);
/// 64 B, 128 B … 1 MiB.
pub(super) const FROM_64: [u32; 15] = doubling(64);

/// Descriptors in flight of an asynchronous thread. Source: KUPER §4.1.
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

/// Simulates, and remembers which machines it was.
#[derive(Debug, Default)]
pub(super) struct Pen {
    profiles: BTreeSet<Profile>,
}

/// What came of scenarios, by their place on an axis.
#[derive(Debug)]
pub(super) struct Runs(Vec<(f64, Outcome)>);

impl Pen {
    /// One scenario.
    pub(super) fn one(&mut self, scenario: &Scenario) -> Result<Outcome, ScenarioError> {
        let outcome = scenario.simulate()?;
        self.profiles.insert(Profile { name: outcome.profile.clone(), hash: outcome.hash });
        Ok(outcome)
    }

    /// One scenario for each place.
    pub(super) fn run<X: Copy + Into<f64>>(
        &mut self,
        places: impl IntoIterator<Item = X>,
        scenario: impl Fn(X) -> Scenario,
    ) -> Result<Runs, ScenarioError> {
        let outcomes = places.into_iter().map(|x| Ok((x.into(), self.one(&scenario(x))?)));
        outcomes.collect::<Result<_, _>>().map(Runs)
    }

    pub(super) fn profiles(self) -> Vec<Profile> {
        self.profiles.into_iter().collect()
    }
}

impl Runs {
    /// One number of each.
    pub(super) fn series(&self, name: impl Into<String>, read: impl Fn(&Outcome) -> f64) -> Series {
        simulated(name, self.0.iter().map(|(x, outcome)| (*x, read(outcome))))
    }
}

/// A series from simulated points.
pub(super) fn simulated(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
    Series { name: name.into(), origin: Origin::Simulated, points: points.into_iter().collect() }
}

/// Gigabytes a second of all loads together.
pub(super) fn rate(outcome: &Outcome) -> f64 {
    let bytes: u64 = outcome.loads.iter().map(|load| load.bytes).sum();
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let bytes = bytes as f64;
    bytes / outcome.took.as_secs_f64() / 1e9
}

/// As many submissions as a steady state needs: some two thousand operations, and each place in the queue several times. One at
/// a time, all are alike, and fifty do.
pub(super) fn enough(stream: Stream) -> Stream {
    let submissions = match stream.depth {
        1 => 50,
        depth => (2000 / u64::from(stream.batch.max(1))).max(u64::from(depth) * 4),
    };
    Stream { submissions, ..stream }
}

/// A copy on the paper's machine.
pub(super) fn copy(size: u32, depth: u32, batch: u32) -> Stream {
    enough(Stream { depth, batch, ..Stream::of(Opcode::MemoryMove, size) })
}

/// One thread that does this through one dedicated queue of 128 entries with so many engines.
pub(super) fn alone(stream: Stream, engines: u32) -> Scenario {
    setups::asplos(1, WqMode::Dedicated, engines).with("copies", 1, What::Stream(stream))
}

/// Through the queue of a device.
pub(super) fn lane(device: u16, wq: usize, shared: bool) -> By {
    By::Device(Lane { device, wq, shared })
}

/// The axis of sizes.
pub(super) fn transfer_size() -> Axis {
    axis("transfer size", "B", Scale::Binary)
}

pub(super) fn axis(label: &str, unit: &'static str, scale: Scale) -> Axis {
    Axis { label: label.into(), unit, scale }
}

/// GB/s from zero.
pub(super) fn throughput() -> Axis {
    axis("throughput", "GB/s", Scale::Linear)
}

/// Lines over sizes.
pub(super) fn over_sizes(title: &str, y: Axis, series: Vec<Series>, marks: Vec<Mark>) -> Panel {
    Panel { title: title.into(), x: transfer_size(), y, shape: Shape::Lines, series, marks }
}

/// A fact with what is seen of it.
pub(super) fn fact(
    place: &'static str,
    says: &'static str,
    agrees: impl Into<Option<bool>>,
    simulated: String,
) -> Fact {
    Fact { place, says, simulated, agrees: agrees.into() }
}

/// `4 KiB`, `5.2 KiB`, `300 B`; `never` for nowhere.
pub(super) fn bytes(size: impl Into<Option<f64>>) -> String {
    match size.into() {
        None => "never".into(),
        Some(size) if size < 1000.0 => format!("{size:.0} B"),
        Some(size) if size < 1024.0 * 1000.0 => format!("{} KiB", short(size / 1024.0)),
        Some(size) => format!("{} MiB", short(size / 1024.0 / 1024.0)),
    }
}

/// One digit behind the point where there is something.
fn short(number: f64) -> String {
    let text = format!("{number:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}
