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
use crate::buffers::touched;
use crate::measure::{median, window};
use crate::options::DmlOptions;
use program::{Library, Program, compile};
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};
use telpher_abi::{DestDifFlags, DifBlock, DifFlags, SourceDifFlags};
use telpher_device::OpenOptions;
use telpher_mem::{MapError, PageSize, Region};
use telpher_mover::{Mover, Policy, Threshold};
use telpher_ops::crc::{CrcMode, copy_crc32c, crc32c};
use telpher_ops::dif::{DifConfig, Tags, check, insert, strip, update};
use telpher_ops::{Hint, copy};
use telpher_os::chain;
use telpher_report::machine::Machine;

/// Every experiment that needs no other library, in the order in which they run.
pub const EXPERIMENTS: &[Experiment] = &[SOFTWARE, HARDWARE, MACHINES];

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

const MACHINES: Experiment = Experiment {
    name: "machines",
    question: "Do programs run where Intel's library finds no queue?",
    cores: 1,
    weight: 0.2,
    measure: machines,
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

/// A job of the software path.
struct Task {
    /// Its name for the program in C.
    operation: &'static str,
    /// Bytes of data.
    bytes: usize,
    /// GB/s with Intel's library 1.1.1, where they are known. Source: as for [`ORIGINAL_NOP_NS`].
    original: Option<&'static str>,
}

impl Task {
    /// The task of the measured programs.
    fn line(&self) -> String {
        format!("sw {} {}", self.operation, self.bytes)
    }
}

const fn task(operation: &'static str, bytes: usize, original: Option<&'static str>) -> Task {
    Task { operation, bytes, original }
}

/// GB/s of all integrity operations with Intel's library.
const ORIGINAL_DIF: Option<&str> = Some("0.12 to 0.16");

const TASKS: &[Task] = &[
    task("move", 4 << 10, Some("44")),
    task("move", 64 << 10, Some("55")),
    task("move", 64 << 20, Some("13.4")),
    task("crc", 4 << 10, Some("11.8")),
    task("crc", 1 << 20, Some("14.6")),
    task("copy-crc", 4 << 10, None),
    task("copy-crc", 1 << 20, None),
    task("dif-check", 4 << 10, ORIGINAL_DIF),
    task("dif-check", 64 << 10, ORIGINAL_DIF),
    task("dif-insert", 4 << 10, ORIGINAL_DIF),
    task("dif-insert", 64 << 10, ORIGINAL_DIF),
    task("dif-strip", 4 << 10, ORIGINAL_DIF),
    task("dif-strip", 64 << 10, ORIGINAL_DIF),
    task("dif-update", 4 << 10, ORIGINAL_DIF),
    task("dif-update", 64 << 10, ORIGINAL_DIF),
];
/// The sizes of copies on the hardware path.
const COPIES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
const MOST: usize = 64 << 20;
/// Bytes of data of the longest integrity operation.
const MOST_DIF: usize = 64 << 10;

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
        let slice = time / u32::try_from(TASKS.len()).unwrap_or(u32::MAX);
        let mut nops = Vec::new();
        let mut memory = Memory::new()?;
        for task in TASKS {
            let line = task.line();
            let (both, turns) = in_turns(
                slice,
                || {
                    nops.push(jobs.turn("sw nop 0", TURN)?);
                    jobs.turn(&line, TURN)
                },
                || memory.operation(task.operation, task.bytes),
            )?;
            let [job, itself] = both;
            let nop = median(&mut nops.clone());
            let original = task.original.map_or(String::new(), |rate| format!(", Intel's {rate} on another machine"));
            let how = format!(
                "{job:.1} ns ({:.2} GB/s{original}), itself {itself:.1} ns, a no-op {nop:.1} ns; {turns} turns",
                task.bytes as f64 / job
            );
            let what = format!("{}, {} bytes", task.operation, task.bytes);
            let unit = "of operation and no-op";
            rows.push(Row::new(what, job / (itself + nop), unit, Some(Goal::AtMost(SOFTWARE_GOAL)), how));
        }
        jobs.end()?;
        let nop = median(&mut nops);
        let how = format!("{nop:.1} ns, beside {ORIGINAL_NOP_NS} ns on another machine; {} turns", nops.len());
        let goal = Some(Goal::AtMost(NOP_GOAL));
        rows.insert(0, Row::new("no-op", nop / ORIGINAL_NOP_NS, "of Intel's library", goal, how));
        Ok(rows)
    })
}

/// The memory of the operations in this process.
///
/// Every buffer begins at a page, as in the program: where a copy's ends lie within their pages changes its speed.
struct Memory {
    src: Region,
    dst: Region,
    /// Blocks with integrity fields.
    protected: Region,
}

const BLOCK: usize = 512;
const PROTECTED: usize = 520;
const DIF: DifConfig = DifConfig {
    block: DifBlock::B512,
    flags: DifFlags::empty(),
    source: SourceDifFlags::empty(),
    dest: DestDifFlags::empty(),
};

