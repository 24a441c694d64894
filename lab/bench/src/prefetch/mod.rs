//! Executes a query on this machine: by the engine alone, in groups of threads, and with prefetched columns. The
//! configurations take turns.

mod data;
mod error;

use crate::measure::median;
use crate::options::PrefetchOptions;
use data::Prepared;
pub use error::PrefetchError;
use std::sync::Arc;
use std::time::{Duration, Instant};
use telpher_cache::{Cache, Config, Stats, TierConfig};
use telpher_mem::{Pool, PoolOptions, Region};
use telpher_mover::Mover;
use telpher_os::check_memory;
use telpher_query::{Answer, Blocks, Options, PrefetchWhen, Report, Role, Row, Traffic, Value};
use telpher_report::machine::Machine;
use telpher_report::query::{BlockCounts, Cell, Data, QdpResult, Rows, Run, Shape, StageTime};

/// A configuration: the engine alone if `options` is `None`, otherwise the pipeline with these options.
#[derive(Clone, Copy, Debug)]
struct Configuration {
    name: &'static str,
    how: &'static str,
    options: Option<Options>,
}

const ALONE: &str = "alone";
/// The configuration with which the others are compared.
const BASELINE: &str = "none";

/// Executes the query in each configuration `repeat` times, in turns. Unless the query is executed by the engine alone,
/// `open` returns the mover that copies, and adds remarks about its device.
///
/// # Errors
/// If there is no such query, its data cannot be read or generated, there is too little memory, an answer is wrong, or
/// `open` fails.
pub fn run<E: From<PrefetchError>>(
    args: &PrefetchOptions,
    open: impl FnOnce(&mut Vec<String>) -> Result<Mover, E>,
) -> Result<QdpResult, E> {
    let machine = Machine::read();
    let mut remarks = Vec::new();
    let Prepared { query, summary, data } = data::prepare(args)?;
    let threads = args.threads.unwrap_or_else(|| u32::try_from(machine.cores.len()).unwrap_or(u32::MAX));
    let options = options(args, threads);
    let cache = if args.plain {
        None
    } else {
        let mover = open(&mut remarks)?;
        Some(cache(args, &data, mover)?)
    };
    let mut trials: Vec<Trial> = ways(args, options).into_iter().map(Trial::of).collect();
    // Not measured: this warms up memory and threads, and shows whether anything is worth prefetching here.
    let expected = query.alone(threads as usize);
    let execute = |way: &Configuration| -> Result<Execution, PrefetchError> {
        let Some(options) = &way.options else {
            let start = Instant::now();
            let answer = query.alone(threads as usize);
            return checked(
                way,
                answer == expected,
                Execution { time: start.elapsed(), report: None, stats: Stats::default() },
            );
        };
        let before = cache.as_ref().map(|cache| {
            cache.clear();
            cache.stats()
        });
        let report = telpher_query::run(&query, cache.as_ref(), options)?;
        let after = cache.as_ref().map(Cache::stats).unwrap_or_default();
        let (right, time, stats) = (report.answer == expected, report.time, after - before.unwrap_or_default());
        checked(way, right, Execution { time, report: Some(report), stats })
    };
    if !args.plain && data.fetched_bytes == 0 {
        remarks.push("AGGREGATE reads no column that SCAN has not read: nothing can be fetched ahead.".into());
    }
    let mut spared = 0;
    for trial in &trials {
        spared += execute(&trial.way)?.report.map_or(0, |report| report.blocks.spared);
    }
    if spared > 0 {
        remarks.push(
            "Columns lie on the node of the fast memory: copies of them gain nothing, so they are not fetched \
             unless that is forced."
                .into(),
        );
        let forced = Configuration {
            name: "forced",
            how: "relaxed, though the copies gain nothing",
            options: Some(fetching(options, true, PrefetchWhen::Always)),
        };
        execute(&forced)?;
        trials.push(Trial::of(forced));
    }
    for _ in 0..args.repeat {
        for trial in &mut trials {
            trial.done.push(execute(&trial.way)?);
        }
    }
    let baseline = trials.iter().find(|trial| trial.way.name == BASELINE).map(Trial::times);
    let runs = trials.iter().map(|trial| trial.result(&data, baseline.as_deref())).collect();
    let shape = (!args.plain).then_some(Shape {
        groups: options.shape.groups,
        chunk_rows: options.shape.chunk,
        scanners: options.shape.scanners,
        fetchers: options.shape.fetchers,
        aggregators: options.shape.aggregators,
    });
    let answer = rows(&expected);
    Ok(QdpResult { kind: "qdp", machine, remarks, query: query.sql("t"), summary, data, shape, answer, runs })
}

