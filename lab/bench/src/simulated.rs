//! What a real device would give: the operations and sizes of a sweep, in simulated time.

use serde::Serialize;
use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_sim::{Layout, Machine, Scenario, Stream, queue_ids};

/// The machine that is simulated: the one whose figures are best known.
const PROFILE: &str = "spr-asplos";

/// Operations in flight and in a batch, as in a sweep without options. The first one waits for each operation.
const MODES: [(u32, u32); 3] = [(1, 1), (32, 1), (2, 32)];

/// Bytes, and most operations, of one simulation. Source: chosen; a hundred rounds of what is in flight.
const BYTES: u64 = 256 << 20;
const MOST: u64 = 3200;

/// The results of a simulated device.
#[derive(Clone, Debug, Serialize)]
pub struct Simulated {
    /// The profile of the simulated machine.
    pub profile: &'static str,
    /// One for each operation and size that the device accepts.
    pub points: Vec<SimulatedPoint>,
}

/// One operation at one size on a simulated device with four engines.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct SimulatedPoint {
    /// Short name of the operation.
    pub op: &'static str,
    /// Bytes of one transfer.
    pub size: u64,
    /// Bytes per second in the best mode.
    pub bytes_per_s: f64,
    /// Operations in flight in this mode.
    pub depth: u32,
    /// Operations in a batch in this mode; 1 without batches.
    pub batch: u32,
    /// Mean latency of one operation at a time.
    pub latency_ns: f64,
}

impl Simulated {
    /// Simulates operations and sizes; those that the device refuses are left out.
    pub(crate) fn of(ops: &[Opcode], sizes: &[u64]) -> Option<Simulated> {
        let machine = Machine::built_in(PROFILE)?;
        let all = ops.iter().flat_map(|op| sizes.iter().map(|size| (*op, *size)));
        let points = all.filter_map(|(op, size)| point(&machine, op, size)).collect();
        Some(Simulated { profile: PROFILE, points })
    }

    /// Returns the point of an operation and a size.
    pub fn at(&self, op: &str, size: u64) -> Option<&SimulatedPoint> {
        self.points.iter().find(|point| point.op == op && point.size == size)
    }
}

fn point(machine: &Machine, op: Opcode, size: u64) -> Option<SimulatedPoint> {
    let mut best: Option<SimulatedPoint> = None;
    let mut latency_ns = f64::NAN;
    for (depth, batch) in MODES {
        let (bytes_per_s, latency) = simulate(machine, op, size, depth, batch)?;
        if (depth, batch) == MODES[0] {
            latency_ns = latency;
        }
        if best.is_none_or(|best| bytes_per_s > best.bytes_per_s) {
            best = Some(SimulatedPoint { op: op.short_name(), size, bytes_per_s, depth, batch, latency_ns });
        }
    }
    best
}

/// Returns bytes per second and the mean latency in nanoseconds.
fn simulate(machine: &Machine, op: Opcode, size: u64, depth: u32, batch: u32) -> Option<(f64, f64)> {
    let operations = (BYTES / size.max(1)).clamp(2 * u64::from(depth * batch), MOST);
    let submissions = operations.div_ceil(u64::from(batch));
    let stream = Stream { depth, batch, submissions, ..Stream::of(op, u32::try_from(size).ok()?) };
    let mut scenario =
        Scenario { devices: Vec::new(), ..Scenario::on(machine.clone(), Config::single(WqMode::Dedicated, 128, 1)) };
    scenario.devices = Layout { engines: 4, ..Layout::single(WqMode::Dedicated) }.configs(&scenario.capabilities);
    let queues = queue_ids(&scenario.devices);
    let outcome = scenario.with_lanes("sweep", 1, stream, queues).simulate().ok()?;
    let load = outcome.loads.first()?;
    Some((load.gigabytes_per_second() * 1e9, load.mean_latency_ns()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_device_has_published_rates() {
        let simulated = Simulated::of(&[Opcode::MemoryMove], &[64, 1 << 20]).unwrap();
        let [short, long] = [64, 1 << 20].map(|size| *simulated.at("move", size).unwrap());
        // Source: Kuper et al. (ASPLOS 2024), Figure 2: 30 GB/s for large copies.
        assert!((28e9..32e9).contains(&long.bytes_per_s), "{long:?}");
        assert!(short.bytes_per_s < 10e9 && short.latency_ns > 300.0 && short.batch == 32, "{short:?}");
        assert!(simulated.at("fill", 64).is_none());
    }

    #[test]
    fn what_the_device_refuses_is_left_out() {
        // The device of this profile has no delta operations for more than 512 KiB.
        let simulated = Simulated::of(&[Opcode::CreateDelta], &[4096, 1 << 20]).unwrap();
        assert!(simulated.at("create-delta", 1 << 20).is_none(), "{simulated:?}");
    }
}
