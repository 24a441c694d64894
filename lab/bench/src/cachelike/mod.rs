//! `telpher bench cachelike`: a cache under load, with its long copies by the CPU and by a device.
//!
//! ```text
//! CacheBench's JSON ──config──► Job ──► off      a process by itself
//!                                   ├─► always   the same under `telpher offload --always`
//!                                   └─► learned  the same under `telpher offload`
//! process: draw (keys, operations, sizes) ──► store (slabs, LRU) ── memmove of the C library ──► value (checked)
//! ```
//!
//! It is not CacheBench: the crate's README says what differs.

mod config;
mod config_error;
mod distribution;
mod draw;
mod fields;
mod lru;
mod process;
mod run;
mod store;
mod value;

pub use config::{CacheConfig, PAPER, ReadConfig};
pub use config_error::ConfigError;
pub use distribution::{Distribution, Operations, Popularity, ValueSizes};
pub use process::obey;
pub use run::{Counts, Filling, Percentiles, QUANTILES};

use crate::BenchError;
use crate::folder::Folder;
use crate::interleaved::ratio;
use crate::measure::median;
use crate::options::CacheLikeOptions;
use crate::progress::Budget;
use process::{CacheProcess, Start};
use run::{Job, Load, Measured, Turn};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use store::Store;
use telpher_device::{Config, EngineConfig, GroupConfig, WqConfig, WqMode};
use telpher_report::machine::Machine;
use telpher_sim::CacheLoad;

/// Everything that `telpher bench cachelike` measured.
#[derive(Clone, Debug, Serialize)]
pub struct CacheLikeResult {
    /// `cachelike`.
    pub kind: &'static str,
    /// The machine.
    pub machine: Machine,
    /// Remarks for the reader.
    pub remarks: Vec<String>,
    /// The cache and its load, as they were measured.
    pub config: CacheConfig,
    /// Number of CPUs for all threads.
    pub cores: usize,
    /// Calls of this many bytes or more may go to the device.
    pub threshold: u64,
    /// The sides, in the order of the command line.
    pub sides: Vec<SideResult>,
}

/// What one side measured.
#[derive(Clone, Debug, Serialize)]
pub struct SideResult {
    /// The name of the side.
    pub name: &'static str,
    /// Gets per second of all threads, by the time without that of preparing and checking values: the median of the
    /// turns.
    pub gets_per_second: f64,
    /// Sets per second of all threads, with those that follow a get, by the same time.
    pub sets_per_second: f64,
    /// The rate of gets over that of the side `off`: the median of the turns; `None` without that side.
    pub against_off: Option<f64>,
    /// As `gets_per_second`, by elapsed time.
    pub gets_per_elapsed_second: f64,
    /// As `sets_per_second`, by elapsed time.
    pub sets_per_elapsed_second: f64,
    /// As `against_off`, by elapsed time.
    pub against_off_elapsed: Option<f64>,
    /// Latencies of gets.
    pub gets: Percentiles,
    /// Latencies of sets.
    pub sets: Percentiles,
    /// What was done.
    pub counts: Counts,
    /// The copies of the filling, which are not in `counts`.
    pub filling: Filling,
    /// What `telpher offload` counted; `None` without it. It includes the filling of the cache.
    pub offload: Option<OffloadCounters>,
}

/// Counters of `telpher offload`, summed over the processes of a side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OffloadCounters {
    /// Calls that the device executed.
    pub device_calls: u64,
    /// Bytes that the device executed.
    pub device_bytes: u64,
    /// Calls that stayed with the CPU because their data was in the caches.
    pub cached_calls: u64,
    /// Calls that the CPU executed and timed, to learn whether their data was in the caches.
    pub timed_calls: u64,
    /// Bytes that the CPU executed.
    pub cpu_bytes: u64,
    /// Page faults of the device.
    pub faults: u64,
    /// Descriptors that a full queue refused.
    pub retries: u64,
}

/// A way to run the load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Variant {
    /// Without `telpher offload`.
    Off,
    /// Every long copy goes to the device, as with DTO in the paper.
    Always,
    /// Long copies go to the device if their call site copies uncached data.
    Learned,
    /// In this process, in whatever environment it runs.
    AsItIs,
}

