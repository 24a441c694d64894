//! Calls below the threshold, under `telpher offload` and under `telpher record`, against those of the program by
//! itself.

use super::program::SHORT;
use super::runs::{OFFLOAD, record_into};
use crate::BenchError;
use crate::folder::Folder;
use crate::goal::{Goal, Row};
use crate::interleaved::ratio;
use crate::measure::median;
use crate::measured_program::MeasuredProgram;
use crate::questions::Experiment;
use std::time::Duration;
use telpher_report::machine::Machine;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "calls",
    question: "How much longer does a short call take under telpher offload, and while recording?",
    cores: 1,
    weight: 2.0,
    measure,
};

/// Most time of a call under `telpher offload`, by that of a plain call. Source: goal of `telpher offload`.
const OFFLOADED: f64 = 1.25;
/// Most time of a call while it is recorded. Source: goal of `telpher record`.
const RECORDED: f64 = 1.4;
/// Rounds in which every competitor has its turn; medians are over rounds.
const ROUNDS: u32 = 15;

fn measure(_: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let folder = Folder::new()?;
    let recording = record_into(&folder);
    let mut programs = [
        MeasuredProgram::start::<&str>("the program by itself", "offload", &[])?,
        MeasuredProgram::start("the program under telpher offload", "offload", &OFFLOAD)?,
        MeasuredProgram::start("the program under telpher record", "offload", &recording)?,
    ];
    let sizes = u32::try_from(SHORT.len()).unwrap_or(1);
    let slice = time / (ROUNDS * sizes * 3);
    let mut rows = Vec::new();
    for bytes in SHORT {
        let task = format!("copy-{bytes}");
        // One turn each is not measured: it maps pages and warms caches.
        for program in &mut programs {
            program.turn(&task, Duration::from_millis(1))?;
        }
        let mut seen = [const { Vec::new() }; 3];
        for round in 0..ROUNDS as usize {
            // Each program begins some of the rounds.
            for place in 0..programs.len() {
                let at = (round + place) % programs.len();
                seen[at].push(programs[at].turn(&task, slice)?);
            }
        }
        rows.extend(rows_of(bytes, &seen));
    }
    programs.into_iter().try_for_each(MeasuredProgram::end)?;
    Ok(rows)
}

/// The rows of one size, from nanoseconds by competitor and round.
fn rows_of(bytes: usize, [plain, offloaded, recorded]: &[Vec<f64>; 3]) -> [Row; 2] {
    let ns = |seen: &[f64]| median(&mut seen.to_vec());
    let how = |seen: &[f64]| format!("{:.2} ns, and {:.2} ns by the program alone", ns(seen), ns(plain));
    let worst = if bytes == SHORT[0] { "; a loop of such copies is the worst case" } else { "" };
    [
        Row::new(
            format!("{bytes}-byte copies under telpher offload: time by that of plain calls"),
            ratio(offloaded, plain),
            "of the time",
            Some(Goal::AtMost(OFFLOADED)),
            how(offloaded),
        ),
        Row::new(
            format!("{bytes}-byte copies under telpher record: time by that of plain calls"),
            ratio(recorded, plain),
            "of the time",
            Some(Goal::AtMost(RECORDED)),
            how(recorded) + worst,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_the_median_over_the_rounds_and_names_both_times() {
        let seen = [vec![2.0, 2.0, 2.0], vec![2.4, 2.5, 9.0], vec![4.0, 3.0, 1.0]];
        let [offloaded, recorded] = rows_of(8, &seen);
        assert_eq!((offloaded.measured, offloaded.reached()), (1.25, true));
        assert_eq!((recorded.measured, recorded.reached()), (1.5, false));
        assert!(recorded.how.starts_with("3.00 ns, and 2.00 ns by"), "{}", recorded.how);
        assert!(recorded.how.ends_with("worst case") && !rows_of(64, &seen)[1].how.ends_with("worst case"));
    }
}
