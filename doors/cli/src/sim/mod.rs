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
use std::path::Path;
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
            // Read once: it may be a pipe.
            let file = run.workload.as_deref().map(read).transpose()?;
            if let Some((name, text)) = &file
                && Tenants::are_in(name, text)?
            {
                let result = tenants(run, name, text)?;
                // The configuration is the user's own.
                let (text, csv) = (|| sharing::tables::text(&result, ""), || sharing::tables::csv(&result));
                let html = || sharing::tables::html(&result, "");
                return Ok(deliver(&run.output.destination(), schema::TENANTS, &result, text, csv, html)?);
            }
            let result = simulated(run, file)?;
            let (text, csv) = (|| report::text(&result), || report::csv(&result));
            deliver(&run.output.destination(), schema::SIM_RUN, &result, text, csv, || report::html(&result))?;
            // The result has the reasons.
            if result.is_refused() { Err(SimError::AllRefused) } else { Ok(()) }
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

/// Returns the name of a workload file and its text.
fn read(path: &Path) -> Result<(String, String), SimError> {
    let name = path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => Ok((name, text)),
        Err(source) => Err(SimError::Read { path: name, source }),
    }
}

/// Simulates the tenants of a file.
fn tenants(args: &SimRun, name: &str, text: &str) -> Result<SharingResult, SimError> {
    let machine = machine(args.profile.as_deref().unwrap_or(DEFAULT_PROFILE), &args.set)?;
    let tenants = Tenants::parse(name, text, &machine)?;
    Ok(sharing::check(&machine, &args.device.name, &tenants)?)
}

/// Simulates a sweep, or the loads of a file: its name and its text.
fn simulated(args: &SimRun, file: Option<(String, String)>) -> Result<RunResult, SimError> {
    let profile = |other: Option<&str>| args.profile.as_deref().or(other).unwrap_or(DEFAULT_PROFILE).to_owned();
    if let Some((name, text)) = file {
        let file = WorkloadFile::parse(name, text)?;
        let machine = machine(&profile(file.profile()), &args.set)?;
        return Ok(telpher_predict::workload(file, machine, &args.device.name)?);
    }
    let machine = machine(&profile(None), &args.set)?;
    Ok(telpher_predict::sweep(&machine, &args.options())?)
}
