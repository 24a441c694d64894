//! The run time of programs with managed memory, compared with their run time alone.

use crate::BenchError;
use crate::folder::Folder;
use crate::goal::{Goal, Row};
use crate::measure::median;
use crate::questions::Answer;
use serde_json::Value;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use telpher_os::Nodes;

/// The experiment's name for `--only`.
pub(super) const NAME: &str = "programs";
const QUESTION: &str = "What do programs take whose memory is managed, by what they take alone?";

/// The part of the measuring time that the bench's own programs have beside the other experiments. Source: chosen.
pub(super) const SHARE: f64 = 0.3;

/// Runs of each kind. Source: chosen: the smallest number whose median is not an extreme.
const RUNS: usize = 3;

/// Goals of the ratio: for programs that take less than these seconds alone, and for those that take more. Source:
/// chosen; a program's start is a larger part of a short run.
const SHORT_SECONDS: f64 = 10.0;
const GOALS: [f64; 2] = [1.1, 1.05];

/// Programs to measure.
pub(super) enum Programs<'a> {
    /// The bench's [own](super::workloads), all runs together in about this time.
    Own {
        /// Seconds.
        seconds: f64,
    },
    /// Shell commands.
    Given(&'a [String]),
}

/// A program of the bench's own: its name for people, its words in each size, and the parameter that makes it longer.
struct Own {
    name: &'static str,
    /// From the smallest size to the largest.
    sizes: [&'static str; 3],
    repeats: &'static str,
    /// The first value of that parameter. Source: chosen, a small part of a second at each size.
    first: [u64; 3],
}

/// Runs have the second size from the first of these seconds on, the third from the second on. Source: chosen: setting
/// up and checking are to take less than half of a run.
const FROM_SECONDS: [f64; 2] = [1.0, 3.0];

const OWN: [Own; 2] = [
    Own {
        name: "cross sections",
        sizes: ["cross-sections points=300", "cross-sections points=3000", "cross-sections points=11303"],
        repeats: "lookups",
        first: [20_000, 200_000, 400_000],
    },
    Own {
        name: "shortest paths",
        sizes: ["shortest-paths scale=12", "shortest-paths scale=16", "shortest-paths scale=19"],
        repeats: "sources",
        first: [2, 2, 1],
    },
];

/// One program to measure.
struct Program {
    name: String,
    words: Vec<OsString>,
    /// It prints a checksum, the same in each run.
    has_checksum: bool,
}

/// One run of a program.
struct Run {
    seconds: f64,
    /// What it printed, if it has a checksum.
    stdout: String,
    /// Pages that moved to a faster tier, and to a slower one.
    moved: [f64; 2],
}

/// Runs each program alone and managed, in turns.
///
/// # Errors
/// [`BenchError::NotHere`]: a program cannot be run, or its exit code reports an error. [`BenchError::Wrong`]: one of
/// the bench's own has another answer when it is managed.
pub(super) fn answer(programs: &Programs<'_>) -> Result<Answer, BenchError> {
    let failed = |why: &dyn std::fmt::Display| BenchError::NotHere(format!("programs cannot be managed: {why}"));
    let telpher = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut rows = Vec::new();
    match programs {
        Programs::Own { seconds } => {
            // Each also runs once to find how long it takes.
            let each = seconds / (OWN.len() * (2 * RUNS + 1)) as f64;
            for own in &OWN {
                rows.extend(measured(&telpher, &own.program(&telpher, each)?)?);
            }
        }
        Programs::Given(given) => {
            for program in *given {
                let words = ["sh", "-c", &format!("exec {program}")].map(OsString::from).to_vec();
                rows.extend(measured(&telpher, &Program { name: program.clone(), words, has_checksum: false })?);
            }
        }
    }
    Ok(Answer { name: NAME, question: QUESTION, rows })
}

impl Own {
    /// Returns the program with parameters with which a run takes about `seconds`.
    fn program(&self, telpher: &Path, seconds: f64) -> Result<Program, BenchError> {
        let size = FROM_SECONDS.iter().filter(|from| seconds >= **from).count();
        let with = |repeats: u64| {
            let mut words = vec![telpher.as_os_str().to_owned()];
            words.extend(["bench", "tier", "--workload"].map(OsString::from));
            words.extend(self.sizes[size].split(' ').map(OsString::from));
            words.push(format!("{}={repeats}", self.repeats).into());
            Program { name: self.name.into(), words, has_checksum: true }
        };
        let first = with(self.first[size]);
        let run = run(&first, None)?;
        let work = line(&run.stdout, "work: ").and_then(|work| work.strip_suffix(" s")?.parse::<f64>().ok());
        let work = work.ok_or_else(|| first.wrong("it did not print how long it worked".into()))?.max(1e-6);
        Ok(with(repeats(self.first[size], work, run.seconds - work, seconds)))
    }
}

/// Returns the number of repeats that take `seconds`, if `first` take `work` beside a fixed time of `besides`.
fn repeats(first: u64, work: f64, besides: f64, seconds: f64) -> u64 {
    let factor = ((seconds - besides) / work).clamp(1.0, 1e6);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a factor of 1 to a million")]
    let repeats = (first as f64 * factor) as u64;
    repeats
}

impl Program {
    fn wrong(&self, why: String) -> BenchError {
        BenchError::Wrong { op: self.name.clone(), route: why }
    }
}

/// Runs a program alone and managed, in turns; returns its rows.
fn measured(telpher: &Path, program: &Program) -> Result<Vec<Row>, BenchError> {
    let name = &program.name;
    let folder = Folder::new()?;
    let states = folder.file("states.json");
    let (mut alone, mut managed) = (Vec::new(), Vec::new());
    for turn in 0..RUNS {
        // The order alternates.
        for is_managed in [turn % 2 == 0, turn % 2 == 1] {
            let run = run(program, is_managed.then_some((telpher, &states)));
            // Removed even if the run failed.
            let _ = std::fs::remove_file(&states);
            if is_managed { &mut managed } else { &mut alone }.push(run?);
        }
    }
    if program.has_checksum {
        let checksums: Vec<_> = managed.iter().chain(&alone).map(|run| line(&run.stdout, "checksum: ")).collect();
        if let Some(other) = checksums.iter().find(|checksum| checksum.is_none() || **checksum != checksums[0]) {
            return Err(program.wrong(format!("one run has the checksum {:?}, another {other:?}", checksums[0])));
        }
    }
    let median_of = |runs: &[Run], of: fn(&Run) -> f64| median(&mut runs.iter().map(of).collect::<Vec<_>>());
    let mut ratios = managed.iter().zip(&alone).map(|(one, other)| one.seconds / other.seconds).collect::<Vec<_>>();
    let how = format!("median of {RUNS} runs, in turns");
    let row = |what: &str, measured, unit| Row::new(format!("{name}: {what}"), measured, unit, None, how.clone());
    let seconds = median_of(&alone, |run| run.seconds);
    let goal = Goal::AtMost(GOALS[usize::from(seconds >= SHORT_SECONDS)]);
    Ok(vec![
        row("alone", seconds, "s"),
        row("managed", median_of(&managed, |run| run.seconds), "s"),
        Row::new(
            format!("{name}: managed by alone"),
            median(&mut ratios),
            "of the time",
            Some(goal),
            "median of the ratios, by turns",
        ),
        row("promoted", median_of(&managed, |run| run.moved[0]), "pages"),
        row("demoted", median_of(&managed, |run| run.moved[1]), "pages"),
    ])
}

/// Returns the rest of the first line that begins with `begin`.
fn line<'a>(text: &'a str, begin: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(begin))
}

