//! `telpher sim`: simulates what DSA hardware would give.
//!
//! ```text
//! options ──► shape ──► Scenario ──simulate──► Outcome ──► point ──► telpher-report's simulation
//! telpher-claims' validation ──► its tables
//! ```

mod about;
mod config;
mod error;
mod figures;
mod point;
mod profiles;
pub(crate) mod run;
pub(crate) mod validate;

use crate::args::{Sim, SimKind};
pub(crate) use about::{about_of, machine};
pub(crate) use error::SimError;
use telpher_claims::validation::tables as validation;
use telpher_report::deliver::{deliver, print, writable};
use telpher_report::simulation::tables as report;

const VALIDATE_HTML: &str = "telpher-sim-validate.html";
const RUN_HTML: &str = "telpher-sim-run.html";

/// Runs the requested command.
pub(crate) fn run(args: &Sim) -> Result<(), SimError> {
    match &args.kind {
        SimKind::Run(run) => {
            writable(&run.output.destination(), RUN_HTML)?;
            let result = run::run(run)?;
            let (text, csv) = (|| report::text(&result), || report::csv(&result));
            Ok(deliver(&run.output.destination(), RUN_HTML, &result, text, csv, || report::html(&result))?)
        }
        SimKind::Figures(figures) => figures::run(figures),
        SimKind::Validate(args) => {
            writable(&args.output.destination(), VALIDATE_HTML)?;
            let result = validate::run(args)?;
            let tables = if args.markdown { validation::markdown } else { validation::text };
            let (text, csv) = (|| tables(&result), || validation::csv(&result));
            Ok(deliver(&args.output.destination(), VALIDATE_HTML, &result, text, csv, || validation::html(&result))?)
        }
        SimKind::Profiles(profiles) => Ok(print(profiles::text(profiles.name.as_deref())?)?),
    }
}
