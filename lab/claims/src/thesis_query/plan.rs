//! Any plan of the query engine in simulated time: its columns in DDR, in HBM, prefetched, and with HBM as a cache.
//!
//! ```text
//! rows, bytes of a real run's stages ─► the thesis' query with these bytes ─► each way ─► where prefetching pays
//! ```

use super::{SimulateError, StageMs, THESIS};
use crate::lab::Lab;
use crate::query::{QueryVariant, VariantResult};
use serde::Serialize;
use std::fmt::Write as _;
use telpher_report::about::About;
use telpher_report::html::Page;
use telpher_report::table::{Align, Table, hanging};
use telpher_report::units;
use telpher_sim::{HbmCacheMode, Machine, Pages, PlanTraffic, Query, ScenarioError};

/// A plan, and what its stages read of its data.
#[derive(Clone, Debug)]
pub struct MeasuredPlan {
    /// The query as text.
    pub query: String,
    /// The source of its data.
    pub from: String,
    /// Rows of the table.
    pub rows: u64,
    /// Rows of a chunk; `None` for an eighth of a group's, as in the thesis.
    pub chunk: Option<u64>,
    /// Bytes of its stages.
    pub traffic: PlanTraffic,
}

/// A plan in all ways.
#[derive(Clone, Debug, Serialize)]
pub struct PlanResult {
    /// `qdp`.
    pub kind: &'static str,
    /// The header of the result.
    #[serde(flatten)]
    pub about: About,
    /// Remarks for the reader.
    pub remarks: Vec<String>,
    /// The query as text.
    pub query: String,
    /// The source of its data.
    pub from: String,
    /// Rows of the table.
    pub rows: u64,
    /// Rows of a chunk.
    pub chunk_rows: u64,
    /// Bytes that SCAN reads.
    pub scanned_bytes: u64,
    /// Bytes that AGGREGATE reads.
    pub aggregated_bytes: u64,
    /// Bytes that are copied when columns are prefetched.
    pub prefetched_bytes: u64,
    /// The ways.
    pub ways: Vec<PlanWay>,
    /// For each placement of the columns, whether prefetching pays.
    pub verdicts: Vec<String>,
}

/// A way to execute the plan.
#[derive(Clone, Debug, Serialize)]
pub struct PlanWay {
    /// Its name.
    pub name: &'static str,
    /// Time of the whole query.
    pub time_ms: f64,
    /// Speedup over all columns in DDR of one node.
    pub speedup: f64,
    /// Percentage of chunks, or in cache mode of pages, that were in fast memory.
    pub hits_percent: Option<f64>,
    /// Time of each stage in ms, summed over all hardware threads.
    pub stages: Vec<StageMs>,
}

const DDR: &str = "DDR";
const APART: &str = "DDR of two nodes";
const NEAR_FETCHED: &str = "prefetching";
const APART_FETCHED: &str = "prefetching from another node";

/// Chunks of a group: as many as with prefetching in the thesis.
const CHUNKS: u64 = 8;

/// A query that is shorter than this many turns of a hardware thread depends on the order of its threads.
const TURNS: f64 = 10.0;

/// How much less time prefetching must take to pay. Source: assumed; less is within the model's own deviation.
const PAYS: f64 = 0.98;

/// Returns the ways; those with prefetching only if there is something to prefetch.
fn ways(plan: &MeasuredPlan, chunk: u64) -> Vec<(&'static str, Query)> {
    let of = |query: Query| query.of_plan(plan.rows, chunk, plan.traffic);
    let near = || of(Query::of_two_columns());
    let side = |warm| {
        let side = HbmCacheMode { a: 8, b: 8, bytes: 16 << 30, pages: Pages::Anywhere(1), warm };
        Query { memory_side: Some(side), ..near() }
    };
    let mut ways = vec![(DDR, near()), ("HBM", Query { b: 8, ..near() }), (APART, Query { b: 1, ..near() })];
    if plan.traffic.columns > 0 {
        ways.push((NEAR_FETCHED, of(Query::prefetching(0))));
        ways.push((APART_FETCHED, of(Query::prefetching(1))));
    }
    ways.extend([("HBM in cache mode: first run", side(false)), ("HBM in cache mode: later run", side(true))]);
    ways
}

