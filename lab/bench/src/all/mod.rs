//! Every bench with goals, one after the other: `telpher bench all`, and the results of several hosts side by side.
//!
//! ```text
//! PARTS ──► telpher bench PART --format json, once a round ──► rows ──► HostResult ──save──► DIR/HOST.json
//!                                                     HostResult ──► against: what differs from another host
//!                                                   DIR/*.json ──► across: on how many kinds of host a goal holds
//! ```
//!
//! Each bench runs as a program of its own. So one that fails or crashes is named in the result, and the others run.

pub mod across;
pub mod against;
mod host;
mod part;

pub use host::{Host, HostFileError, HostResult, Missing, Quantity, check_folder, read_folder};

#[cfg(test)]
pub(crate) use host::tests::sample;

use crate::BenchError;
use telpher_report::machine::Machine;

/// The benches that have goals, in the order in which they run.
pub const PARTS: [&str; 14] = [
    "ops",
    "mover",
    "cache",
    "tier",
    "run",
    "offload",
    "query",
    "vhost",
    "fabric",
    "nvmf",
    "telemetry",
    "sim",
    "vfio",
    "dml",
];

/// What `telpher bench all` measures.
#[derive(Clone, Debug)]
pub struct AllOptions {
    /// Benches, by name; all if empty.
    pub only: Vec<String>,
    /// How often each bench runs. Each round runs all of them.
    pub rounds: u32,
    /// Measuring time of each bench in seconds, instead of its own default.
    pub seconds: Option<f64>,
}

/// Runs the benches.
///
/// # Errors
/// If an unknown bench is asked for, or the telpher program cannot be started. A bench that fails is a line of the
/// result.
pub fn run(options: &AllOptions, machine: &Machine) -> Result<HostResult, BenchError> {
    let parts = chosen(&options.only)?;
    let mut result = HostResult::new(machine);
    for round in 1..=options.rounds.max(1) {
        for (number, part) in parts.iter().enumerate() {
            eprintln!("round {round} of {}, {part} ({} of {})", options.rounds.max(1), number + 1, parts.len());
            match part::run(part, options.seconds)? {
                Ok(rows) => result.add(rows),
                Err(why) => result.miss(part, why),
            }
        }
    }
    Ok(result)
}

/// Returns the benches with these names, in the order in which they run; all without names.
fn chosen(names: &[String]) -> Result<Vec<&'static str>, BenchError> {
    if let Some(unknown) = names.iter().find(|name| !PARTS.contains(&name.as_str())) {
        return Err(BenchError::Usage(format!("--only: '{unknown}' is no bench with goals; use {}", PARTS.join(", "))));
    }
    Ok(PARTS.into_iter().filter(|part| names.is_empty() || names.iter().any(|name| name == part)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benches_run_in_their_order_and_unknown_names_are_refused_with_the_known_ones() {
        assert_eq!(chosen(&[]).unwrap(), PARTS);
        assert_eq!(chosen(&["vfio".into(), "ops".into()]).unwrap(), ["ops", "vfio"]);
        let refused = chosen(&["pollution".into()]).unwrap_err().to_string();
        assert!(refused.contains("'pollution'") && PARTS.iter().all(|part| refused.contains(part)), "{refused}");
    }
}
