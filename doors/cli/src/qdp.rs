//! `telpher qdp`: executes a query with prefetched columns, on this machine or on a simulated one.
//!
//! ```text
//! options ──► device, mover ──► telpher-bench's prefetch: runs in turns ──► telpher-report's query
//! --profile ──► telpher-claims' thesis_query: tables and questions, simulated; or any plan, after a run that counts
//! ```

use crate::args::Qdp;
use crate::sim::{SimError, machine};
use crate::{log, version};
use telpher_bench::prefetch::{self, Measured, PrefetchError};
use telpher_bench::results::MODEL_REMARK;
use telpher_claims::thesis_query::plan::{self, MeasuredPlan};
use telpher_claims::thesis_query::{self, tables};
use telpher_device::{DeviceName, NameError, OpenError, OpenOptions, Opened};
use telpher_mover::{Mover, Policy, Tuning, TuningError};
use telpher_report::deliver::{DeliverError, deliver, writable};
use telpher_report::query::tables as report;
use telpher_report::schema;
use telpher_sim::PlanTraffic;

/// Why a query has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum QdpError {
    /// The query could not be executed here.
    #[error(transparent)]
    Here(#[from] PrefetchError),
    /// The device's name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The tuning file that the environment names cannot be used.
    #[error(transparent)]
    Tuning(#[from] TuningError),
    /// A `--policy` setting is invalid.
    #[error("{0}")]
    Setting(String),
    /// The query could not be simulated.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// The result could not be delivered.
    #[error(transparent)]
    Deliver(#[from] DeliverError),
}

/// Executes or simulates the query, and writes the result.
pub(crate) fn run(args: &Qdp) -> Result<(), QdpError> {
    writable(&args.output.destination())?;
    log::info(|| format!("kernels: {}", version::kernels()));
    if let Some(profile) = &args.profile {
        let machine = machine(profile, &args.set)?;
        if args.has_plan() {
            let plan = measured(args)?;
            let result = plan::simulate_plan(machine, !args.set.is_empty(), &plan).map_err(SimError::from)?;
            let (text, csv) = (|| plan::text(&result), || plan::csv(&result));
            return Ok(deliver(&args.output.destination(), schema::QDP_PLAN, &result, text, csv, || {
                plan::html(&result)
            })?);
        }
        let result = thesis_query::simulate(machine, !args.set.is_empty()).map_err(SimError::from)?;
        let (text, csv) = (|| tables::text(&result), || tables::csv(&result));
        return Ok(deliver(&args.output.destination(), schema::QDP_THESIS, &result, text, csv, || {
            tables::html(&result)
        })?);
    }
    let result = prefetch::run(&args.options(), |remarks| mover(args, remarks))?;
    let (text, csv) = (|| report::text(&result), || report::csv(&result));
    Ok(deliver(&args.output.destination(), schema::QDP, &result, text, csv, || report::html(&result))?)
}

/// Executes the plan once, and returns what its stages read.
fn measured(args: &Qdp) -> Result<MeasuredPlan, QdpError> {
    let Measured { summary, data, traffic, .. } = prefetch::measure(&args.options())?;
    let columns = data.columns.iter().filter(|column| column.fetched).count();
    Ok(MeasuredPlan {
        query: summary,
        from: data.from,
        rows: data.rows,
        chunk: args.chunk,
        traffic: PlanTraffic {
            scanned: traffic.scanned,
            again: traffic.again,
            fetched: traffic.fetched,
            copied: data.fetched_bytes,
            columns: u32::try_from(columns).unwrap_or(u32::MAX),
        },
    })
}

/// Opens the device that copies, and adds remarks about it.
fn mover(args: &Qdp, remarks: &mut Vec<String>) -> Result<Mover, QdpError> {
    let name: DeviceName = args.device.parse()?;
    let tuning = Tuning::from_environment()?;
    let mut policy = tuning.as_ref().map_or_else(Policy::default, Tuning::policy);
    for setting in &args.policy {
        let Some((name, value)) = setting.split_once('=') else {
            return Err(QdpError::Setting(format!(
                "--policy takes NAME=VALUE, such as threshold=64k, not '{setting}'"
            )));
        };
        policy.set(name, value).map_err(|error| QdpError::Setting(format!("--policy {setting}: {error}")))?;
    }
    let runner = args.runner.into();
    let Opened { portals, skipped } = telpher_device::open(&name, OpenOptions { runner })?;
    log::info(|| {
        let queues: Vec<&str> = portals.iter().map(|portal| portal.info().name.as_str()).collect();
        format!("--device {}: queues {queues:?}, runner {runner:?}", args.device)
    });
    remarks.extend(skipped.into_iter().map(|skipped| format!("hw:{} is left out: {}.", skipped.queue, skipped.why)));
    remarks.push(match &name {
        DeviceName::Model(_) => MODEL_REMARK.to_owned(),
        _ if portals.is_empty() => "Copies are made by the CPU.".into(),
        _ => format!("Copies are made through {} queues of hardware.", portals.len()),
    });
    let mover = Mover::new(portals, policy);
    if let Some(tuning) = &tuning {
        mover.load_costs(tuning);
    }
    Ok(mover)
}
