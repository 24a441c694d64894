//! The run time of programs with managed memory, compared with their run time alone.

use crate::BenchError;
use crate::folder::Folder;
use crate::goal::Row;
use crate::measure::median;
use crate::questions::Answer;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use telpher_os::Nodes;

/// The experiment's name for `--only`.
pub(super) const NAME: &str = "programs";
const QUESTION: &str = "What do programs take whose memory is managed, by what they take alone?";

/// Runs of each kind. Source: chosen: the smallest number whose median is not an extreme.
const RUNS: usize = 3;

/// One run of a program.
struct Run {
    seconds: f64,
    /// Number of pages that moved.
    moved: f64,
}

/// Runs each program alone and managed, in turns.
///
/// # Errors
/// [`BenchError::NotHere`]: a program cannot be run, or its exit code reports an error.
pub(super) fn answer(programs: &[String]) -> Result<Answer, BenchError> {
    let failed = |why: &dyn std::fmt::Display| BenchError::NotHere(format!("programs cannot be managed: {why}"));
    let telpher = std::env::current_exe().map_err(|error| failed(&error))?;
    let folder = Folder::new()?;
    let states = folder.file("states.json");
    let mut rows = Vec::new();
    for program in programs {
        let (mut alone, mut managed) = (Vec::new(), Vec::new());
        for turn in 0..RUNS {
            // The order alternates.
            for is_managed in [turn % 2 == 0, turn % 2 == 1] {
                let run = run(&telpher, program, is_managed.then_some(states.as_path()));
                // Removed even if the run failed.
                let _ = std::fs::remove_file(&states);
                if is_managed { &mut managed } else { &mut alone }.push(run?);
            }
        }
        let time = |runs: &[Run]| median(&mut runs.iter().map(|run| run.seconds).collect::<Vec<_>>());
        let pages = median(&mut managed.iter().map(|run| run.moved).collect::<Vec<_>>());
        let mut ratios = managed.iter().zip(&alone).map(|(one, other)| one.seconds / other.seconds).collect::<Vec<_>>();
        let how = format!("median of {RUNS} runs, in turns");
        rows.push(Row::new(format!("{program}: alone"), time(&alone), "s", None, how.clone()));
        rows.push(Row::new(
            format!("{program}: managed"),
            time(&managed),
            "s",
            None,
            format!("{how}; {pages:.0} pages moved"),
        ));
        rows.push(Row::new(
            format!("{program}: managed by alone"),
            median(&mut ratios),
            "of the time",
            None,
            "median of the ratios, by turns",
        ));
    }
    Ok(Answer { name: NAME, question: QUESTION, rows })
}

/// Runs a program to its end, as a shell would; managed if `states` names a file for its states.
fn run(telpher: &Path, program: &str, states: Option<&Path>) -> Result<Run, BenchError> {
    let mut command = Command::new(if states.is_some() { telpher } else { Path::new("sh") });
    if let Some(states) = states {
        command.args(["tier", "run", "--quiet", "--format", "json", "--output"]).arg(states);
        let nodes = Nodes::of_this_machine().count();
        let with_memory = (0..nodes).filter(|&node| Nodes::free_bytes(node).is_some_and(|bytes| bytes > 0)).count();
        if with_memory < 2 {
            // The tiers are parts of one node: nothing can be gained, but the cost is visible.
            command.args(["--tier", "fast=256m", "--tier", "slow"]);
        }
        command.args(["--", "sh"]);
    }
    command.arg("-c").arg(format!("exec {program}")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let start = Instant::now();
    let ended = command.output().map_err(|error| BenchError::NotHere(format!("cannot run {program}: {error}")))?;
    let seconds = start.elapsed().as_secs_f64();
    if !ended.status.success() {
        let how = if states.is_some() { "managed" } else { "alone" };
        let stderr = String::from_utf8_lossy(&ended.stderr);
        let last = stderr.lines().last().unwrap_or("nothing");
        return Err(BenchError::NotHere(format!(
            "{program}, {how}, ended with {}; it said last: {last}",
            ended.status
        )));
    }
    let moved = match states {
        None => 0.0,
        Some(states) => moved(states).ok_or_else(|| {
            BenchError::NotHere(format!(
                "{program}: nothing was told of its memory; is it a program of shared libraries?"
            ))
        })?,
    };
    Ok(Run { seconds, moved })
}

/// Returns the number of pages that moved in all processes of a run; `None` if no process was managed.
fn moved(states: &Path) -> Option<f64> {
    let states_json: Value = serde_json::from_slice(&std::fs::read(states).ok()?).ok()?;
    let each = states_json["processes"].as_array()?.iter().map(|state| state["counts"]["moved"].as_f64());
    let each = each.collect::<Option<Vec<_>>>()?;
    (!each.is_empty()).then(|| each.iter().sum())
}
