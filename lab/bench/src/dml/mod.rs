//! `telpher bench dml`: what jobs of libdml cost, beside the operations themselves and the mover.
//!
//! ```text
//! program.c ──cc, pkg-config dml──► a program that executes jobs ──┐
//! telpher-ops, and the mover's own call, in this process ──────────┴─ take turns ──► ratios
//! program.c ──cc, --original DIR──► the same with Intel's library ──► ratios
//! ```
//!
//! The library is measured as a program in C uses it, so this crate does not depend on it.

mod program;

use super::BenchError;
use super::folder::Folder;
use super::goal::{Goal, Row};
use super::measured_program::MeasuredProgram;
use super::questions::{self, Answer, Answers, Experiment};
use crate::measure::{median, window};
use crate::options::DmlOptions;
use program::{Library, compile};
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};
use telpher_abi::{DestDifFlags, DifBlock, DifFlags, SourceDifFlags};
use telpher_device::OpenOptions;
use telpher_mover::{Mover, Policy, Threshold};
use telpher_ops::crc::{CrcMode, copy_crc32c, crc32c};
use telpher_ops::dif::{DifConfig, Tags, insert};
use telpher_ops::{Hint, copy};
use telpher_report::machine::Machine;

/// Every experiment that needs no other library, in the order in which they run.
pub const EXPERIMENTS: &[Experiment] = &[SOFTWARE, HARDWARE];

/// The name of the experiment with Intel's library.
pub const ORIGINAL: &str = "original";

/// The first sentence of the report.
pub const LEAD: &str = "What jobs of libdml cost a program in C, beside the operations themselves and the mover.";

const SOFTWARE: Experiment = Experiment {
    name: "software",
    question: "What does a job on the software path cost, beside the operation itself?",
    cores: 1,
    weight: 3.0,
    measure: software,
};

const HARDWARE: Experiment = Experiment {
    name: "hardware",
    question: "What does a job on the hardware path cost, beside the mover's own call?",
    cores: 1,
    weight: 1.0,
    measure: hardware,
};

/// Nanoseconds of a no-op with Intel's library 1.1.1. Source: measured on a machine with AVX2 and two cores.
const ORIGINAL_NOP_NS: f64 = 33.0;
/// Most of the time of Intel's library that a no-op may take.
const NOP_GOAL: f64 = 0.5;
/// Most of the time of the operation and a no-op that a job may take. Source: chosen; what is beyond 1 is for noise.
const SOFTWARE_GOAL: f64 = 1.05;
/// Most of the time of the mover's own call that a job may take.
const HARDWARE_GOAL: f64 = 1.3;
/// Most of the time of Intel's library that any other job may take.
const ORIGINAL_GOAL: f64 = 1.0;

/// The length of a turn: many times what a process needs to wake.
const TURN: Duration = Duration::from_millis(10);
/// Fewest turns.
const FEWEST: usize = 3;

/// The operations of the software path, with their names for the program in C and their sizes.
const TASKS: [(&str, &[usize]); 4] = [
    ("move", &[4 << 10, 64 << 10, 64 << 20]),
    ("crc", &[4 << 10, 1 << 20]),
    ("copy-crc", &[4 << 10, 1 << 20]),
    ("dif-insert", &[4 << 10, 64 << 10]),
];
/// The sizes of copies on the hardware path.
const COPIES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
const MOST: usize = 64 << 20;

/// Runs the requested experiments.
///
/// # Errors
/// If libdml is not found, the program does not compile, or a job fails.
pub fn run(args: &DmlOptions, machine: Machine) -> Result<Answers, BenchError> {
    let mut only = args.experiments.only.clone();
    only.retain(|name| name != ORIGINAL);
    let asked = only.len() < args.experiments.only.len();
    if asked && args.original.is_none() {
        return Err(BenchError::Usage(format!(
            "--only {ORIGINAL}: name the folder of Intel's library with --original"
        )));
    }
    let mut remarks = Vec::new();
    if cfg!(debug_assertions) {
        remarks.push(
            "This is a debug build: the numbers of operations and of the mover are not those of a release.".into(),
        );
    }
    if args.original.is_none() {
        remarks.push(format!(
            "Intel's library is not measured in this run: {ORIGINAL_NOP_NS} ns is the time of its no-op on another \
             machine. --original DIR measures it."
        ));
    }
    // `--only original` runs no other experiment.
    let table = if asked && only.is_empty() { &[][..] } else { EXPERIMENTS };
    let mut answers = questions::hold("dml", table, &only, args.experiments.seconds, machine, remarks)?;
    if let Some(folder) = &args.original
        && (asked || args.experiments.only.is_empty())
    {
        let time = Duration::from_secs_f64(args.experiments.seconds / 2.0);
        let rows = alone(&answers.machine, || original(folder, time))?;
        let question = "What does a job cost, beside the same job of Intel's library?";
        answers.contests.push(Answer { name: ORIGINAL, question, rows });
    }
    Ok(answers)
}

