//! One recording on one machine: what is known before a policy is chosen, and the simulation of a policy.

use super::costs::{Costs, float, ratio};
use super::options::PredictOptions;
use super::sample::{Call, Cost, Execution, LARGEST, Sample, TRANSFER};
use crate::PredictError;
use telpher_device::{Config, WqMode};
use telpher_mover::MemoryCallsPolicy;
use telpher_recording::{Access, Operation, Process, Recording, SizeRow, Temperature};
use telpher_report::prediction::Recorded;
use telpher_sim::{Machine, ReplayDevices, ReplaySection, Replayed, ScenarioError, Wait, replay};

/// Longest time of the CPU for one call, in nanoseconds. Source: chosen; a million of them end before simulated time
/// does.
const LONGEST_CPU_NS: f64 = 10e9;

/// A recording on a machine.
#[derive(Debug)]
pub(super) struct PredictionInput<'a> {
    pub(super) recording: &'a Recording,
    pub(super) options: &'a PredictOptions,
    pub(super) costs: Costs<'a>,
    pub(super) devices: ReplayDevices,
    /// Recorded time in long calls.
    pub(super) long_ns: f64,
    /// Time of the program: see [`program_ns()`].
    pub(super) program_ns: f64,
}

/// Which call sites use devices; the last entry is for calls whose site is not recorded.
#[derive(Clone, Debug)]
pub(super) struct Policy(pub(super) Vec<bool>);

impl Policy {
    pub(super) fn is_device(&self, site: Option<usize>) -> bool {
        let unknown = self.0.len().saturating_sub(1);
        self.0.get(site.unwrap_or(unknown)).copied().unwrap_or(false)
    }
}

impl<'a> PredictionInput<'a> {
    pub(super) fn new(recording: &'a Recording, options: &'a PredictOptions) -> Self {
        let machine = (!options.is_recorded_machine).then_some(&options.machine);
        let long = recording.sizes.iter().filter(|row| row.to >= long_from(recording));
        PredictionInput {
            recording,
            options,
            costs: Costs::new(&recording.calibration, machine),
            devices: devices(options, long_from(recording)),
            long_ns: long.map(row_ns).sum(),
            program_ns: program_ns(recording),
        }
    }

    /// The cost of a call by the CPU of the profile's machine.
    pub(super) fn cost(&self, call: &Call) -> Cost {
        self.cost_at(call, call.temperature)
    }

    /// The same if the call's data were elsewhere.
    pub(super) fn cost_at(&self, call: &Call, temperature: Option<Temperature>) -> Cost {
        let Call { operation, bytes, .. } = *call;
        let curve = |temperature: Option<Temperature>| self.costs.by_curve(operation, bytes, temperature?);
        let elsewhere = if temperature == call.temperature {
            1.0
        } else {
            curve(temperature).zip(curve(call.temperature)).and_then(|(there, here)| ratio(there, here)).unwrap_or(1.0)
        };
        let ns = call.copied_ns() * elsewhere * self.costs.scale(operation, bytes, temperature);
        // In whole picoseconds, like simulated time.
        let ns = if ns.is_finite() { (ns.clamp(0.0, LONGEST_CPU_NS) * 1e3).round() / 1e3 } else { LONGEST_CPU_NS };
        Cost { cpu_ns: ns, temperature }
    }

    /// Returns true if a device may execute the call.
    pub(super) fn is_offloadable(&self, operation: Operation, bytes: u64) -> bool {
        let by_operation = match operation {
            Operation::StringCopy => false,
            _ => operation.access() != Access::Compare || self.options.comparisons,
        };
        by_operation && bytes <= LARGEST
    }

    /// Simulates a sample. Only calls that may be offloaded are, whatever `how` returns.
    pub(super) fn simulate(
        &self,
        sample: &Sample,
        how: impl Fn(usize, &Call) -> Execution,
    ) -> Result<Replayed, PredictError> {
        self.replay(sample.sections(|index, call| self.allowed(call, how(index, call))))
    }

    /// Simulates all calls by devices, without other calls there.
    pub(super) fn simulate_alone(&self, sample: &Sample) -> Result<Replayed, PredictError> {
        let by_device = |call: &Call| self.allowed(call, Execution { cost: self.cost(call), by_device: true });
        self.replay(vec![sample.one_by_one(by_device)])
    }

    fn allowed(&self, call: &Call, execution: Execution) -> Execution {
        let by_device = execution.by_device && self.is_offloadable(call.operation, call.bytes);
        Execution { by_device, ..execution }
    }

    /// Simulates sections.
    pub(super) fn replay(&self, sections: Vec<ReplaySection>) -> Result<Replayed, PredictError> {
        // All devices are configured alike.
        let refused = |source| PredictError::Scenario(ScenarioError::Device { device: 0, source });
        replay(&self.options.machine, &self.devices, sections).map_err(refused)
    }