/// What the stages of a query read of its data.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The query as the user would type it.
    pub summary: String,
    /// The description of its data.
    pub data: Data,
    /// The bytes that its stages read.
    pub traffic: Traffic,
}

/// Executes the query once in groups of threads, without prefetching, and counts what its stages read.
///
/// # Errors
/// If there is no such query, its data cannot be read or generated, or there is too little memory.
pub fn measure(args: &PrefetchOptions) -> Result<Measured, PrefetchError> {
    let Prepared { query, summary, data } = data::prepare(args)?;
    let threads = args.threads.unwrap_or_else(|| u32::try_from(Machine::read().cores.len()).unwrap_or(u32::MAX));
    let options = Options { traffic: true, ..options(args, threads) };
    let traffic = telpher_query::run(&query, None, &options)?.traffic.unwrap_or_default();
    Ok(Measured { summary, data, traffic })
}

/// Returns the options of the pipeline that all configurations share.
fn options(args: &PrefetchOptions, threads: u32) -> Options {
    let mut options = Options::new(threads);
    let shape = &mut options.shape;
    shape.groups = args.groups.unwrap_or(shape.groups);
    shape.chunk = args.chunk.unwrap_or(shape.chunk);
    shape.scanners = args.scanners.unwrap_or(shape.scanners);
    shape.fetchers = args.fetchers.unwrap_or(shape.fetchers.max(1));
    shape.aggregators = args.aggregators.unwrap_or(shape.aggregators);
    options.late = args.late;
    options.node = args.node;
    options
}

/// Returns the configurations to compare.
fn ways(args: &PrefetchOptions, options: Options) -> Vec<Configuration> {
    let alone = Configuration {
        name: ALONE,
        how: "the engine, each thread with its own rows: no groups, no cache",
        options: None,
    };
    if args.plain {
        return vec![alone];
    }
    let mut without = options;
    without.shape.fetchers = 0;
    vec![
        alone,
        Configuration {
            name: BASELINE,
            how: "groups of threads; nothing is fetched, every column read where it lies",
            options: Some(without),
        },
        Configuration {
            name: "in step",
            how: "fetched ahead; no chunk is asked for before its turn: fetching waits for scanning",
            options: Some(fetching(options, false, PrefetchWhen::WhereApart)),
        },
        Configuration {
            name: "relaxed",
            how: "fetched ahead; chunks are asked for as fast as can be (thesis §6.1)",
            options: Some(fetching(options, true, PrefetchWhen::WhereApart)),
        },
    ]
}

fn fetching(mut options: Options, relaxed: bool, ahead: PrefetchWhen) -> Options {
    options.shape.relaxed = relaxed;
    options.ahead = ahead;
    options
}

/// Creates the cache in fast memory, with the mover that copies to it.
fn cache(args: &PrefetchOptions, data: &Data, mover: Mover) -> Result<Cache<Arc<Region>>, PrefetchError> {
    // Each block is rounded up to whole cache lines: a sixteenth is enough for that, and a page for the smallest
    // blocks.
    let needed = data.fetched_bytes + data.fetched_bytes / 16 + (4 << 10);
    let len = usize::try_from(args.tier_size.unwrap_or(needed)).unwrap_or(usize::MAX);
    let do_this = "give it less with --tier-size, or the query less with --size";
    check_memory("the fast memory", len as u64, args.tier_node, do_this)?;
    let options = PoolOptions { pages: args.pages, node: args.tier_node, ..PoolOptions::new(len) };
    let pool = Pool::new(options).map_err(|source| PrefetchError::Tier { len, source })?;
    let tier = TierConfig { pool, near: args.tier_node };
    Ok(Cache::new(mover, Config::new([tier]))?)
}

