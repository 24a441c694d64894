//! The recommended configuration for some work, each choice checked by simulation.

pub mod tables;

use crate::run::more_threads_than_cores;
use crate::{PredictError, about_of};
use serde::Serialize;
use telpher_device::{Config, Preset};
use telpher_report::about::About;
use telpher_sim::advise::{Advice, Objective, WorkRequest, WorkResult};
use telpher_sim::{LoadOutcome, Machine, NamedValue};

/// The recommendation, as serialised.
#[derive(Clone, Debug, Serialize)]
pub struct AdviseResult {
    /// Always `advise`.
    pub kind: &'static str,
    /// The header of the result.
    #[serde(flatten)]
    pub about: About,
    /// The quantity that was optimised.
    pub objective: &'static str,
    /// The simulated state of the cores' own work, with which the gain is compared.
    pub baseline: &'static str,
    /// What to know about the simulation.
    pub remarks: Vec<String>,
    /// The result as a multiple of that of cores alone.
    pub gain: f64,
    /// Number of simulated plans.
    pub simulated_plans: usize,
    /// The choices.
    pub choices: Vec<Chosen>,
    /// The loads.
    pub works: Vec<WorkAdvice>,
    /// For `accel-config load-config`; empty if cores alone are better for all loads.
    pub accel_config: Vec<Config>,
}

/// One choice.
#[derive(Clone, Debug, Serialize)]
pub struct Chosen {
    /// What is chosen, such as `engines of a group`.
    pub what: String,
    /// The chosen setting.
    pub chosen: String,
    /// The guideline that it follows, such as `G5`.
    pub guideline: &'static str,
    /// The text of the guideline.
    pub why: &'static str,
    /// The next best choice.
    pub runner_up: Option<String>,
    /// The runner-up's result as a fraction of the chosen one's.
    pub runner_up_gives: Option<f64>,
}

/// One load.
#[derive(Clone, Debug, Serialize)]
pub struct WorkAdvice {
    /// Its name.
    pub name: String,
    /// `device` or `core`.
    pub by: &'static str,
    /// Descriptors or batches of a thread in flight.
    pub depth: u32,
    /// Descriptors in a batch; 1 without batches.
    pub batch: u32,
    /// How a thread waits.
    pub wait: &'static str,
    /// 1 if the device writes results to the cache, otherwise 0.
    pub cache_control: u8,
    /// Bytes from which a device is better.
    pub threshold: Option<u32>,
    /// Bytes up to which the device is better, if several cores are better for larger operations.
    pub up_to: Option<u32>,
    /// As advised.
    pub advised: LoadNumbers,
    /// By its own core.
    pub by_cores: LoadNumbers,
}

/// The simulated result of a load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LoadNumbers {
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Median latency.
    pub p50_ns: Option<f64>,
    /// 99th percentile of the latency.
    pub p99_ns: Option<f64>,
    /// Core time of one operation, working or polling.
    pub core_ns_per_op: f64,
}

/// The state in which the cores' own work is simulated.
const BASELINE: &str = "cores alone, each operation in memory that was not used before";

/// Finds the best configuration and use of a machine's devices for some work.
///
/// # Errors
/// If the machine lacks something that the work needs, or the work has more threads than are simulated.
pub fn advise(machine: &Machine, work: &[WorkRequest], objective: Objective) -> Result<AdviseResult, PredictError> {
    let advice = telpher_sim::advise::advise(machine, Preset::default().capabilities(), work, objective)?;
    let threads = work.iter().map(|work| work.threads).sum();
    let remarks = more_threads_than_cores(machine, threads).into_iter().collect();
    Ok(AdviseResult { remarks, ..AdviseResult::of(about_of(machine), &advice) })
}

impl AdviseResult {
    fn of(about: About, advice: &Advice) -> Self {
        let chosen = |choice: &telpher_sim::advise::Choice| Chosen {
            what: choice.what.clone(),
            chosen: choice.chosen.clone(),
            guideline: choice.guideline,
            why: choice.why,
            runner_up: choice.runner_up.as_ref().map(|(other, _)| other.clone()),
            runner_up_gives: choice.runner_up.as_ref().map(|(_, gives)| *gives),
        };
        AdviseResult {
            kind: "advise",
            about,
            objective: advice.objective.name(),
            baseline: BASELINE,
            remarks: Vec::new(),
            gain: advice.gain,
            simulated_plans: advice.simulated,
            choices: advice.choices.iter().map(chosen).collect(),
            works: advice.works.iter().map(WorkAdvice::of).collect(),
            accel_config: advice.configs.clone(),
        }
    }
}

impl WorkAdvice {
    fn of(work: &WorkResult) -> Self {
        WorkAdvice {
            name: work.name.clone(),
            by: if work.way.device { "device" } else { "core" },
            depth: work.way.depth,
            batch: work.way.batch,
            wait: work.way.wait.name(),
            cache_control: u8::from(work.way.cache),
            threshold: work.threshold,
            up_to: work.up_to,
            advised: LoadNumbers::of(&work.advised),
            by_cores: LoadNumbers::of(&work.by_cores),
        }
    }
}

impl LoadNumbers {
    fn of(load: &LoadOutcome) -> Self {
        let core = load.cycles.taken();
        #[allow(clippy::cast_precision_loss, reason = "only printed")]
        let operations = load.operations.max(1) as f64;
        let at = |part| load.latencies.percentile(part).map(telpher_sim::Picos::as_nanos_f64);
        LoadNumbers {
            bytes_per_s: load.gigabytes_per_second() * 1e9,
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            core_ns_per_op: core.as_nanos_f64() / operations,
        }
    }
}
