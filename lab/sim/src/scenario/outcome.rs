//! What came of a scenario.

use super::{Running, Scenario, What};
use crate::ps::Ps;
use crate::world::{Timeline, World};

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
    /// What held it up, in a sentence.
    pub bottleneck: String,
    /// Work descriptors executed.
    pub descriptors: u64,
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
    /// What cores did.
    pub cycles: Cycles,
    /// What is special to the kind of load.
    pub measures: Vec<Measure>,
}

/// What cores of a load spent their time on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cycles {
    /// Preparing, submitting, copying, computing.
    pub busy: Ps,
    /// Waiting with open eyes.
    pub polling: Ps,
    /// Waiting in UMWAIT.
    pub umwait: Ps,
    /// Given back to the system.
    pub idle: Ps,
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
#[derive(Clone, PartialEq, Debug)]
pub struct ResourceUse {
    /// What: `dsa0 engine0 data path`.
    pub name: String,
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

pub(super) fn of(scenario: &Scenario, world: &World, running: Vec<Running>, took: Ps) -> Outcome {
    let loads = scenario.loads.iter().zip(running).map(|(load, running)| {
        let mut of = LoadOutcome {
            name: load.name.clone(),
            operations: 0,
            bytes: 0,
            elapsed: took,
            cycles: Cycles::default(),
            timeline: Timeline::default(),
            measures: Vec::new(),
        };
        match running {
            Running::App(report) => of.measures = report(world),
            Running::Threads(threads) => {
                for thread in threads {
                    if let Some(timeline) = world.timeline_if_any(thread) {
                        of.timeline.add(timeline);
                    }
                }
            }
        }
        if let What::Stream(stream) = load.what {
            of.operations = stream.submissions * u64::from(stream.batch.max(1)) * u64::from(load.threads);
            of.bytes = of.operations * u64::from(stream.size);
        }
        of.cycles.busy = of.timeline.prepare + of.timeline.submitting;
        of.cycles.polling = of.timeline.waiting;
        of
    });
    let loads = loads.collect();
    let engines = world.engines().flat_map(|engine| {
        let of = |part: &str, time: Ps| ResourceUse {
            name: format!("dsa{} engine{} {part}", engine.device, engine.engine),
            share: time.as_secs_f64() / took.as_secs_f64().max(1e-12),
        };
        [of("front end", engine.front), of("data path", engine.data)]
    });
    let resources: Vec<ResourceUse> = engines.filter(|resource| resource.share > 0.0).collect();
    let busiest = resources.iter().max_by(|a, b| a.share.total_cmp(&b.share));
    let bottleneck = busiest.map_or(String::new(), |it| format!("{}: {:.0} % of the time", it.name, it.share * 100.0));
    Outcome {
        profile: scenario.machine.name.clone(),
        hash: scenario.machine.hash,
        took,
        loads,
        resources,
        bottleneck,
        descriptors: world.descriptors(),
        events: world.events(),
    }
}
