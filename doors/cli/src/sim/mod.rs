//! `telpher sim`: simulates what DSA hardware would give.
//!
//! ```text
//! run ──► telpher-predict's sweep, or a file of loads ──► telpher-report's simulation
//!     └─► a file of tenants ──► telpher-predict's sharing
//! validate, figures ──► telpher-claims' validation and figures ──► their tables and pages
//! ```

mod error;
mod figures;
mod machine;
mod profiles;
mod validate;

use crate::args::{Sim, SimKind, SimRun};
pub(crate) use error::SimError;
pub(crate) use machine::machine;
use telpher_claims::validation::tables as validation;
use telpher_predict::sharing::{self, SharingResult};
use telpher_predict::{DEFAULT_PROFILE, WorkloadFile};
use telpher_report::deliver::{deliver, print, writable};
use telpher_report::schema;
use telpher_report::simulation::{RunResult, tables as report};
use telpher_report::terminal;
use telpher_sim::tenants::Tenants;

/// Runs the requested command.
pub(crate) fn run(args: &Sim) -> Result<(), SimError> {
    match &args.kind {
        SimKind::Run(run) => {
            writable(&run.output.destination())?;
            if let Some(result) = tenants(run)? {
                // The configuration is the user's own.
                let (text, csv) = (|| sharing::tables::text(&result, ""), || sharing::tables::csv(&result));
                let html = || sharing::tables::html(&result, "");
                return Ok(deliver(&run.output.destination(), schema::TENANTS, &result, text, csv, html)?);
            }
            let result = simulated(run)?;
            let (text, csv) = (|| report::text(&result), || report::csv(&result));
            deliver(&run.output.destination(), schema::SIM_RUN, &result, text, csv, || report::html(&result))?;
            // The result has the reasons.
            let is_without_numbers = result.points.is_empty() && result.apps.is_empty();
            if is_without_numbers && !result.refused.is_empty() { Err(SimError::AllRefused) } else { Ok(()) }
        }
        SimKind::Figures(figures) => figures::run(figures),
        SimKind::Validate(args) => {
            writable(&args.output.destination())?;
            let result = validate::run(args)?;
            if args.markdown {
                // A row of a Markdown table is one line, and has no colours.
                terminal::unset();
            }
            let tables = if args.markdown { validation::markdown } else { validation::text };
            let (text, csv) = (|| tables(&result), || validation::csv(&result));
            Ok(deliver(&args.output.destination(), schema::SIM_VALIDATE, &result, text, csv, || {
                validation::html(&result)
            })?)
        }
        SimKind::Profiles(profiles) => Ok(print(profiles::text(profiles.name.as_deref())?)?),
    }
}

/// Simulates the tenants of a file; `None` if it has loads, or there is none.
fn tenants(args: &SimRun) -> Result<Option<SharingResult>, SimError> {
    let Some(path) = &args.workload else { return Ok(None) };
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|source| SimError::Read { path: name.clone(), source })?;
    if !Tenants::are_in(&name, &text)? {
        return Ok(None);
    }
    let machine = machine(args.profile.as_deref().unwrap_or(DEFAULT_PROFILE), &args.set)?;
    let tenants = Tenants::parse(&name, &text, &machine)?;
    Ok(Some(sharing::check(&machine, &args.device.name, &tenants)?))
}

/// Simulates a sweep, or the loads of a file.
fn simulated(args: &SimRun) -> Result<RunResult, SimError> {
    let profile = |other: Option<&str>| args.profile.as_deref().or(other).unwrap_or(DEFAULT_PROFILE).to_owned();
    if let Some(path) = &args.workload {
        let file = WorkloadFile::load(path)?;
        let machine = machine(&profile(file.profile()), &args.set)?;
        return Ok(telpher_predict::workload(file, machine, &args.device.name)?);
    }
    let machine = machine(&profile(None), &args.set)?;
    Ok(telpher_predict::sweep(&machine, &args.options())?)
}
