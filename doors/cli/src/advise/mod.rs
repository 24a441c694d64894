//! `telpher advise`: a recommended configuration for a load, each choice checked by simulation.

mod report;

use crate::args::Advise;
use crate::sim::{SimError, about_of, machine};
use serde::Serialize;
use telpher_device::{Config, Preset, WqMode};
use telpher_report::about::About;
use telpher_report::deliver::{deliver, writable};
use telpher_sim::advise::{Advice, WorkRequest, WorkResult, advise};
use telpher_sim::{LoadOutcome, NamedValue};

/// The recommendation, as serialised.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AdviseResult {
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
    pub(crate) accel_config: Vec<Config>,
}

/// One choice.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Chosen {
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
pub(crate) struct Piece {
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
pub(crate) struct Came {
    pub(crate) bytes_per_s: f64,
    pub(crate) p50_ns: Option<f64>,
    pub(crate) p99_ns: Option<f64>,
    /// Core time of one operation, working or polling.
    pub(crate) core_ns_per_op: f64,
}

/// The state in which the cores' own work is simulated.
const BASELINE: &str = "cores alone, each operation in memory that was not used before";

const HTML: &str = "telpher-advise.html";

/// Computes and prints the recommendation for the command line.
pub(crate) fn run(args: &Advise) -> Result<(), SimError> {
    writable(&args.output.destination(), HTML)?;
    if let Some(path) = &args.config {
        telpher_os::check_writable(path)
            .map_err(|source| SimError::Write { path: path.display().to_string(), source })?;
    }
    let machine = machine(&args.profile, &args.set)?;
    let demands = match &args.work {
        Some(path) => {
            let name = path.display().to_string();
            let text = std::fs::read_to_string(path).map_err(|source| SimError::Read { path: name.clone(), source })?;
            WorkRequest::parse(&name, &text, &machine)?
        }
        None => from_options(args),
    };
    let capabilities = Preset::default().capabilities();
    let advice = advise(&machine, capabilities, &demands, args.objective.0)?;
    let result = AdviseResult::of(about_of(&machine), &advice);
    let json = serde_json::to_string_pretty(&result.accel_config).expect("configurations are plain data");
    if let Some(path) = args.config.as_ref().filter(|_| !result.accel_config.is_empty()) {
        telpher_os::write_file(path, format!("{json}\n").as_bytes())
            .map_err(|source| SimError::Write { path: path.display().to_string(), source })?;
        eprintln!("Configuration: {}", path.display());
        let queues = result.accel_config.iter().flat_map(|device| &device.groups);
        if queues.flat_map(|group| &group.grouped_workqueues).any(|queue| queue.mode == WqMode::Shared) {
            eprintln!("It has shared queues, which Linux gives to users from 5.18 on.");
        }
    }
    let (text, csv) = (|| report::text(&result, &json), || report::csv(&result));
    Ok(deliver(&args.output.destination(), HTML, &result, text, csv, || report::html(&result, &json))?)
}

fn from_options(args: &Advise) -> Vec<WorkRequest> {
    let (src, dst) = args.placement.map_or((0, 0), |placement| (placement.src as usize, placement.dst as usize));
    let demand = |op: &telpher_abi::Opcode| WorkRequest {
        name: op.short_name().to_owned(),
        threads: args.threads,
        rate: args.rate,
        in_flight: args.in_flight,
        src,
        dst,
        read_soon: args.read_soon,
        // Lossless: sizes are at most 2 GiB.
        ..WorkRequest::of(*op, u32::try_from(args.size).unwrap_or(u32::MAX))
    };
    args.op.0.iter().map(demand).collect()
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