/// Runs a program to its end; managed if `managed` has the path of telpher and of a file for its states.
fn run(program: &Program, managed: Option<(&Path, &Path)>) -> Result<Run, BenchError> {
    let name = &program.name;
    let mut command = match managed {
        None => Command::new(&program.words[0]),
        Some((telpher, states)) => {
            let mut command = Command::new(telpher);
            command.args(["tier", "run", "--quiet", "--format", "json", "--output"]).arg(states);
            let nodes = Nodes::of_this_machine().count();
            let with_memory = (0..nodes).filter(|&node| Nodes::free_bytes(node).is_some_and(|bytes| bytes > 0)).count();
            if with_memory < 2 {
                // The tiers are parts of one node: nothing can be gained, but the cost is visible.
                command.args(["--tier", "fast=256m", "--tier", "slow"]);
            }
            command.arg("--").arg(&program.words[0]);
            command
        }
    };
    // The output of a program of others may be of any length.
    let stdout = if program.has_checksum { Stdio::piped() } else { Stdio::null() };
    command.args(&program.words[1..]).stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
    let start = Instant::now();
    let ended = command.output().map_err(|error| BenchError::NotHere(format!("cannot run {name}: {error}")))?;
    let seconds = start.elapsed().as_secs_f64();
    if !ended.status.success() {
        let how = if managed.is_some() { "managed" } else { "alone" };
        let stderr = String::from_utf8_lossy(&ended.stderr);
        let last = stderr.lines().last().unwrap_or("nothing");
        return Err(BenchError::NotHere(format!("{name}, {how}, ended with {}; it said last: {last}", ended.status)));
    }
    let moved = match managed {
        None => [0.0; 2],
        Some((_, states)) => moved(states).map_err(|why| BenchError::NotHere(format!("{name}: {why}")))?,
    };
    Ok(Run { seconds, stdout: String::from_utf8_lossy(&ended.stdout).into_owned(), moved })
}