impl Memory {
    fn new() -> Result<Memory, MapError> {
        let mut src = touched(MOST, PageSize::Small)?;
        src.fill(7);
        let mut protected = touched(MOST_DIF / BLOCK * PROTECTED, PageSize::Small)?;
        insert(&DIF, &src[..MOST_DIF], &mut protected, &mut Tags::default());
        Ok(Memory { src, dst: touched(MOST, PageSize::Small)?, protected })
    }

    /// One turn of an operation of `telpher-ops`; nanoseconds for each.
    fn operation(&mut self, operation: &str, bytes: usize) -> Result<f64, BenchError> {
        let (src, dst, mode) = (&self.src[..bytes], &mut self.dst, CrcMode::default());
        // Unused by the operations without integrity fields.
        let longer = bytes / BLOCK * PROTECTED;
        let protected = self.protected.get(..longer).unwrap_or_default();
        let measured = window(TURN, || {
            let (mut tags, mut dest_tags) = (Tags::default(), Tags::default());
            match operation {
                "move" => copy(black_box(src), black_box(&mut dst[..bytes]), Hint::default()),
                "crc" => {
                    black_box(crc32c(0, black_box(src), mode));
                }
                "copy-crc" => {
                    black_box(copy_crc32c(black_box(src), &mut dst[..bytes], 0, mode, Hint::default()));
                }
                "dif-check" => {
                    let _ = black_box(check(&DIF, black_box(protected), &mut tags));
                }
                "dif-insert" => {
                    insert(&DIF, black_box(src), black_box(&mut dst[..longer]), &mut tags);
                }
                "dif-strip" => {
                    let _ = strip(&DIF, black_box(protected), black_box(&mut dst[..bytes]), &mut tags);
                }
                _ => {
                    let to = black_box(&mut dst[..longer]);
                    let _ = update(&DIF, black_box(protected), to, &mut tags, &mut dest_tags);
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

/// A device with one dedicated queue, which Intel's library does not use.
const DEDICATED: &str = r#"[{ "dev": "dsa0", "groups": [{ "dev": "group0.0",
    "grouped_workqueues": [{ "dev": "wq0.0", "mode": "dedicated", "size": 16 }],
    "grouped_engines": [{ "dev": "engine0.0" }] }] }]"#;

fn machines(machine: &Machine, _: Duration) -> Result<Vec<Row>, BenchError> {
    alone(machine, || {
        let folder = Folder::new()?;
        let program = compile(folder.path(), &Library::Installed)?;
        let file = folder.file("dedicated.json");
        std::fs::write(&file, DEDICATED)
            .map_err(|source| BenchError::Program { what: format!("writing {}", file.display()), source })?;
        let dedicated = format!("model:{}", file.display());
        // The device of a preset names no NUMA node.
        let found = [("a device without a NUMA node", MODEL), ("no shared queue", dedicated.as_str())];
        found.into_iter().map(|(what, device)| Ok(runs(what, &program, device))).collect()
    })
}

/// Whether jobs run on the queues of a device; the hardware path uses nothing else.
fn runs(what: &'static str, program: &Program, device: &str) -> Row {
    let run = || {
        let mut jobs = program.start("jobs of libdml", Some(device))?;
        let ns = jobs.turn("hw move 4096", TURN)?;
        jobs.end()?;
        Ok::<f64, BenchError>(ns)
    };
    let (ran, how) = match run() {
        Ok(ns) => (1.0, format!("copies of 4096 bytes, {ns:.0} ns each")),
        Err(error) => (0.0, chain(&error)),
    };
    Row::new(what, ran, "programs ran", Some(Goal::AtLeast(1.0)), how)
}

fn original(prefix: &Path, time: Duration) -> Result<Vec<Row>, BenchError> {
    let (ours, theirs) = (Folder::new()?, Folder::new()?);
    let mut ours = compile(ours.path(), &Library::Installed)?.start("jobs of libdml", None)?;
    let mut theirs = compile(theirs.path(), &Library::Original(prefix))?.start("jobs of Intel's library", None)?;
    let slice = time / u32::try_from(TASKS.len() + 1).unwrap_or(u32::MAX);
    let mut rows = Vec::new();
    for task in [task("nop", 0, None)].iter().chain(TASKS) {
        let line = task.line();
        let turn = |jobs: &mut MeasuredProgram| jobs.turn(&line, TURN);
        let (both, turns) = in_turns(slice, || turn(&mut ours), || turn(&mut theirs))?;
        let [job, other] = both;
        let how = format!("{job:.1} ns, beside {other:.1} ns; {turns} turns");
        let (what, goal) = match task.bytes {
            0 => ("no-op".into(), NOP_GOAL),
            bytes => (format!("{}, {bytes} bytes", task.operation), ORIGINAL_GOAL),
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