    /// Simulates a sample with a policy.
    pub(super) fn simulate_policy(&self, sample: &Sample, policy: &Policy) -> Result<Replayed, PredictError> {
        self.simulate(sample, |_, call| Execution { cost: self.cost(call), by_device: policy.is_device(call.site) })
    }

    /// The factor from a sum over a sample to the sum over all long calls. Their recorded times are all known, so that
    /// ratio is more precise than that of the counts.
    pub(super) fn all_calls(&self, sample: &Sample) -> Option<f64> {
        ratio(self.long_ns, sample.recorded_ns())
    }

    /// The gain of the program if its long calls, and others that took `others_ns`, take `on` instead of `off`, without
    /// interruptions.
    pub(super) fn program_gain(&self, sample: &Sample, others_ns: f64, off: f64, on: f64) -> Option<f64> {
        let copied = self.all_calls(sample).unwrap_or(0.0) * sample.copied_ns();
        let rest = (self.program_ns - copied - others_ns).max(0.0);
        (self.program_ns > 0.0).then(|| ratio(rest + off, rest + on)).flatten()
    }

    /// The facts about the recording.
    pub(super) fn recorded(&self, sample: &Sample) -> Recorded {
        let recording = self.recording;
        let summary = recording.summary();
        let judged: f64 = Temperature::ALL.iter().map(|temperature| sample.bytes(*temperature)).sum();
        let share = |temperature| ratio(sample.bytes(temperature), judged);
        let long = || recording.sizes.iter().filter(|row| row.to >= long_from(recording));
        let ends = recording.processes.iter().map(|process| process.start_ns.saturating_add(process.last_long_end_ns));
        Recorded {
            program: recording.processes.first().map(program_name).unwrap_or_default(),
            processes: recording.processes.len() as u64,
            cpu: recording.machine.cpu.clone(),
            calls: summary.calls,
            bytes: summary.bytes,
            calls_ns: float(summary.time.ns),
            long_from: long_from(recording),
            long_calls: long_calls(recording),
            long_bytes: long().map(|row| row.bytes).fold(0, u64::saturating_add),
            long_ns: self.long_ns,
            interrupted_ns: self.all_calls(sample).unwrap_or(0.0)
                * (sample.recorded_ns() - sample.copied_ns()).max(0.0),
            wall_ns: float(ends.max().unwrap_or(0)),
            threads: recording.threads.iter().filter(|thread| thread.long_calls > 0).count() as u64,
            program_ns: self.program_ns,
            long_share: ratio(self.long_ns, self.program_ns).map(|share| share.min(1.0)),
            hot_share: share(Temperature::Hot),
            cold_share: share(Temperature::Cold),
            fresh_share: share(Temperature::Fresh),
        }
    }
}

/// The time in all calls of a row: of those that were timed, scaled to all.
pub(super) fn row_ns(row: &SizeRow) -> f64 {
    ratio(float(row.timed_ns) * float(row.calls), float(row.timed_calls)).unwrap_or(0.0)
}

/// The program as it was called: its file may be a link with another name.
fn program_name(process: &Process) -> String {
    process.arguments.first().filter(|name| !name.is_empty()).unwrap_or(&process.program).clone()
}

/// The processor time of processes with long calls. If a process did not note it, the time from its start to its last
/// long call, for each thread with long calls.
fn program_ns(recording: &Recording) -> f64 {
    let of = |(index, process): (usize, &Process)| {
        let threads =
            recording.threads.iter().filter(|thread| thread.process == index && thread.long_calls > 0).count();
        let noted = process.cpu_time_ns().filter(|_| threads > 0);
        noted.map_or_else(|| float(process.last_long_end_ns) * float(threads as u64), float)
    };
    recording.processes.iter().enumerate().map(of).sum()
}

/// The devices on the socket of the profile's first node, at most as many as requested.
pub(super) fn devices(options: &PredictOptions, threshold: u64) -> ReplayDevices {
    let Machine { nodes, devices, .. } = &options.machine;
    let near = devices.iter().take_while(|node| nodes[**node].socket == nodes[0].socket).count().max(1);
    let count = options.devices.map_or(near, |most| near.min(usize::from(most.max(1))));
    let mut config = Config::single(WqMode::Shared, 128, 4);
    for queue in config.groups.iter_mut().flat_map(|group| &mut group.grouped_workqueues) {
        queue.max_transfer_size = TRANSFER;
    }
    let configs = vec![config; count];
    ReplayDevices {
        configs,
        retries: MemoryCallsPolicy::OFFERS - 1,
        threshold,
        to_cache: options.to_cache,
        wait: Wait::Poll,
    }
}

/// Bytes from which on a call is long: traced, and timed.
pub(super) fn long_from(recording: &Recording) -> u64 {
    recording.processes.iter().map(|process| process.long_from).min().unwrap_or(16 << 10)
}

pub(super) fn long_calls(recording: &Recording) -> u64 {
    recording.threads.iter().map(|thread| thread.long_calls).fold(0, u64::saturating_add)
}