/// Returns the number of pages that were promoted and demoted in all processes of a run.
///
/// # Errors
/// No process was managed, or pages were lost.
fn moved(states: &Path) -> Result<[f64; 2], String> {
    let none = || "nothing was told of its memory; is it a program of shared libraries?".to_owned();
    let bytes = std::fs::read(states).map_err(|_| none())?;
    let states_json: Value = serde_json::from_slice(&bytes).map_err(|_| none())?;
    let processes = states_json["processes"].as_array().filter(|all| !all.is_empty()).ok_or_else(none)?;
    let sum = |what: &str| processes.iter().map(|state| state["counts"][what].as_f64()).sum::<Option<f64>>();
    let [promoted, demoted, lost] = ["promoted", "demoted", "lost"].map(|what| sum(what).ok_or_else(none));
    match lost? {
        0.0 => Ok([promoted?, demoted?]),
        lost => Err(format!("{lost} of its pages were lost; this is a bug in telpher")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_fill_the_time_beside_the_fixed_part() {
        assert_eq!(repeats(100, 0.5, 1.0, 3.5), 500);
        // Never fewer than at first, and never a number that would not fit.
        assert_eq!(repeats(100, 0.5, 1.0, 0.1), 100);
        assert_eq!(repeats(2, 1e-6, 0.0, 1e9), 2_000_000);
    }

    #[test]
    fn lost_pages_are_an_error_and_directions_are_sums_over_processes() {
        let folder = Folder::new().unwrap();
        let states = folder.file("states.json");
        let of = |text: &str| {
            std::fs::write(&states, text).unwrap();
            moved(&states)
        };
        let process = |promoted, demoted, lost| {
            format!(r#"{{"counts":{{"promoted":{promoted},"demoted":{demoted},"lost":{lost}}}}}"#)
        };
        let two = |lost| format!(r#"{{"processes":[{},{}]}}"#, process(3, 4, 0), process(5, 7, lost));
        assert_eq!(of(&two(0)), Ok([8.0, 11.0]));
        assert!(of(&two(1)).unwrap_err().contains("1 of its pages were lost"));
        for nothing in ["", r#"{"processes":[]}"#, r#"{"processes":[{}]}"#] {
            assert!(of(nothing).unwrap_err().contains("nothing was told"), "{nothing}");
        }
        assert_eq!(line("a: 1\nb: 2\n", "b: "), Some("2"));
    }
}