/// The result of one execution.
struct Execution {
    time: Duration,
    /// The report of the thread groups; `None` for the engine alone.
    report: Option<Report>,
    /// The cache's counts during the execution.
    stats: Stats,
}

fn checked(way: &Configuration, right: bool, execution: Execution) -> Result<Execution, PrefetchError> {
    if right { Ok(execution) } else { Err(PrefetchError::Wrong { way: way.name }) }
}

/// A configuration and its executions.
struct Trial {
    way: Configuration,
    done: Vec<Execution>,
}

impl Trial {
    fn of(way: Configuration) -> Self {
        Trial { way, done: Vec::new() }
    }

    fn times(&self) -> Vec<f64> {
        self.done.iter().map(|execution| execution.time.as_secs_f64() * 1e9).collect()
    }

    fn result(&self, data: &Data, baseline: Option<&[f64]>) -> Run {
        let Configuration { name, how, options } = self.way;
        let times = self.times();
        let median_ns = median(&mut times.clone());
        let ratios =
            |base: &[f64]| median(&mut base.iter().zip(&times).map(|(base, time)| base / time).collect::<Vec<_>>());
        let times_ns = self.done.iter().map(|execution| u64::try_from(execution.time.as_nanos()).unwrap_or(u64::MAX));
        let reports = || self.done.iter().filter_map(|execution| execution.report.as_ref());
        let executions = self.done.len().max(1) as f64;
        let roles = [("SCAN", Role::Scan), ("FETCH", Role::Fetch), ("AGGREGATE", Role::Aggregate)];
        let stage = |(stage, role)| {
            let all = || reports().flat_map(|report| &report.stages).filter(|stage| stage.role == role);
            let threads = all().map(|stage| stage.threads).max().unwrap_or(0);
            let mean = |sum: f64| sum * 1e9 / executions;
            let busy_ns = mean(all().map(|stage| stage.busy.as_secs_f64()).sum());
            let waited_ns = mean(all().map(|stage| stage.waited.as_secs_f64()).sum());
            StageTime { stage, threads, busy_ns, waited_ns }
        };
        // Without groups, each thread scans and aggregates in one loop: there are no stages to report.
        let stages = if options.is_some() { roles.into_iter().map(stage).collect() } else { Vec::new() };
        let sum = |of: fn(&Blocks) -> u64| reports().map(|report| of(&report.blocks)).sum::<u64>();
        let stats: Stats = self.done.iter().map(|execution| execution.stats).sum();
        let blocks = BlockCounts {
            requested: sum(|blocks| blocks.requested),
            spared: sum(|blocks| blocks.spared),
            hits: sum(|blocks| blocks.hits),
            late: sum(|blocks| blocks.late),
            absent: sum(|blocks| blocks.absent),
            copies: stats.copies,
            bytes_copied: stats.bytes_copied,
            fallbacks: stats.fallbacks(),
            evictions: stats.evictions,
        };
        let looked = blocks.hits + blocks.late + blocks.absent;
        Run {
            name,
            how,
            times_ns: times_ns.collect(),
            median_ns,
            bytes_per_s: data.bytes as f64 / median_ns * 1e9,
            speedup: baseline.map(ratios),
            overhead: baseline.map(|base| 1.0 / ratios(base) - 1.0),
            hit_rate: (blocks.requested > 0 && looked > 0).then(|| blocks.hits as f64 / looked as f64),
            stages,
            blocks,
        }
    }
}

fn rows(answer: &Answer) -> Rows {
    let cell = |value: &Value| match value {
        Value::Null => Cell::Null,
        Value::Integer(number) => Cell::Number(*number),
        Value::Float(number) if number.get().is_finite() => Cell::Float(number.get()),
        Value::Boolean(value) => Cell::Boolean(*value),
        // JSON has no exact decimals, and no dates.
        other => Cell::Text(other.to_string()),
    };
    let row = |row: &Row| row.keys.iter().chain(&row.values).map(cell).collect();
    Rows {
        columns: answer.keys.iter().chain(&answer.values).cloned().collect(),
        rows: answer.rows.iter().map(row).collect(),
    }
}