impl Variant {
    const NAMED: [Variant; 3] = [Variant::Off, Variant::Always, Variant::Learned];

    fn name(self) -> &'static str {
        match self {
            Variant::Off => "off",
            Variant::Always => "always",
            Variant::Learned => "learned",
            Variant::AsItIs => "as it is",
        }
    }
}

/// Turns of each side. Source: chosen.
const TURNS: u64 = 10;

/// The part of the available memory that all caches together may take. Source: chosen; the rest is for the processes'
/// indexes and for other programs.
const OF_MEMORY: u64 = 2;

/// Runs the benchmark.
///
/// # Errors
/// If the configuration is invalid, a process fails, or a value read from the cache is wrong.
pub fn run(options: &CacheLikeOptions, machine: Machine) -> Result<CacheLikeResult, BenchError> {
    let sides = sides(options)?;
    let ReadConfig { config, without_effect } = CacheConfig::read(&options.load)?;
    if !without_effect.is_empty() {
        eprintln!("telpher: fields without effect in {}: {}", options.load, without_effect.join(", "));
    }
    let (job, mut remarks) = job(options, config, &machine, sides.len() as u64)?;
    let (sides, used) = match sides[..] {
        [Variant::AsItIs] => (vec![in_this_process(&job)?], None),
        _ => compared(options, &sides, &job)?,
    };
    if let Some(side) = sides.iter().find(|side| side.counts.wrong > 0) {
        let described = side.counts.first_wrong.clone().unwrap_or_default();
        let op = format!("{} of {} gets: {described}", side.counts.wrong, side.counts.gets);
        return Err(BenchError::Wrong { op, route: side.name.into() });
    }
    if let Some(device) = used {
        remarks.push(device);
    }
    let (cores, threshold) = (job.cpus.len(), job.threshold);
    Ok(CacheLikeResult { kind: "cachelike", machine, remarks, config: job.config, cores, threshold, sides })
}

/// Returns the sides that the options name.
fn sides(options: &CacheLikeOptions) -> Result<Vec<Variant>, BenchError> {
    if options.alone {
        return Ok(vec![Variant::AsItIs]);
    }
    let names = || Variant::NAMED.map(Variant::name).join(", ");
    let named = |name: &String| {
        let side = Variant::NAMED.into_iter().find(|side| side.name() == name);
        side.ok_or_else(|| BenchError::Usage(format!("'{name}' is not a side; use {}", names())))
    };
    let mut sides = Vec::new();
    for name in &options.only {
        let side = named(name)?;
        // A side that is named twice runs once.
        if !sides.contains(&side) {
            sides.push(side);
        }
    }
    Ok(if sides.is_empty() { Variant::NAMED.into() } else { sides })
}

/// Scales the load to this machine. Returns remarks about what was scaled.
fn job(
    options: &CacheLikeOptions,
    mut config: CacheConfig,
    machine: &Machine,
    caches: u64,
) -> Result<(Job, Vec<String>), BenchError> {
    let mut remarks = Vec::new();
    if let Some(gets) = options.gets {
        config.set_gets(gets);
    }
    let wanted = options.threads.unwrap_or(config.threads);
    let cores = options.cores.unwrap_or(wanted.div_ceil(2)) as usize;
    let here = machine.cores.len();
    config.threads = wanted;
    if cores > here {
        // A number of threads from the command line stays.
        if options.threads.is_none() {
            config.threads = u32::try_from(here * wanted as usize / cores).unwrap_or(wanted).max(1);
        }
        remarks.push(format!(
            "Scaled to the CPUs of this machine: {here}h/{}s instead of {cores}h/{wanted}s \
             (CPUs, which may share a core, and threads).",
            config.threads
        ));
    }
    if let Some(memory) = telpher_os::available_memory() {
        remarks.extend(config.scale(memory / OF_MEMORY / caches));
    }
    let needed = config.memory_bytes().saturating_mul(caches);
    let do_this = "use a configuration with a smaller cacheSizeMB or fewer size classes";
    telpher_os::check_memory("the caches", needed, None, do_this).map_err(|error| {
        let (_, why) = config.least_bytes();
        BenchError::NotHere(format!("{error}. A cache is scaled only so far that it has {why}"))
    })?;
    let cpus = machine.cores[..cores.clamp(1, here)].to_vec();
    Ok((Job { config, cpus, threshold: options.threshold }, remarks))
}

