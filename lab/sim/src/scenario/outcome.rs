//! What came of a scenario.

use super::bottleneck::{self, Bottleneck};
use super::legal;
use super::{Running, Scenario, What};
use crate::latencies::Latencies;
use crate::ps::Ps;
use crate::world::{Cycles, Resource, Timeline, Translations, World};

/// What came of a scenario. Every number is simulated.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Name of the profile.
    pub profile: String,
    /// Its hash: which parameters these were.
    pub hash: u64,
    /// From the beginning to the end of everything.
    pub took: Ps,
    /// By load, in the order of the scenario.
    pub loads: Vec<LoadOutcome>,
    /// What was how busy.
    pub resources: Vec<ResourceUse>,
    /// Work descriptors executed.
    pub descriptors: u64,
    /// Submissions that a device refused, or whose batches had such members: what is asked for is not what it does.
    pub refused: u64,
    /// How engines learnt where pages are.
    pub translations: Translations,
    /// Events simulated.
    pub events: u64,
}

/// What came of one load: all its threads together.
#[derive(Clone, Debug)]
pub struct LoadOutcome {
    /// Name of the load.
    pub name: String,
    /// Operations done, members of batches counted each.
    pub operations: u64,
    /// Bytes they were about.
    pub bytes: u64,
    /// From its first operation's begin to its last one's end.
    pub elapsed: Ps,
    /// Where submissions spent their time, summed.
    pub timeline: Timeline,
    /// How long each took.
    pub latencies: Latencies,
    /// What held it up; `None` for an application.
    pub bottleneck: Option<Bottleneck>,
    /// What cores did.
    pub cycles: Cycles,
    /// What is special to the kind of load.
    pub measures: Vec<Measure>,
}

/// One number with its name and unit.
#[derive(Clone, PartialEq, Debug)]
pub struct Measure {
    /// What.
    pub name: String,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: &'static str,
}

/// How much of its time, or room, something was used.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ResourceUse {
    /// What.
    pub what: Resource,
    /// 0 to 1.
    pub share: f64,
}

impl LoadOutcome {
    /// Gigabytes (10^9) a second.
    #[must_use]
    pub fn gigabytes_per_second(&self) -> f64 {
        ratio(self.bytes, self.elapsed) / 1e9
    }

    /// Operations a second.
    #[must_use]
    pub fn operations_per_second(&self) -> f64 {
        ratio(self.operations, self.elapsed)
    }

    /// Nanoseconds of one operation on average, from preparing to the record's being seen; of a batch where it is one.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    pub fn mean_latency_ns(&self) -> f64 {
        self.timeline.latency().as_nanos_f64() / self.timeline.completed.max(1) as f64
    }
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn ratio(count: u64, time: Ps) -> f64 {
    if time == Ps::ZERO { 0.0 } else { count as f64 / time.as_secs_f64() }
}

impl Outcome {
    /// How busy something was.
    #[must_use]
    pub fn share(&self, what: Resource) -> f64 {
        self.resources.iter().find(|resource| resource.what == what).map_or(0.0, |resource| resource.share)
    }

    /// What held up the load that moved most; `None` where there are only applications.
    #[must_use]
    pub fn bottleneck(&self) -> Option<&Bottleneck> {
        let loads = self.loads.iter().filter(|load| load.bottleneck.is_some());
        loads.max_by_key(|load| load.bytes)?.bottleneck.as_ref()
    }
}

pub(super) fn of(scenario: &Scenario, world: &World, running: Vec<Running>, took: Ps) -> Outcome {
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
            timeline: Timeline::default(),
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
        if let What::Stream(_) = &load.what {
            of.of_stream();
        }
        // The last record may be seen after the last event.
        outcome.took = outcome.took.max(of.timeline.until);
        outcome.loads.push(of);
    }
    outcome.resources = resources(scenario, world, &outcome);
    for (number, load) in scenario.loads.iter().enumerate() {
        if let What::Stream(stream) = &load.what {
            outcome.loads[number].bottleneck = Some(bottleneck::of(scenario, &outcome, number, stream));
        }
    }
    outcome
}

impl LoadOutcome {
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    fn of_chases(&mut self, world: &World, chases: &[usize]) {
        let seen = chases.iter().map(|chase| world.chased(*chase));
        let (mut loads, mut took, mut misses) = (0, Ps::ZERO, 0);
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
        if self.timeline.until > Ps::ZERO {
            self.elapsed = self.timeline.until;
        }
    }
}

/// How much of its time, or room, everything was used that was used at all.
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
            // Little's law: seconds that descriptors waited, over the time it took, is how many were there on average.
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
