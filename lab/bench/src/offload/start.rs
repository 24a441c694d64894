//! The time from start to end of `telpher offload -- true`, of `true` with an empty library, and of `true` alone.

use super::empty_library;
use crate::BenchError;
use crate::folder::Folder;
use crate::goal::{Goal, Row};
use crate::measure::median;
use crate::questions::Experiment;
use std::io;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use telpher_report::machine::Machine;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "start",
    question: "How long does a program that does nothing take from start to end?",
    cores: 1,
    weight: 1.0,
    measure,
};

/// Most time by that of `true` with an empty library, and milliseconds in addition. Source: goal of
/// `telpher offload`.
const TIMES: f64 = 3.0;
const MORE_MS: f64 = 10.0;
/// Fewest starts of each, even if the time is over.
const FEWEST: usize = 5;

fn measure(_: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |source| BenchError::Program { what, source }
    };
    let folder = Folder::new()?;
    let empty = folder.file("empty.so");
    std::fs::write(&empty, empty_library::bytes()).map_err(failed("writing an empty library"))?;
    let telpher = std::env::current_exe().map_err(failed("finding this program"))?;
    let mut preloaded = Command::new("true");
    preloaded.env("LD_PRELOAD", &empty);
    let mut offloaded = Command::new(&telpher);
    offloaded.args(["offload", "--quiet", "--", "true"]);
    let mut modelled = Command::new(&telpher);
    modelled.args(["offload", "--quiet", "--device", "model:spr", "--", "true"]);
    let mut commands = [Command::new("true"), preloaded, offloaded, modelled];
    let mut seen = [const { Vec::new() }; 4];
    let begin = Instant::now();
    while seen[0].len() < FEWEST || begin.elapsed() < time {
        for (number, (command, seen)) in commands.iter_mut().zip(&mut seen).enumerate() {
            let start = Instant::now();
            let output = command.stdin(Stdio::null()).output().map_err(failed("true"))?;
            seen.push(start.elapsed().as_secs_f64() * 1e3);
            let stderr = String::from_utf8_lossy(&output.stderr);
            // The dynamic linker reports a library that it cannot load, and goes on without it.
            if !output.status.success() || (number == 1 && !stderr.is_empty()) {
                let source = io::Error::other(format!("{}: {}", output.status, stderr.trim()));
                return Err(failed("true")(source));
            }
        }
    }
    Ok(rows_of(&seen))
}

fn rows_of(seen: &[Vec<f64>; 4]) -> Vec<Row> {
    let ms = seen.each_ref().map(|seen| median(&mut seen.clone()));
    let goal = Some(Goal::AtMost(TIMES * ms[1] + MORE_MS));
    let how = format!("start to end, median of {}", seen[0].len());
    let bound = format!("{how}; the goal is {TIMES} times the empty library's plus {MORE_MS} ms");
    [
        ("true by itself", None, &how),
        ("true with an empty preloaded library", None, &how),
        ("telpher offload -- true", goal, &bound),
        ("telpher offload --device model:spr -- true", goal, &bound),
    ]
    .into_iter()
    .zip(ms)
    .map(|((what, goal, how), ms)| Row::new(what, ms, "ms", goal, how.as_str()))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_goal_follows_from_the_empty_library() {
        let rows = rows_of(&[vec![1.0; 3], vec![2.0; 3], vec![15.0, 16.0, 90.0], vec![16.1; 3]]);
        assert_eq!(rows[2].goal, Some(Goal::AtMost(16.0)));
        assert_eq!([2, 3].map(|at| rows[at].reached()), [true, false]);
    }
}
