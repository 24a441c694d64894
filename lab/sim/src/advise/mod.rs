//! Advice: the best configuration and use of devices for some work, found by simulation.
//!
//! ```text
//! Demand (the work) ──► Plan (how it is done) ──► Scenario ──simulate──► score by the objective
//!                         ▲ starts from several plans; turns the knobs one after the other, tries every choice
//!                         │ and keeps the best until nothing improves; then prefers simpler plans that are as good
//! ```
//!
//! The knobs are the guidelines G1 to G6 of Kuper et al. §6, a table row each. The guidelines are not assumed to hold;
//! their choices are simulated.

mod demand;
mod distinct;
mod knobs;
mod plan;
#[cfg(test)]
mod tests;

use crate::machine::Machine;
use crate::scenario::{LoadOutcome, Outcome, Scenario, ScenarioError};
use crate::workload::NamedValue;
pub use demand::WorkRequest;
use knobs::KNOBS;
pub(crate) use plan::nearest_devices;
pub use plan::{Plan, WorkPlan};
use std::collections::HashMap;
use telpher_device::{Capabilities, Config};

/// The objective. For several pieces of work the geometric mean counts, so that no piece is sacrificed for another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Objective {
    /// Bytes a second.
    #[default]
    Throughput,
    /// Bytes for each second of a core that works or waits.
    PerCore,
    /// The latency that 99 % of the operations do not exceed.
    Latency,
    /// Bytes for each second in which a core is not free for other work: preparing, submitting, copying, polling.
    Cycles,
}

impl NamedValue for Objective {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("throughput", Objective::Throughput),
        ("per-core", Objective::PerCore),
        ("latency", Objective::Latency),
        ("cycles", Objective::Cycles),
    ];
}

/// The setting of a knob, the reason, and the next best setting.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// Name of the knob: `engines of a group`.
    pub what: String,
    /// The chosen setting.
    pub chosen: String,
    /// Guideline that it follows: `G5`.
    pub guideline: &'static str,
    /// The text of the guideline.
    pub why: &'static str,
    /// The next best setting, and its score relative to the chosen one; `None` if there was no alternative.
    pub runner_up: Option<(String, f64)>,
}

/// The results of a piece of work, as advised and by cores alone.
#[derive(Clone, Debug)]
pub struct WorkResult {
    /// Its name.
    pub name: String,
    /// How it is done.
    pub way: WorkPlan,
    /// As advised.
    pub advised: LoadOutcome,
    /// By its own cores.
    pub by_cores: LoadOutcome,
    /// Smallest size at which a device is better, with all else as advised; `None` if it never is.
    pub threshold: Option<u32>,
    /// Largest size at which a device is better; `None` if it is for all tried sizes, up to 1 MiB.
    pub up_to: Option<u32>,
}

/// Advice. All numbers are simulated.
#[derive(Clone, Debug)]
pub struct Advice {
    /// The objective.
    pub objective: Objective,
    /// Configurations of the devices in use; empty if cores are better for all work.
    pub configs: Vec<Config>,
    /// The settings of the knobs.
    pub choices: Vec<Choice>,
    /// Each piece of the work.
    pub works: Vec<WorkResult>,
    /// The score relative to cores alone, by the objective.
    pub gain: f64,
    /// Scenarios that were simulated.
    pub simulated: usize,
}

/// A choice must be better by this factor to be preferred to a simpler one. Simpler choices come first. Source: chosen.
pub const WORTH: f64 = 1.02;

/// Power of two of the largest size that is tried: 1 MiB. Source: chosen.
const LARGEST: u32 = 20;

/// Most threads of a piece of work. Source: chosen; four times the number of queues of four devices. A thousand threads
/// would retry full queues, and take minutes to simulate.
const MOST_THREADS: u32 = 128;

/// Rounds over all knobs; each starts from the result of the previous one. Source: chosen; two were enough in all tried
/// cases.
const ROUNDS: usize = 4;

/// The number of best initial plans whose knobs are turned. Source: chosen; with three, no random plan was better.
const BEGINNINGS: usize = 3;

/// A search in progress.
struct Search<'a> {
    machine: &'a Machine,
    capabilities: Capabilities,
    demands: &'a [WorkRequest],
    objective: Objective,
    /// The scores of plans by what distinguishes their simulations; `None` if it failed.
    tried: HashMap<String, Option<f64>>,
    simulated: usize,
}