/// Measures on a thread that stays on the first core, with the programs that it starts.
fn alone<T: Send>(machine: &Machine, measure: impl FnOnce() -> Result<T, BenchError> + Send) -> Result<T, BenchError> {
    let core = machine.core(0);
    std::thread::scope(|scope| {
        let measuring = scope.spawn(move || {
            // Without it the programs take turns on any cores.
            let _ = telpher_os::run_on(&[core]);
            measure()
        });
        measuring.join().expect("measurements report their errors")
    })
}

/// Lets both sides take turns; medians in nanoseconds, and the number of turns.
fn in_turns(
    time: Duration,
    mut one: impl FnMut() -> Result<f64, BenchError>,
    mut other: impl FnMut() -> Result<f64, BenchError>,
) -> Result<([f64; 2], usize), BenchError> {
    let begin = Instant::now();
    let mut seen = [Vec::new(), Vec::new()];
    while seen[0].len() < FEWEST || begin.elapsed() < time {
        seen[0].push(one()?);
        seen[1].push(other()?);
    }
    let turns = seen[0].len();
    Ok((seen.map(|mut all| median(&mut all)), turns))
}

fn software(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    alone(machine, || {
        let folder = Folder::new()?;
        let mut jobs = compile(folder.path(), &Library::Installed)?.start("jobs of libdml", None)?;
        let mut rows = Vec::new();
        // The no-op takes turns with every other job: what it costs then is what it is compared with.
        let sizes: usize = TASKS.iter().map(|(_, sizes)| sizes.len()).sum();
        let slice = time / u32::try_from(sizes).unwrap_or(u32::MAX);
        let mut nops = Vec::new();
        let mut memory = Memory::new();
        for (operation, sizes) in TASKS {
            for &bytes in sizes {
                let task = format!("sw {operation} {bytes}");
                let mut nop = 0.0;
                let (both, turns) = in_turns(
                    slice,
                    || {
                        nop = jobs.turn("sw nop 0", TURN)?;
                        nops.push(nop);
                        jobs.turn(&task, TURN)
                    },
                    || memory.operation(operation, bytes),
                )?;
                let [job, itself] = both;
                let nop = median(&mut nops.clone());
                let how = format!(
                    "{job:.1} ns ({}), itself {itself:.1} ns, a no-op {nop:.1} ns; {turns} turns",
                    rate(bytes, job)
                );
                let what = format!("{operation}, {bytes} bytes");
                let unit = "of operation and no-op";
                rows.push(Row::new(what, job / (itself + nop), unit, Some(Goal::AtMost(SOFTWARE_GOAL)), how));
            }
        }
        jobs.end()?;
        let nop = median(&mut nops);
        let how = format!("{nop:.1} ns, beside {ORIGINAL_NOP_NS} ns on another machine; {} turns", nops.len());
        let goal = Some(Goal::AtMost(NOP_GOAL));
        rows.insert(0, Row::new("no-op", nop / ORIGINAL_NOP_NS, "of Intel's library", goal, how));
        Ok(rows)
    })
}

/// Bytes a second.
fn rate(bytes: usize, ns: f64) -> String {
    format!("{:.2} GB/s", bytes as f64 / ns)
}

/// The memory of the operations in this process.
struct Memory {
    src: Vec<u8>,
    dst: Vec<u8>,
}

impl Memory {
    fn new() -> Memory {
        // Room for the integrity fields of the longest DIF Insert.
        Memory { src: vec![7; MOST], dst: vec![1; MOST + (1 << 20)] }
    }

    /// One turn of an operation of `telpher-ops`; nanoseconds for each.
    fn operation(&mut self, operation: &str, bytes: usize) -> Result<f64, BenchError> {
        let src = &self.src[..bytes];
        let dst = &mut self.dst;
        let mode = CrcMode::default();
        let config = DifConfig {
            block: DifBlock::B512,
            flags: DifFlags::empty(),
            source: SourceDifFlags::empty(),
            dest: DestDifFlags::empty(),
        };
        let measured = window(TURN, || {
            match operation {
                "move" => copy(black_box(src), black_box(&mut dst[..bytes]), Hint::default()),
                "crc" => {
                    black_box(crc32c(0, black_box(src), mode));
                }
                "copy-crc" => {
                    black_box(copy_crc32c(black_box(src), &mut dst[..bytes], 0, mode, Hint::default()));
                }
                _ => {
                    let mut tags = Tags { ref_tag: 0, app_mask: 0, app_tag: 0 };
                    insert(&config, black_box(src), black_box(&mut dst[..bytes / 512 * 520]), &mut tags);
                }
            }
            Ok::<u64, BenchError>(1)
        })?;
        Ok(measured.ns_per_op())
    }
}

