//! The results of a scenario.

use super::bottleneck::{self, Bottleneck};
use super::legal;
use super::{Running, Scenario, ScenarioError, Workload};
use crate::latencies::Latencies;
use crate::picos::Picos;
use crate::workload::ExecutedBy;
use crate::world::{Cycles, Resource, TimeBreakdown, Translations, World};
use telpher_abi::Opcode;

/// The results of a scenario. Every number is simulated.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Name of the profile.
    pub profile: String,
    /// Hash of the profile, which identifies the parameters.
    pub hash: u64,
    /// Time from the beginning to the end of all loads.
    pub took: Picos,
    /// By load, in the order of the scenario.
    pub loads: Vec<LoadOutcome>,
    /// Utilization of resources.
    pub resources: Vec<ResourceUse>,
    /// Work descriptors executed.
    pub descriptors: u64,
    /// Submissions that a device refused, and batches with such members. The load then does not do what was requested.
    pub refused: u64,
    /// Address translations of the engines.
    pub translations: Translations,
    /// Events simulated.
    pub events: u64,
}

/// The results of one load: all its threads together.
#[derive(Clone, Debug)]
pub struct LoadOutcome {
    /// Name of the load.
    pub name: String,
    /// Operations done; each batch member counts.
    pub operations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time from the begin of its first operation to the end of its last.
    pub elapsed: Picos,
    /// Times of the submissions by stage, summed.
    pub timeline: TimeBreakdown,
    /// Latencies of the submissions.
    pub latencies: Latencies,
    /// The bottleneck; `None` for an application.
    pub bottleneck: Option<Bottleneck>,
    /// The time of its cores by kind.
    pub cycles: Cycles,
    /// Results specific to the kind of load.
    pub measures: Vec<Measure>,
}

/// A number with its name and unit.
#[derive(Clone, PartialEq, Debug)]
pub struct Measure {
    /// Name.
    pub name: String,
    /// Value.
    pub value: f64,
    /// Unit.
    pub unit: &'static str,
}

/// Utilization of a resource, in time or capacity.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ResourceUse {
    /// The resource.
    pub what: Resource,
    /// Utilization, 0 to 1.
    pub share: f64,
}

impl LoadOutcome {
    /// Throughput in gigabytes (10^9) a second.
    #[must_use]
    pub fn gigabytes_per_second(&self) -> f64 {
        ratio(self.bytes, self.elapsed) / 1e9
    }

    /// Throughput in operations a second.
    #[must_use]
    pub fn operations_per_second(&self) -> f64 {
        ratio(self.operations, self.elapsed)
    }

    /// Mean latency of a submission (an operation or a batch) in nanoseconds, from its preparation until the thread
    /// sees the record.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "for display")]
    pub fn mean_latency_ns(&self) -> f64 {
        self.timeline.latency().as_nanos_f64() / self.timeline.completed.max(1) as f64
    }
}