/// Finds the best configuration and use of a machine's devices for some work.
///
/// # Errors
/// The machine lacks something, or there are more threads than advice supports.
pub fn advise(
    machine: &Machine,
    capabilities: Capabilities,
    demands: &[WorkRequest],
    objective: Objective,
) -> Result<Advice, ScenarioError> {
    if let Some(WorkRequest { name, threads, .. }) = demands.iter().find(|demand| demand.threads > MOST_THREADS) {
        let what = format!("{threads} threads ask for advice, and at most {MOST_THREADS} are simulated");
        return Err(ScenarioError::Load { load: name.clone(), what });
    }
    let mut search = Search::new(machine, capabilities, demands, objective);
    let cores = Plan::by_cores(demands);
    let by_cores = search.scenario(&cores).unwrap_or_else(|| search.empty()).simulate()?;
    let base = search.score(&cores, &by_cores);
    let (plan, best) = search.best();
    let choices = search.choices(&plan, best);
    let scenario = search.scenario(&plan).unwrap_or_else(|| search.empty());
    let outcome = scenario.simulate()?;
    let mut works = Vec::new();
    for (number, demand) in demands.iter().enumerate() {
        let (threshold, up_to) = search.worth(&plan, number);
        works.push(WorkResult {
            name: demand.name.clone(),
            way: plan.ways[number],
            advised: outcome.loads[number].clone(),
            by_cores: by_cores.loads[number].clone(),
            threshold,
            up_to,
        });
    }
    let configs = scenario.devices.into_iter().filter(|config| !config.groups.is_empty()).collect();
    let configs = if plan.ways.iter().any(|way| way.device) { configs } else { Vec::new() };
    Ok(Advice {
        objective,
        configs,
        choices,
        works,
        gain: best / base.max(f64::MIN_POSITIVE),
        simulated: search.simulated,
    })
}