/// The device of both sides of the hardware path.
const MODEL: &str = "model:spr";

fn hardware(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    alone(machine, || {
        let folder = Folder::new()?;
        let mut jobs = compile(folder.path(), &Library::Installed)?.start("jobs of libdml", Some(MODEL))?;
        let opened = telpher_device::open(&MODEL.parse()?, OpenOptions::default())?;
        let mover = Mover::new(opened.portals, Policy { threshold: Threshold::all(1), ..Policy::default() });
        let (src, mut dst) = (vec![7; COPIES[2]], vec![1; COPIES[2]]);
        let slice = time / u32::try_from(COPIES.len()).unwrap_or(u32::MAX);
        let mut rows = Vec::new();
        for bytes in COPIES {
            let task = format!("hw move {bytes}");
            let (both, turns) = in_turns(
                slice,
                || jobs.turn(&task, TURN),
                || {
                    let measured = window(TURN, || {
                        HARDWARE.done(mover.copy_slices(&src[..bytes], black_box(&mut dst[..bytes])))?;
                        Ok::<u64, BenchError>(1)
                    })?;
                    Ok(measured.ns_per_op())
                },
            )?;
            HARDWARE.arrived(&src[..bytes], &dst[..bytes])?;
            let [job, call] = both;
            let how = format!("{job:.0} ns, beside {call:.0} ns; {turns} turns");
            let goal = Some(Goal::AtMost(HARDWARE_GOAL));
            let what = format!("copy, {bytes} bytes, {MODEL}");
            rows.push(Row::new(what, job / call, "of the mover's call", goal, how));
        }
        jobs.end()?;
        Ok(rows)
    })
}

fn original(prefix: &Path, time: Duration) -> Result<Vec<Row>, BenchError> {
    let (ours, theirs) = (Folder::new()?, Folder::new()?);
    let mut ours = compile(ours.path(), &Library::Installed)?.start("jobs of libdml", None)?;
    let mut theirs = compile(theirs.path(), &Library::Original(prefix))?.start("jobs of Intel's library", None)?;
    let tasks: Vec<(&str, usize)> =
        TASKS.iter().flat_map(|(operation, sizes)| sizes.iter().map(move |&size| (*operation, size))).collect();
    let slice = time / u32::try_from(tasks.len() + 1).unwrap_or(u32::MAX);
    let mut rows = Vec::new();
    for (operation, bytes) in [("nop", 0)].into_iter().chain(tasks) {
        let task = format!("sw {operation} {bytes}");
        let turn = |jobs: &mut MeasuredProgram| jobs.turn(&task, TURN);
        let (both, turns) = in_turns(slice, || turn(&mut ours), || turn(&mut theirs))?;
        let [job, other] = both;
        let how = format!("{job:.1} ns, beside {other:.1} ns; {turns} turns");
        let (what, goal) = match bytes {
            0 => ("no-op".into(), NOP_GOAL),
            _ => (format!("{operation}, {bytes} bytes"), ORIGINAL_GOAL),
        };
        rows.push(Row::new(what, job / other, "of Intel's library", Some(Goal::AtMost(goal)), how));
    }
    ours.end()?;
    theirs.end()?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::ExperimentOptions;

    #[test]
    fn an_experiment_that_needs_the_original_asks_for_its_folder() {
        let experiments = ExperimentOptions { only: vec![ORIGINAL.into()], seconds: 1.0 };
        let error = run(&DmlOptions { experiments, original: None }, Machine::read()).unwrap_err();
        assert_eq!(error.to_string(), "--only original: name the folder of Intel's library with --original");
    }

    #[test]
    fn sides_take_turns_and_the_median_counts() {
        let turn = std::cell::Cell::new(0);
        let next = || {
            turn.set(turn.get() + 1);
            Ok(f64::from(turn.get()))
        };
        let (medians, turns) = in_turns(Duration::ZERO, next, next).unwrap();
        assert_eq!((medians, turns), ([3.0, 4.0], FEWEST));
    }
}