/// Returns the operations of each thread in each turn; together they are those of the configuration. There is no turn
/// without an operation.
fn turns_of(job: &Job) -> Vec<u64> {
    let all = job.config.operations.max(1);
    let turns = TURNS.min(all);
    (0..turns).map(|turn| all / turns + u64::from(turn < all % turns)).collect()
}

/// Runs the load in this process.
fn in_this_process(job: &Job) -> Result<SideResult, BenchError> {
    let too_large = |_| BenchError::NotHere("the cache is larger than the address space".into());
    let mut memory = vec![0; usize::try_from(job.config.cache_bytes).map_err(too_large)?];
    let store = Store::new(&job.config, &mut memory);
    let mut load = Load::new(job, &store);
    load.fill();
    let turns: Vec<Turn> = turns_of(job).into_iter().map(|operations| load.turn(operations)).collect();
    Ok(side_result(Variant::AsItIs, &turns, None, load.measured(), None))
}

/// Runs the load in a process for each side, in turns. Returns a remark about the device.
fn compared(
    options: &CacheLikeOptions,
    sides: &[Variant],
    job: &Job,
) -> Result<(Vec<SideResult>, Option<String>), BenchError> {
    let folder = Folder::new()?;
    let counters = |side: Variant| folder.file(&format!("{}.json", side.name()));
    let (devices, remark) = devices(options, &folder)?;
    let mut processes = Vec::new();
    for side in sides {
        let arguments = (*side != Variant::Off).then(|| {
            let mut arguments = devices.clone();
            arguments.extend(["--threshold".into(), job.threshold.to_string()]);
            arguments.extend((*side == Variant::Always).then(|| "--always".into()));
            arguments
        });
        let start = Start { offload: arguments.as_deref(), counters: &counters(*side) };
        processes.push(CacheProcess::start(side.name(), start, job)?);
    }
    let operations = turns_of(job);
    // The time is not limited, so the budget only shows the progress.
    let budget = &mut Budget::new(Duration::ZERO, ((operations.len() + 1) * sides.len()) as f64);
    for (process, side) in processes.iter_mut().zip(sides) {
        budget.step(&format!("filling the cache, {}", side.name()), 1.0);
        process.fill()?;
    }
    let mut turns = vec![Vec::new(); sides.len()];
    for (turn, number) in operations.iter().enumerate() {
        // Each side begins some of the rounds.
        for place in 0..sides.len() {
            let side = (turn + place) % sides.len();
            budget.step(&format!("turn {} of {}, {}", turn + 1, operations.len(), sides[side].name()), 1.0);
            turns[side].push(processes[side].turn(*number)?);
        }
    }
    budget.finish();
    let off = sides.iter().position(|side| *side == Variant::Off).map(|side| turns[side].clone());
    let mut results = Vec::new();
    for ((process, side), turns) in processes.into_iter().zip(sides).zip(&turns) {
        let measured = process.end()?;
        let offload = (*side != Variant::Off).then(|| read_counters(&counters(*side))).transpose()?;
        results.push(side_result(*side, turns, off.as_deref(), measured, offload));
    }
    let uses_device = sides.iter().any(|side| *side != Variant::Off);
    Ok((results, remark.filter(|_| uses_device)))
}

fn side_result(
    side: Variant,
    turns: &[Turn],
    off: Option<&[Turn]>,
    measured: Measured,
    offload: Option<OffloadCounters>,
) -> SideResult {
    let rates = |turns: &[Turn], of: fn(&Turn) -> f64| turns.iter().map(of).collect::<Vec<f64>>();
    let rate = |of| median(&mut rates(turns, of));
    let against = |of| off.map(|off| ratio(&rates(turns, of), &rates(off, of)));
    SideResult {
        name: side.name(),
        gets_per_second: rate(|turn| turn.timed.gets),
        sets_per_second: rate(|turn| turn.timed.sets),
        against_off: against(|turn| turn.timed.gets),
        gets_per_elapsed_second: rate(|turn| turn.elapsed.gets),
        sets_per_elapsed_second: rate(|turn| turn.elapsed.sets),
        against_off_elapsed: against(|turn| turn.elapsed.gets),
        filling: measured.filling,
        gets: measured.gets,
        sets: measured.sets,
        counts: measured.counts,
        offload,
    }
}

