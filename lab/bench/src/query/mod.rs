//! `telpher bench query`: the query engine of `telpher qdp` against DuckDB, in turns, on the same columns.
//!
//! ```text
//! tables ──► Query::alone, its threads in this process
//!      └───► DuckDB, its threads in a Python process      every answer is compared with ours
//! ```

mod competitor;

use super::BenchError;
use super::goal::{Goal, Row};
use super::measure::median;
use super::progress::Budget;
use crate::options::QueryOptions;
use competitor::{Competitor, Missing};
use serde::Serialize;
use std::time::{Duration, Instant};
use telpher_query::{Aggregate, Filter, Plan, Query, Table, column, generate};
use telpher_report::machine::Machine;

/// Everything that `telpher bench query` measured.
#[derive(Clone, Debug, Serialize)]
pub struct QueryResult {
    /// `query`.
    pub kind: &'static str,
    /// The machine.
    pub machine: Machine,
    /// Remarks for the reader.
    pub remarks: Vec<String>,
    /// The numbers.
    pub rows: Vec<Row>,
}

/// Minimum speed against DuckDB. Source: goal of the engine.
const AGAINST_DUCKDB: f64 = 1.0;
/// Minimum number of rounds of a query, however slow it is.
const FEWEST_ROUNDS: usize = 5;
/// Seed of the generated data. Source: chosen.
const SEED: u64 = 6;
/// Bytes in a row of each table: two values of 8; four of 8, two of 1 and one of 4.
const ROW: [u64; 2] = [16, 38];

/// A query and its table.
struct Experiment {
    name: &'static str,
    table: usize,
    plan: Plan,
}

fn contests() -> Vec<Experiment> {
    let of = |name, table, plan| Experiment { name, table, plan };
    let grouped = Plan {
        group_by: vec!["l_linestatus".into()],
        aggregates: vec![Aggregate::Count, Aggregate::Min(column("l_shipdate")), Aggregate::Max(column("l_shipdate"))],
        ..Plan::default()
    };
    let counted =
        Plan { filters: vec![Filter::between("a", 10..=19)], aggregates: vec![Aggregate::Count], ..Plan::default() };
    let extremes = Plan {
        aggregates: vec![Aggregate::Min(column("b")), Aggregate::Max(column("b"))],
        filters: vec![Filter::at_least("a", 95)],
        ..Plan::default()
    };
    vec![
        of("the thesis' query: half of a, sum of b", 0, Plan::thesis()),
        of("rows in a range of a", 0, counted),
        of("least and greatest b of one row in twenty", 0, extremes),
        of("TPC-H query 6", 1, Plan::tpch_q6()),
        of("TPC-H query 1", 1, Plan::tpch_q1()),
        of("first and last date of two groups", 1, grouped),
    ]
}

/// Runs the benchmark.
pub fn run(args: &QueryOptions, machine: Machine) -> Result<QueryResult, BenchError> {
    let threads = args.threads.map_or(machine.cores.len(), |threads| threads as usize).max(1);
    let tables = [
        generate::two_columns(args.size / ROW[0], SEED, &mut generate::anywhere),
        generate::lineitem(args.size / ROW[1], SEED, &mut generate::anywhere),
    ];
    let tables = tables.into_iter().collect::<Result<Vec<Table>, _>>()?;
    let mut remarks = vec![format!(
        "{threads} threads on either side, integers of the same types, tables in memory; queries are \
         parsed and planned beforehand."
    )];
    let mut rival = match Competitor::start(&args.python, threads)? {
        Ok(mut rival) => {
            for (number, table) in tables.iter().enumerate() {
                rival.load(&name(number), table)?;
            }
            remarks.push(format!("The other side is DuckDB {}.", rival.version()));
            Some(rival)
        }
        Err(Missing(why)) => {
            remarks.push(format!(
                "There is no DuckDB to compare with ({why}); `pip install duckdb numpy` in a Python that --python \
                 names."
            ));
            None
        }
    };
    let contests = contests();
    let mut budget = Budget::new(Duration::from_secs_f64(args.seconds), contests.len() as f64);
    let mut rows = Vec::new();
    for contest in &contests {
        let query = contest.plan.on(&tables[contest.table]).expect("its columns are generated, and their values small");
        let time = budget.step(contest.name, 1.0);
        rows.push(hold(contest, &query, threads, rival.as_mut(), time)?);
    }
    budget.finish();
    Ok(QueryResult { kind: "query", machine, remarks, rows })
}

/// Returns the name of a table in SQL.
fn name(table: usize) -> String {
    format!("t{table}")
}

/// Runs both engines in turns, in alternating order; or ours alone.
fn hold(
    contest: &Experiment,
    query: &Query,
    threads: usize,
    mut rival: Option<&mut Competitor>,
    time: Duration,
) -> Result<Row, BenchError> {
    let wrong = |route: &str| BenchError::Wrong { op: contest.name.into(), route: route.into() };
    if let Some(rival) = rival.as_deref_mut() {
        rival.prepare(&query.sql(&name(contest.table)))?;
    }
    // Each engine runs once unmeasured: this yields the expected answer and pays one-time costs.
    let expected = query.alone(threads);
    let mine = || {
        let start = Instant::now();
        let answer = query.alone(threads);
        let took = start.elapsed();
        if answer == expected { Ok(took) } else { Err(wrong("telpher")) }
    };
    let mut its = || match rival.as_deref_mut() {
        None => Ok(None),
        Some(rival) => match rival.turn(&expected)? {
            (took, true) => Ok(Some(took)),
            (_, false) => Err(wrong("telpher or DuckDB: their answers differ")),
        },
    };
    its()?;
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let start = Instant::now();
    while ours.len() < FEWEST_ROUNDS || start.elapsed() < time {
        let (a, b) = if ours.len().is_multiple_of(2) {
            let a = mine()?;
            (a, its()?)
        } else {
            let b = its()?;
            (mine()?, b)
        };
        ours.push(a.as_secs_f64() * 1e3);
        if let Some(b) = b {
            theirs.push(b.as_secs_f64() * 1e3);
            ratios.push(b.as_secs_f64() / a.as_secs_f64());
        }
    }
    let rounds = ours.len();
    let ms = median(&mut ours);
    let rows = query.table().rows();
    if ratios.is_empty() {
        return Ok(Row::new(contest.name, ms, "ms", None, format!("telpher alone; {rows} rows, {rounds} rounds")));
    }
    let how = format!("{ms:.2} ms against {:.2} ms; {rows} rows, median of {rounds} rounds", median(&mut theirs));
    Ok(Row::new(contest.name, median(&mut ratios), "times DuckDB's speed", Some(Goal::AtLeast(AGAINST_DUCKDB)), how))
}