/// Simulates a plan on a machine, of which numbers were `changed` or not.
///
/// # Errors
/// If the machine cannot execute the query.
pub fn simulate_plan(machine: Machine, changed: bool, plan: &MeasuredPlan) -> Result<PlanResult, SimulateError> {
    let about = About::of_all(&[(machine.name.clone(), machine.hash)]);
    let mut remarks = Vec::new();
    if machine.name != THESIS || changed {
        remarks.push(format!("Numbers of threads and cores are those of the thesis' machine, {THESIS}."));
    }
    let lab = Lab::on(machine);
    let cannot = |why: ScenarioError| SimulateError::Machine { profile: about.profile.clone(), why };
    let groups = u64::from(Query::of_two_columns().groups);
    let chunk = plan.chunk.unwrap_or_else(|| plan.rows.div_ceil(groups).div_ceil(CHUNKS)).max(1);
    let mut found = Vec::new();
    for (name, query) in ways(plan, chunk) {
        let result = QueryVariant::of(name, query).run(&lab).map_err(cannot)?;
        found.push((name, result));
    }
    let base = found.first().map_or(f64::NAN, |(_, result)| result.ms);
    let way = |(name, result): &(&'static str, VariantResult)| PlanWay {
        name,
        time_ms: result.ms,
        speedup: base / result.ms,
        hits_percent: result.hits,
        stages: result.stages.iter().map(|stage| StageMs { stage: stage.name.clone(), ms: stage.value }).collect(),
    };
    let ways: Vec<PlanWay> = found.iter().map(way).collect();
    if base < TURNS * Query::of_two_columns().turn.as_nanos_f64() / 1e6 {
        remarks.push(
            "The query is short beside the turns of the hardware threads, so that their order matters; give more data."
                .into(),
        );
    }
    let verdicts = verdicts(&ways);
    let PlanTraffic { scanned, again, fetched, copied, .. } = plan.traffic;
    Ok(PlanResult {
        kind: "qdp",
        about,
        remarks,
        query: plan.query.clone(),
        from: plan.from.clone(),
        rows: plan.rows,
        chunk_rows: chunk,
        scanned_bytes: scanned,
        aggregated_bytes: again + fetched,
        prefetched_bytes: copied,
        ways,
        verdicts,
    })
}

/// Returns for each placement of the columns whether prefetching pays.
fn verdicts(ways: &[PlanWay]) -> Vec<String> {
    let ms = |name: &str| ways.iter().find(|way| way.name == name).map(|way| way.time_ms);
    let verdict = |place: &str, without: Option<f64>, with: Option<f64>| {
        let (without, with) = (without?, with?);
        let pays = if with < without * PAYS { "Prefetching pays" } else { "Prefetching does not pay" };
        let change = (with / without - 1.0) * 100.0;
        Some(format!("{pays} {place}: {with:.2} ms instead of {without:.2} ({change:+.1} %)."))
    };
    let all: Vec<String> = [
        verdict("from the node of the other columns", ms(DDR), ms(NEAR_FETCHED)),
        verdict("from another node", ms(APART), ms(APART_FETCHED)),
    ]
    .into_iter()
    .flatten()
    .collect();
    if all.is_empty() {
        return vec!["AGGREGATE reads no column that SCAN has not read, so that there is nothing to prefetch.".into()];
    }
    all
}

const HEADER: [&str; 7] = ["way", "ms", "speedup", "hits %", "SCAN", "FETCH", "AGGREGATE"];

fn cells(way: &PlanWay) -> Vec<String> {
    let stage = |name: &str| {
        let stage = way.stages.iter().find(|stage| stage.stage == name);
        stage.map_or("–".into(), |stage| format!("{:.2}", stage.ms))
    };
    vec![
        way.name.to_owned(),
        format!("{:.2}", way.time_ms),
        format!("{:.2}", way.speedup),
        way.hits_percent.map_or("–".into(), |hits| format!("{hits:.1}")),
        stage("SCAN_a"),
        stage("SCAN_b"),
        stage("AGGREGATE"),
    ]
}

const LEGEND: &str = "speedup: over all columns in DDR of one node; HBM: the columns that only AGGREGATE reads; \
                      hits: chunks, in cache mode pages, that were in fast memory; stages: milliseconds of all \
                      hardware threads together.";

fn bytes(result: &PlanResult) -> String {
    format!(
        "{} rows of {}, in chunks of {}; SCAN reads {}, AGGREGATE {}; {} can be prefetched",
        result.rows,
        result.from,
        result.chunk_rows,
        units::size(result.scanned_bytes),
        units::size(result.aggregated_bytes),
        units::size(result.prefetched_bytes)
    )
}

/// Returns the table for a terminal.
#[must_use]
pub fn text(result: &PlanResult) -> String {
    let mut out = hanging("", 0, &result.about.heading());
    result.remarks.iter().for_each(|remark| out.push_str(&hanging("", 0, remark)));
    let _ = write!(out, "\n{}{}\n", hanging("", 0, &result.query), hanging("", 0, &bytes(result)));
    let align = |name| (name, if name == "way" { Align::Left } else { Align::Right });
    let mut table = Table::new(&HEADER.map(align));
    result.ways.iter().for_each(|way| table.row(cells(way)));
    let _ = write!(out, "{table}\n{}\n", hanging("", 2, LEGEND));
    result.verdicts.iter().for_each(|verdict| out.push_str(&hanging("", 0, verdict)));
    out
}

/// Returns one line for each way.
#[must_use]
pub fn csv(result: &PlanResult) -> String {
    let mut out = String::from("simulated,way,time_ms,speedup,hits_percent\n");
    for way in &result.ways {
        let hits = way.hits_percent.map_or(String::new(), |hits| hits.to_string());
        let _ = writeln!(out, "yes,{},{},{},{hits}", way.name, way.time_ms, way.speedup);
    }
    out
}

/// Returns the HTML report.
#[must_use]
pub fn html(result: &PlanResult) -> String {
    let mut page = Page::with_facts("telpher qdp", &result.query, &result.about.facts(), &result.remarks);
    page.section("Simulated ways", &bytes(result));
    page.table(&HEADER.map(String::from), result.ways.iter().map(cells));
    page.small(LEGEND);
    result.verdicts.iter().for_each(|verdict| page.small(verdict));
    page.finish()
}