/// Returns the options of `telpher offload` that name the devices, and a remark about a modelled device.
fn devices(options: &CacheLikeOptions, folder: &Folder) -> Result<(Vec<String>, Option<String>), BenchError> {
    let mut names = options.devices.clone();
    if names.is_empty() {
        let file = folder.file("queues.json");
        write_shared_queues(&file)?;
        names.push(format!("model:{}", file.display()));
    }
    let modelled = names.iter().any(|name| name.starts_with("model:"));
    let remark = modelled.then(|| {
        "The device is modelled, in software that the calling thread executes: its counts are right, and its times are \
         not those of a device. `telpher sim figures --only offload` has simulated times."
            .to_owned()
    });
    Ok((names.into_iter().flat_map(|name| ["--device".to_owned(), name]).collect(), remark))
}

/// Writes the configuration of a device with the paper's shared queues, each in a group with an engine of its own.
fn write_shared_queues(file: &Path) -> Result<(), BenchError> {
    let queues = CacheLoad::PAPER.queues;
    let group = |number: u32| GroupConfig {
        dev: format!("group0.{number}"),
        grouped_workqueues: vec![WqConfig::new(number, WqMode::Shared, 128 / queues)],
        grouped_engines: vec![EngineConfig { dev: format!("engine0.{number}") }],
        ..GroupConfig::default()
    };
    let config = Config::of_groups((0..queues).map(group).collect());
    let text = serde_json::to_string(&[config]).expect("plain data with string keys");
    let failed = |source| BenchError::Program { what: format!("writing {}", file.display()), source };
    std::fs::write(file, text).map_err(failed)
}

/// The result of `telpher offload`.
#[derive(Deserialize)]
struct OffloadResult {
    processes: Vec<OffloadCounters>,
}