impl<'a> Search<'a> {
    fn new(
        machine: &'a Machine,
        capabilities: Capabilities,
        demands: &'a [WorkRequest],
        objective: Objective,
    ) -> Search<'a> {
        Search { machine, capabilities, demands, objective, tried: HashMap::new(), simulated: 0 }
    }

    /// All knobs; those that are set for each piece of work once for each piece.
    fn turns(&self) -> Vec<(usize, Option<usize>)> {
        let of = |(knob, row): (usize, &knobs::Knob)| -> Vec<(usize, Option<usize>)> {
            if row.of_each {
                (0..self.demands.len()).map(|work| (knob, Some(work))).collect()
            } else {
                vec![(knob, None)]
            }
        };
        KNOBS.iter().enumerate().flat_map(of).collect()
    }

    fn candidates(&self, plan: &Plan, (knob, work): (usize, Option<usize>)) -> Vec<Plan> {
        (KNOBS[knob].choices)(self.machine, self.demands, plan, work.unwrap_or(0))
    }

    fn empty(&self) -> Scenario {
        let (machine, capabilities) = (self.machine.clone(), self.capabilities);
        Scenario { machine, capabilities, devices: Vec::new(), loads: Vec::new() }
    }

    /// The scenario of a plan, if it is possible.
    fn scenario(&self, plan: &Plan) -> Option<Scenario> {
        plan.scenario(self.machine, self.capabilities, self.demands)
    }

    /// The best plan found, and its score.
    fn best(&mut self) -> (Plan, f64) {
        let mut beginnings = Plan::beginnings(self.machine, self.demands);
        beginnings.sort_by(|one, other| {
            let [one, other] = [one, other].map(|plan| self.try_out(plan).unwrap_or(0.0));
            other.total_cmp(&one)
        });
        beginnings.truncate(BEGINNINGS);
        let mut devices: Option<(Plan, f64)> = None;
        for beginning in beginnings {
            let (plan, score) = self.improve(beginning);
            if devices.as_ref().is_none_or(|(_, best)| score > best * WORTH) {
                devices = Some((plan, score));
            }
        }
        // Cores do the work unless a device is better. The device's settings are kept for the report.
        let cores = Plan::by_cores(self.demands);
        let by_cores = self.try_out(&cores).unwrap_or(0.0);
        let (mut plan, mut best) = match devices {
            Some((plan, score)) if score > by_cores * WORTH => (plan, score),
            Some((plan, _)) => {
                let ways = plan.ways.iter().map(|way| WorkPlan { device: false, ..*way }).collect();
                (Plan { ways, ..plan }, by_cores)
            }
            None => (cores, by_cores),
        };
        for _ in 0..ROUNDS {
            let simpler = self.simplify(plan.clone(), best);
            let (candidate, score) = self.improve(simpler);
            best = best.max(score);
            if candidate == std::mem::replace(&mut plan, candidate.clone()) {
                break;
            }
        }
        let score = self.try_out(&plan).unwrap_or(0.0);
        (plan, score)
    }

    /// Turns knobs until nothing improves.
    fn improve(&mut self, mut plan: Plan) -> (Plan, f64) {
        let mut best = self.try_out(&plan).unwrap_or(0.0);
        for _ in 0..ROUNDS {
            let before = best;
            for turn in self.turns() {
                for candidate in self.candidates(&plan, turn) {
                    if let Some(score) = self.try_out(&candidate)
                        && score > best * WORTH
                    {
                        (plan, best) = (candidate, score);
                    }
                }
            }
            if best <= before {
                break;
            }
        }
        (plan, best)
    }

    /// Turns knobs back to simpler settings while the score is as good as the best.
    fn simplify(&mut self, mut plan: Plan, best: f64) -> Plan {
        for turn in self.turns() {
            // The setting of an unused knob does not make a plan simpler.
            if (KNOBS[turn.0].describe)(&plan, turn.1.unwrap_or(0)).is_none() {
                continue;
            }
            let simpler = self.candidates(&plan, turn).into_iter().take_while(|candidate| *candidate != plan);
            for candidate in simpler.collect::<Vec<_>>() {
                if self.try_out(&candidate).is_some_and(|score| score * WORTH >= best) {
                    plan = candidate;
                    break;
                }
            }
        }
        plan
    }

    /// The score of a plan; `None` if it is not possible.
    fn try_out(&mut self, plan: &Plan) -> Option<f64> {
        let scenario = self.scenario(plan)?;
        let what = distinct::simulated(&scenario);
        if let Some(score) = self.tried.get(&what) {
            return *score;
        }
        let outcome = scenario.simulate().ok();
        self.simulated += usize::from(outcome.is_some());
        let score = outcome.map(|outcome| self.score(plan, &outcome));
        self.tried.insert(what, score);
        score
    }

    /// The score of an outcome; higher is better.
    fn score(&self, plan: &Plan, outcome: &Outcome) -> f64 {
        let pieces = self.demands.iter().zip(&plan.ways).zip(&outcome.loads);
        #[allow(clippy::cast_precision_loss, reason = "bytes of a short time")]
        let of = |((demand, way), load): ((&WorkRequest, &WorkPlan), &LoadOutcome)| match self.objective {
            Objective::Throughput => load.gigabytes_per_second(),
            Objective::PerCore => load.bytes as f64 / load.cycles.total().as_secs_f64().max(1e-15),
            Objective::Latency => 1.0 / (load.latencies.at(0.99).as_secs_f64() + way.gathering(demand)).max(1e-15),
            Objective::Cycles => load.bytes as f64 / load.cycles.taken().as_secs_f64().max(1e-15),
        };
        let logarithms: f64 = pieces.map(|piece| of(piece).max(f64::MIN_POSITIVE).ln()).sum();
        #[allow(clippy::cast_precision_loss, reason = "a few pieces")]
        (logarithms / self.demands.len().max(1) as f64).exp()
    }

    /// The setting of each knob, with the best of its other choices.
    fn choices(&mut self, plan: &Plan, best: f64) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (knob, work) in self.turns() {
            let row = &KNOBS[knob];
            let set = |plan: &Plan| (row.describe)(plan, work.unwrap_or(0));
            let Some(chosen) = set(plan) else { continue };
            let mut runner_up: Option<(String, f64)> = None;
            for candidate in self.candidates(plan, (knob, work)) {
                let Some(other) = set(&candidate).filter(|other| *other != chosen) else { continue };
                if let Some(score) = self.try_out(&candidate)
                    && runner_up.as_ref().is_none_or(|(_, known)| score > *known)
                {
                    runner_up = Some((other, score));
                }
            }
            let what = match work.filter(|_| self.demands.len() > 1) {
                Some(work) => format!("{}: {}", self.demands[work].name, row.what),
                None => row.what.to_owned(),
            };
            let runner_up = runner_up.map(|(other, score)| (other, score / best.max(f64::MIN_POSITIVE)));
            choices.push(Choice { what, chosen, guideline: row.guideline, why: row.why, runner_up });
        }
        choices
    }

    /// The longest range of sizes (powers of two) at which a device does a piece of work better than cores: its
    /// smallest size, and its largest unless that is the largest tried.
    fn worth(&mut self, plan: &Plan, work: usize) -> (Option<u32>, Option<u32>) {
        let (mut run, mut longest): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
        let sizes = (6..=LARGEST).map(|power| 1 << power);
        for size in sizes {
            let demand = WorkRequest { size, ..self.demands[work].clone() };
            let way = WorkPlan { device: true, ..plan.ways[work] };
            let alone = |way: WorkPlan| Plan { apart: false, ways: vec![way], ..plan.clone() };
            let mut search = Search { demands: std::slice::from_ref(&demand), tried: HashMap::new(), ..*self };
            let device = search.try_out(&alone(way));
            let core = search.try_out(&Plan::by_cores(std::slice::from_ref(&demand)));
            self.simulated = search.simulated;
            match (device, core) {
                (Some(device), Some(core)) if device > core => run.push(size),
                _ => run = Vec::new(),
            }
            if run.len() >= longest.len() {
                longest.clone_from(&run);
            }
        }
        (longest.first().copied(), longest.last().copied().filter(|last| *last < 1 << LARGEST))
    }
}
