//! The recommended configuration for some work, each choice checked by simulation.

pub mod tables;

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
    pub(crate) kind: &'static str,
    #[serde(flatten)]
    pub(crate) about: About,
    /// The quantity that was optimised.
    pub(crate) objective: &'static str,
    /// The simulated state of the cores' own work, with which the gain is compared.
    pub(crate) baseline: &'static str,
    /// The result as a multiple of that of cores alone.
    pub(crate) gain: f64,
    /// Number of simulated plans.
    pub(crate) simulated_plans: usize,
    /// The choices.
    pub(crate) choices: Vec<Chosen>,
    /// The loads.
    pub(crate) works: Vec<Piece>,
    /// For `accel-config load-config`; empty if cores alone are better for all loads.
    pub accel_config: Vec<Config>,
}

/// One choice.
#[derive(Clone, Debug, Serialize)]
pub struct Chosen {
    pub(crate) what: String,
    pub(crate) chosen: String,
    pub(crate) guideline: &'static str,
    pub(crate) why: &'static str,
    /// The next best choice.
    pub(crate) runner_up: Option<String>,
    /// The runner-up's result as a fraction of the chosen one's.
    pub(crate) runner_up_gives: Option<f64>,
}

/// One load.
#[derive(Clone, Debug, Serialize)]
pub struct Piece {
    pub(crate) name: String,
    pub(crate) by: &'static str,
    pub(crate) depth: u32,
    pub(crate) batch: u32,
    pub(crate) wait: &'static str,
    pub(crate) cache_control: u8,
    /// Bytes from which a device is better.
    pub(crate) threshold: Option<u32>,
    /// Bytes up to which the device is better, if several cores are better for larger operations.
    pub(crate) up_to: Option<u32>,
    pub(crate) advised: Came,
    pub(crate) by_cores: Came,
}

/// The simulated result of a load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Came {
    pub(crate) bytes_per_s: f64,
    pub(crate) p50_ns: Option<f64>,
    pub(crate) p99_ns: Option<f64>,
    /// Core time of one operation, working or polling.
    pub(crate) core_ns_per_op: f64,
}

/// The state in which the cores' own work is simulated.
const BASELINE: &str = "cores alone, each operation in memory that was not used before";

/// Finds the best configuration and use of a machine's devices for some work.
///
/// # Errors
/// If the machine lacks something that the work needs, or the work has more threads than are simulated.
pub fn advise(machine: &Machine, work: &[WorkRequest], objective: Objective) -> Result<AdviseResult, PredictError> {
    let advice = telpher_sim::advise::advise(machine, Preset::default().capabilities(), work, objective)?;
    Ok(AdviseResult::of(about_of(machine), &advice))
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
            gain: advice.gain,
            simulated_plans: advice.simulated,
            choices: advice.choices.iter().map(chosen).collect(),
            works: advice.works.iter().map(Piece::of).collect(),
            accel_config: advice.configs.clone(),
        }
    }
}

impl Piece {
    fn of(work: &WorkResult) -> Self {
        Piece {
            name: work.name.clone(),
            by: if work.way.device { "device" } else { "core" },
            depth: work.way.depth,
            batch: work.way.batch,
            wait: work.way.wait.name(),
            cache_control: u8::from(work.way.cache),
            threshold: work.threshold,
            up_to: work.up_to,
            advised: Came::of(&work.advised),
            by_cores: Came::of(&work.by_cores),
        }
    }
}

impl Came {
    fn of(load: &LoadOutcome) -> Self {
        let core = load.cycles.busy + load.cycles.polling;
        #[allow(clippy::cast_precision_loss, reason = "only printed")]
        let operations = load.operations.max(1) as f64;
        let at = |part| load.latencies.percentile(part).map(telpher_sim::Picos::as_nanos_f64);
        Came {
            bytes_per_s: load.gigabytes_per_second() * 1e9,
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            core_ns_per_op: core.as_nanos_f64() / operations,
        }
    }
}
