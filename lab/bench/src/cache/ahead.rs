//! The cost of prefetching for queries that gain nothing from it.
//!
//! Each query runs without a cache, and with a cache whose memory is no faster than the memory of the columns.

use crate::BenchError;
use crate::goal::{Goal, Row};
use crate::measure::median;
use crate::questions::Experiment;
use std::sync::Arc;
use std::time::{Duration, Instant};
use telpher_cache::{Cache, Config};
use telpher_mem::{Pool, PoolOptions, Region};
use telpher_mover::Mover;
use telpher_query::{Options, Plan, PrefetchWhen, Query, Report, Table, generate, run};
use telpher_report::machine::Machine;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "ahead",
    question: "What does prefetching cost a query that gains nothing from it?",
    cores: 1,
    weight: 4.0,
    measure,
};

/// How much longer a query may take, in percent. Source: goal of the engine.
const LONGER: f64 = 5.0;
/// Rows of the tables: 64 MiB of two 64-bit columns, and 64 MiB of the seven columns of TPC-H's lineitem.
const ROWS: [u64; 2] = [4 << 20, (64 << 20) / 38];
/// Seed of the generated data. Source: chosen.
const SEED: u64 = 6;
/// Minimum number of rounds, even if the time is over.
const FEWEST: usize = 5;

/// The variants: no cache; a cache that skips blocks that cannot gain; a cache that prefetches everything.
const WAYS: usize = 3;

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let two = generate::two_columns(ROWS[0], SEED, &mut generate::anywhere)?;
    let items = generate::lineitem(ROWS[1], SEED, &mut generate::anywhere)?;
    let queries = [
        ("the thesis' query", Plan::thesis(), &two),
        ("TPC-H query 1", Plan::tpch_q1(), &items),
        ("TPC-H query 6", Plan::tpch_q6(), &items),
    ];
    let (mut left, mut forced) = (Vec::new(), Vec::new());
    for (name, plan, table) in queries {
        let query = plan.on(table).expect("its columns are generated, and their values small");
        let seen = rounds(machine, &query, table, time / 3)?;
        left.push(seen.row(format!("{name}, fetched ahead where it can gain"), 1, Some(Goal::AtMost(LONGER))));
        forced.push(seen.row(format!("{name}, everything fetched ahead all the same"), 2, None));
    }
    left.extend(forced);
    Ok(left)
}

/// Milliseconds of each variant, one value per round, and the report of the last round.
struct Seen {
    times: [Vec<f64>; WAYS],
    last: [Report; WAYS],
}

fn rounds(machine: &Machine, query: &Query, table: &Table, time: Duration) -> Result<Seen, BenchError> {
    let bytes = table.columns().iter().map(|column| column.range(0..table.rows()).len()).sum();
    let pool = Pool::new(PoolOptions::new(bytes))?;
    let cache: Cache<Arc<Region>> = Cache::new(Mover::cpu(), Config::new([pool]))?;
    let options = Options::new(u32::try_from(machine.cores.len()).unwrap_or(1));
    let all = Options { ahead: PrefetchWhen::Always, ..options };
    let expected = query.alone(machine.cores.len());
    let once = |way: usize| -> Result<Report, BenchError> {
        cache.clear();
        let report = match way {
            0 => run(query, None, &options),
            1 => run(query, Some(&cache), &options),
            _ => run(query, Some(&cache), &all),
        }?;
        if report.answer == expected {
            return Ok(report);
        }
        Err(BenchError::Wrong { op: "query".into(), route: EXPERIMENT.name.into() })
    };
    let mut last = [once(0)?, once(1)?, once(2)?];
    let mut times: [Vec<f64>; WAYS] = Default::default();
    let start = Instant::now();
    while times[0].len() < FEWEST || start.elapsed() < time {
        // Each round begins with another variant.
        for place in 0..WAYS {
            let way = (times[0].len() + place) % WAYS;
            last[way] = once(way)?;
        }
        for (times, report) in times.iter_mut().zip(&last) {
            times.push(report.time.as_secs_f64() * 1e3);
        }
    }
    Ok(Seen { times, last })
}

impl Seen {
    /// A row: how much longer a variant takes than the variant without a cache.
    fn row(&self, what: String, way: usize, goal: Option<Goal>) -> Row {
        let mut more: Vec<f64> =
            self.times[way].iter().zip(&self.times[0]).map(|(with, without)| 100.0 * (with / without - 1.0)).collect();
        let [with, without] = [way, 0].map(|way| median(&mut self.times[way].clone()));
        let blocks = self.last[way].blocks;
        let how = format!(
            "{with:.2} ms against {without:.2} ms without a cache, {} rounds; of the blocks of the last {} \
             were asked for and {} left because they lie where their copies would",
            more.len(),
            blocks.requested,
            blocks.spared
        );
        Row::new(what, median(&mut more), "% longer", goal, how)
    }
}