#[allow(clippy::cast_precision_loss, reason = "for display")]
fn ratio(count: u64, time: Picos) -> f64 {
    if time == Picos::ZERO { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// What rounding may add to a rate. Source: chosen; flows are rounded to picoseconds and bytes.
const ROUNDING: f64 = 1e-3;

/// Returns an error if a number is above its cap by more than rounding, or is no number.
fn within(value: f64, cap: f64, what: impl FnOnce() -> String) -> Result<(), ScenarioError> {
    if value <= cap * (1.0 + ROUNDING) { Ok(()) } else { Err(ScenarioError::AboveCap { what: what(), value, cap }) }
}

impl Outcome {
    /// Returns an error if a number exceeds what the profile allows: then the simulator has an error, and no number of
    /// the run is right. Every run is checked.
    fn check_caps(&self, scenario: &Scenario, world: &World) -> Result<(), ScenarioError> {
        for pipe in world.pipes() {
            // A share of what the pipe can carry, so the cap is 1.
            within(pipe.share(self.took), 1.0, || format!("utilization of the {}", pipe.what))?;
        }
        let device = &scenario.machine.device;
        let most = device.read.max(device.write).max(device.through) as f64 * scenario.devices.len() as f64;
        for (load, of) in scenario.loads.iter().zip(&self.loads) {
            let Workload::Stream(stream) = &load.what else { continue };
            let moves_bytes = !matches!(stream.op, Opcode::Nop | Opcode::Drain);
            if matches!(stream.by, ExecutedBy::Device(_)) && moves_bytes {
                let rate = of.gigabytes_per_second();
                within(rate, most / 1e9, || format!("rate of {} in GB/s", load.name))?;
            }
        }
        Ok(())
    }

    /// Utilization of a resource.
    #[must_use]
    pub fn share(&self, what: Resource) -> f64 {
        self.resources.iter().find(|resource| resource.what == what).map_or(0.0, |resource| resource.share)
    }

    /// The bottleneck of the load with the most bytes; `None` if there are only applications.
    #[must_use]
    pub fn bottleneck(&self) -> Option<&Bottleneck> {
        let loads = self.loads.iter().filter(|load| load.bottleneck.is_some());
        loads.max_by_key(|load| load.bytes)?.bottleneck.as_ref()
    }
}

pub(super) fn of(
    scenario: &Scenario,
    world: &World,
    running: Vec<Running>,
    took: Picos,
) -> Result<Outcome, ScenarioError> {
    let mut outcome = Outcome {
        profile: scenario.machine.name.clone(),
        hash: scenario.machine.hash,
        took,
        loads: Vec::new(),
        resources: Vec::new(),
        descriptors: world.descriptors(),
        refused: world.refused(),
        translations: world.translations(),
        events: world.events(),
    };
    for ((number, load), running) in scenario.loads.iter().enumerate().zip(running) {
        let mut of = LoadOutcome {
            name: load.name.clone(),
            operations: 0,
            bytes: 0,
            elapsed: took,
            cycles: Cycles::default(),
            timeline: TimeBreakdown::default(),
            latencies: world.latencies(number).cloned().unwrap_or_default(),
            bottleneck: None,
            measures: Vec::new(),
        };
        match running {
            Running::App(report) => of.measures = report(world),
            Running::Chases(chases) => of.of_chases(world, &chases),
            Running::Threads(threads) => {
                for thread in threads {
                    if let Some(timeline) = world.timeline_if_any(thread) {
                        of.timeline.add(timeline);
                    }
                }
            }
        }
        if let Workload::Stream(_) = &load.what {
            of.of_stream();
        }
        // A thread may see the last record after the last event.
        outcome.took = outcome.took.max(of.timeline.until);
        outcome.loads.push(of);
    }
    outcome.resources = resources(scenario, world, &outcome);
    outcome.check_caps(scenario, world)?;
    for (number, load) in scenario.loads.iter().enumerate() {
        if let Workload::Stream(stream) = &load.what {
            outcome.loads[number].bottleneck = Some(bottleneck::of(scenario, &outcome, number, stream));
        }
    }
    Ok(outcome)
}

impl LoadOutcome {
    #[allow(clippy::cast_precision_loss, reason = "for display")]
    fn of_chases(&mut self, world: &World, chases: &[usize]) {
        let seen = chases.iter().map(|chase| world.chased(*chase));
        let (mut loads, mut took, mut misses) = (0, Picos::ZERO, 0);
        for seen in seen {
            (loads, took, misses) = (loads + seen.loads, took + seen.took, misses + seen.misses);
        }
        let per_load = |value: f64| value / loads.max(1) as f64;
        self.operations = loads;
        self.cycles.busy = took;
        self.measures = vec![
            Measure { name: "latency of a read".into(), value: per_load(took.as_nanos_f64()), unit: "ns" },
            Measure { name: "reads that went to memory".into(), value: per_load(100.0 * misses as f64), unit: "%" },
        ];
    }

    fn of_stream(&mut self) {
        self.operations = self.timeline.operations;
        self.bytes = self.timeline.bytes;
        self.cycles = self.timeline.cycles;
        if self.timeline.until > Picos::ZERO {
            self.elapsed = self.timeline.until.since(self.timeline.from);
        }
    }
}

/// Utilization of all resources that were used.
fn resources(scenario: &Scenario, world: &World, outcome: &Outcome) -> Vec<ResourceUse> {
    let took = outcome.took.as_secs_f64().max(1e-12);
    let mut uses = Vec::new();
    let mut add = |what, share: f64| {
        if share > 0.0 {
            uses.push(ResourceUse { what, share });
        }
    };
    for (number, (load, of)) in scenario.loads.iter().zip(&outcome.loads).enumerate() {
        let time = of.elapsed.as_secs_f64().max(1e-12) * f64::from(load.threads.max(1));
        add(Resource::Cores(number), of.cycles.busy.as_secs_f64() / time);
    }
    for (device, config) in scenario.devices.iter().enumerate() {
        for (wq, queue) in legal::queues(config) {
            // Little's law: total waiting time over the run time is the mean number of waiting descriptors.
            let there = world.waited(device, wq).as_secs_f64() / took;
            add(Resource::Queue { device, wq }, there / f64::from(queue.size.max(1)));
        }
    }
    for engine in world.engines() {
        let (device, engine, front, data) = (engine.device, engine.engine, engine.front, engine.data);
        add(Resource::FrontEnd { device, engine }, front.as_secs_f64() / took);
        add(Resource::DataPath { device, engine }, data.as_secs_f64() / took);
    }
    for pipe in world.pipes() {
        add(pipe.what, pipe.share(outcome.took));
    }
    for of in world.cache_use() {
        add(Resource::Cache { load: of.load }, of.share);
    }
    uses
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::workload::Stream;
    use telpher_device::{Config, WqMode};

    /// An outcome whose load is as fast as the device, and one in which the same bytes took half the time.
    #[test]
    fn a_number_above_the_caps_is_an_error() {
        let copies = Stream { depth: 32, submissions: 400, ..Stream::of(Opcode::MemoryMove, 1 << 20) };
        let machine = Machine::built_in("spr-asplos").unwrap();
        let scenario = Scenario::on(machine, Config::single(WqMode::Dedicated, 128, 4));
        let scenario = scenario.with("copies", 1, Workload::Stream(copies));
        let mut outcome = scenario.simulate().unwrap();
        let world = World::new(scenario.machine.clone(), scenario.capabilities, &scenario.devices).unwrap();
        assert!(outcome.check_caps(&scenario, &world).is_ok());
        outcome.loads[0].elapsed = Picos::from_nanos_f64(outcome.loads[0].elapsed.as_nanos_f64() / 2.0);
        let message = outcome.check_caps(&scenario, &world).unwrap_err().to_string();
        assert!(message.contains("rate of copies in GB/s") && message.contains("no number of this run"), "{message}");
    }

    #[test]
    fn what_is_no_number_is_above_every_cap() {
        assert!(within(f64::NAN, 1.0, String::new).is_err());
        assert!(within(1.0005, 1.0, String::new).is_ok() && within(1.002, 1.0, String::new).is_err());
    }
}
