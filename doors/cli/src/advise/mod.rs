//! `telpher advise`: the paper's guidelines as an answer to a question, each held against a simulation.

mod report;

use crate::args::Advise;
use crate::sim::{About, SimError, machine};
use serde::Serialize;
use telpher_device::{Config, Preset, WqMode};
use telpher_report::deliver::{deliver, writable};
use telpher_sim::advise::{Advice, Demand, Work, advise};
use telpher_sim::{LoadOutcome, Named};

/// The advice, as data.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AdviseResult {
    /// `advise`.
    pub(crate) kind: &'static str,
    #[serde(flatten)]
    pub(crate) about: About,
    /// What counted.
    pub(crate) objective: &'static str,
    /// How the cores' own work was simulated, to which the gain is relative.
    pub(crate) baseline: &'static str,
    /// Times as good as cores alone.
    pub(crate) gain: f64,
    /// Plans that were simulated.
    pub(crate) simulated_plans: usize,
    /// What was chosen.
    pub(crate) choices: Vec<Chosen>,
    /// Each piece of the work.
    pub(crate) works: Vec<Piece>,
    /// For `accel-config load-config`; empty if cores do it all better.
    pub(crate) accel_config: Vec<Config>,
}

/// One thing that was chosen.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Chosen {
    pub(crate) what: String,
    pub(crate) chosen: String,
    pub(crate) guideline: &'static str,
    pub(crate) why: &'static str,
    /// The next best.
    pub(crate) runner_up: Option<String>,
    /// What that gives as a part of what is chosen.
    pub(crate) runner_up_gives: Option<f64>,
}

/// One piece of the work.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Piece {
    pub(crate) name: String,
    pub(crate) by: &'static str,
    pub(crate) depth: u32,
    pub(crate) batch: u32,
    pub(crate) wait: &'static str,
    pub(crate) cache_control: u8,
    /// Bytes from which on a device does it better.
    pub(crate) threshold: Option<u32>,
    /// And up to which, where cores together do the larger ones better.
    pub(crate) up_to: Option<u32>,
    pub(crate) advised: Came,
    pub(crate) by_cores: Came,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Came {
    pub(crate) bytes_per_s: f64,
    pub(crate) p50_ns: Option<f64>,
    pub(crate) p99_ns: Option<f64>,
    /// Of a core, for one operation: working or polling.
    pub(crate) core_ns_per_op: f64,
}

/// The state in which the cores' own work is simulated.
const BASELINE: &str = "cores alone, each operation in memory that nobody touched before";

const HTML: &str = "telpher-advise.html";

/// Gives the advice that the command line asks for.
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
            Demand::parse(&name, &text, &machine)?
        }
        None => from_options(args),
    };
    let capabilities = Preset::default().capabilities();
    let advice = advise(&machine, capabilities, &demands, args.objective.0)?;
    let result = AdviseResult::of(About::of(&machine), &advice);
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

fn from_options(args: &Advise) -> Vec<Demand> {
    let (src, dst) = args.placement.map_or((0, 0), |placement| (placement.src as usize, placement.dst as usize));
    let demand = |op: &telpher_abi::Opcode| Demand {
        name: op.short_name().to_owned(),
        threads: args.threads,
        rate: args.rate,
        at_once: args.at_once,
        src,
        dst,
        read_soon: args.read_soon,
        // Cannot lose bits: sizes go to 2 GiB.
        ..Demand::of(*op, u32::try_from(args.size).unwrap_or(u32::MAX))
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
    fn of(work: &Work) -> Self {
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
        #[allow(clippy::cast_precision_loss, reason = "for people")]
        let operations = load.operations.max(1) as f64;
        let at = |part| load.latencies.percentile(part).map(telpher_sim::Ps::as_nanos_f64);
        Came {
            bytes_per_s: load.gigabytes_per_second() * 1e9,
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            core_ns_per_op: core.as_nanos_f64() / operations,
        }
    }
}