/// Reads what `telpher offload` has counted.
fn read_counters(file: &PathBuf) -> Result<OffloadCounters, BenchError> {
    let failed = |source| BenchError::Program { what: "reading the counters of telpher offload".into(), source };
    let text = std::fs::read(file).map_err(failed)?;
    let OffloadResult { processes } = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
    let sum = |of: fn(&OffloadCounters) -> u64| processes.iter().map(of).sum();
    Ok(OffloadCounters {
        device_calls: sum(|it| it.device_calls),
        device_bytes: sum(|it| it.device_bytes),
        cached_calls: sum(|it| it.cached_calls),
        timed_calls: sum(|it| it.timed_calls),
        cpu_bytes: sum(|it| it.cpu_bytes),
        faults: sum(|it| it.faults),
        retries: sum(|it| it.retries),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use run::Rates;

    fn options() -> CacheLikeOptions {
        CacheLikeOptions {
            load: PAPER.into(),
            cores: None,
            threads: None,
            gets: None,
            threshold: 8192,
            devices: Vec::new(),
            only: Vec::new(),
            alone: false,
        }
    }

    fn machine(cores: usize) -> Machine {
        Machine { cores: (0..cores).collect(), ..Machine::read() }
    }

    /// A result in which one side has too few samples for the last percentile.
    pub(crate) fn sample() -> CacheLikeResult {
        let (job, remarks) = job(&options(), CacheConfig::paper(), &machine(2), 3).unwrap();
        let turn = |gets| {
            let rates = |part: f64| Rates { gets: gets * part, sets: gets * part / 10.0 };
            Turn { timed: rates(1.0), elapsed: rates(0.5) }
        };
        let percentiles = |samples, last| Percentiles {
            samples,
            ns: [Some(900.0), Some(4000.0), Some(9000.0), Some(20_000.0), last],
        };
        let counts = Counts { copies: 1000, bytes: 100_000, long_copies: 48, long_bytes: 96_400, ..Counts::default() };
        let filling = Filling { long_copies: 52, long_bytes: 3600 };
        let measured = |gets| Measured { counts: counts.clone(), gets, sets: percentiles(200_000, None), filling };
        let offload = OffloadCounters { device_calls: 100, device_bytes: 100_000, ..OffloadCounters::default() };
        let off = [turn(1e6), turn(1e6)];
        let sides = vec![
            side_result(Variant::Off, &off, Some(&off), measured(percentiles(2_000_000, Some(50_000.0))), None),
            side_result(
                Variant::Always,
                &[turn(2e6), turn(1.5e6)],
                Some(&off),
                measured(percentiles(999_999, None)),
                Some(offload),
            ),
        ];
        let machine = machine(2);
        let (cores, threshold) = (job.cpus.len(), job.threshold);
        CacheLikeResult { kind: "cachelike", machine, remarks, config: job.config, cores, threshold, sides }
    }

    #[test]
    fn cores_and_threads_are_scaled_together_and_reported() {
        let of = |options: &CacheLikeOptions, cores| {
            let (job, remarks) = job(options, CacheConfig::paper(), &machine(cores), 1).unwrap();
            (job.cpus.len(), job.config.threads, remarks.iter().any(|it| it.contains("h/")))
        };
        assert_eq!(of(&options(), 8), (4, 8, false));
        assert_eq!(of(&options(), 2), (2, 4, true));
        let asked = CacheLikeOptions { cores: Some(3), threads: Some(5), ..options() };
        assert_eq!((of(&asked, 8), of(&asked, 2)), ((3, 5, false), (2, 5, true)));
    }

    #[test]
    fn sides_are_named_and_a_ratio_is_the_median_of_the_turns() {
        let of = |only: &[&str]| {
            sides(&CacheLikeOptions { only: only.iter().map(ToString::to_string).collect(), ..options() })
        };
        assert_eq!(of(&[]).unwrap(), Variant::NAMED);
        assert_eq!(of(&["learned", "off"]).unwrap(), [Variant::Learned, Variant::Off]);
        assert_eq!(of(&["off", "always", "off"]).unwrap(), [Variant::Off, Variant::Always], "a side runs once");
        assert!(of(&["of"]).unwrap_err().to_string().contains("use off, always, learned"));
        assert_eq!(sides(&CacheLikeOptions { alone: true, ..options() }).unwrap(), [Variant::AsItIs]);
        let ratios: Vec<_> = sample().sides.iter().map(|side| side.against_off).collect();
        assert_eq!(ratios, [Some(1.0), Some(1.75)]);
    }

    #[test]
    fn the_turns_have_exactly_the_operations_of_the_load() {
        let of = |operations| {
            let (mut job, _) = job(&options(), CacheConfig::paper(), &machine(2), 1).unwrap();
            job.config.operations = operations;
            turns_of(&job)
        };
        assert_eq!(of(23), [3, 3, 3, 2, 2, 2, 2, 2, 2, 2]);
        assert_eq!((of(4), of(20)), (vec![1; 4], vec![2; 10]));
        assert_eq!(of(2_222_222).iter().sum::<u64>(), 2_222_222);
    }

    #[test]
    fn the_modelled_device_has_four_shared_queues() {
        let folder = Folder::new().unwrap();
        let (arguments, remark) = devices(&options(), &folder).unwrap();
        assert_eq!((arguments.len(), arguments[0].as_str(), remark.is_some()), (2, "--device", true));
        let configs = Config::load(&folder.file("queues.json")).unwrap();
        let queues: Vec<_> = configs.iter().flat_map(|it| &it.groups).flat_map(|it| &it.grouped_workqueues).collect();
        assert_eq!(queues.len(), 4);
        assert!(queues.iter().all(|queue| queue.mode == WqMode::Shared));
        let named = CacheLikeOptions { devices: vec!["hw:wq0.0".into(), "hw:wq0.1".into()], ..options() };
        let (arguments, remark) = devices(&named, &folder).unwrap();
        assert_eq!((arguments.join(" "), remark), ("--device hw:wq0.0 --device hw:wq0.1".into(), None));
    }

    #[test]
    fn a_load_in_this_process_has_the_measures_of_a_side() {
        let job = run::tests::small();
        let side = in_this_process(&job).unwrap();
        assert!(side.gets_per_second > 0.0 && side.sets_per_second > 0.0 && side.gets.ns[0].is_some());
        assert_eq!((side.gets.ns[4], side.against_off, side.offload), (None, None, None));
    }
}
