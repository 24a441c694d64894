//! Fürst, §4 to §6: a query over two columns, the second prefetched.

use super::measure::three;
use super::vhost::measured;
use super::{Experiment, Found};
use crate::lab::Lab;
use crate::query::QueryVariant;
use crate::setups::{on, threads};
use std::rc::Rc;
use telpher_abi::Opcode;
use telpher_device::WqMode;
use telpher_sim::{BufferPlacement, ExecutedBy, Library, Outcome, Prefetch, Query, ScenarioError, Stream};

type Result<T = Found> = std::result::Result<T, ScenarioError>;

pub(super) const ALL: &[(&str, Experiment)] = &[
    ("T-060", |lab| time(lab, near())),
    ("T-061", |lab| speedup(lab, near())),
    ("T-063", |lab| time(lab, in_hbm())),
    ("T-064", |lab| speedup(lab, in_hbm())),
    ("T-066", |lab| time(lab, Query::prefetching(0))),
    ("T-067", |lab| speedup(lab, Query::prefetching(0))),
    ("T-069", |lab| time(lab, Query::prefetching(1))),
    ("T-070", |lab| speedup(lab, Query::prefetching(1))),
    ("T-072", on_the_same_node),
    ("T-073", on_different_nodes),
    ("T-074", faults_by_the_device),
    ("T-076", bursts),
];

fn near() -> Query {
    Query::of_two_columns()
}

/// Perfect prefetching: column b is in the HBM beside the threads.
fn in_hbm() -> Query {
    Query { b: 8, ..Query::of_two_columns() }
}

fn run(lab: &Lab, query: Query) -> Result<Rc<Outcome>> {
    lab.run(&QueryVariant::of("query", query).scenario())
}

fn of(lab: &Lab, query: Query, measure: &str) -> Result<f64> {
    Ok(measured(&*run(lab, query)?, measure))
}

fn time(lab: &Lab, query: Query) -> Result {
    Ok(Found::Number(of(lab, query, "query")?))
}

fn speedup(lab: &Lab, query: Query) -> Result {
    Ok(Found::Number(of(lab, near(), "query")? / of(lab, query, "query")?))
}

/// Another reading of the figures, which does not decide: stage times include other threads' turns.
fn by_the_clock(lab: &Lab, query: &Query, before: &Query) -> Result<String> {
    let mut shown = Vec::new();
    for stage in ["SCAN_a", "AGGREGATE"] {
        let ms = |query: &Query| of(lab, query.clone(), &format!("{stage} by the clock"));
        shown.push(format!("{stage} {} instead of {}", three(ms(query)?), three(ms(before)?)));
    }
    Ok(format!("by the clock {}", shown.join(", ")))
}

fn on_the_same_node(lab: &Lab) -> Result {
    let (together, apart, without) = (Query::prefetching(0), Query::prefetching(1), near());
    let clock = by_the_clock(lab, &together, &without)?;
    let scan = [of(lab, together.clone(), "SCAN_a")?, of(lab, without.clone(), "SCAN_a")?];
    let fetch = [of(lab, together.clone(), "SCAN_b")?, of(lab, apart, "SCAN_b")?];
    let sum = [of(lab, together, "AGGREGATE")?, of(lab, without, "AGGREGATE")?];
    let hardly = |pair: [f64; 2]| (pair[0] / pair[1] - 1.0).abs() <= 0.1;
    Ok(Found::shape(
        scan[0] > 1.2 * scan[1] && hardly(fetch) && hardly(sum),
        format!(
            "SCAN_a {} ms instead of {}; SCAN_b {} instead of {} with columns on separate nodes; AGGREGATE {} \
             instead of {}; \
             {clock}",
            three(scan[0]),
            three(scan[1]),
            three(fetch[0]),
            three(fetch[1]),
            three(sum[0]),
            three(sum[1])
        ),
    ))
}

fn on_different_nodes(lab: &Lab) -> Result {
    let mut shown = Vec::new();
    let mut holds = true;
    for stage in ["SCAN_a", "AGGREGATE"] {
        let (apart, hbm) = (of(lab, Query::prefetching(1), stage)?, of(lab, in_hbm(), stage)?);
        // "Slightly": up to a quarter more.
        holds &= apart > hbm && apart < hbm * 1.25;
        shown.push(format!("{stage} {} ms instead of {}", three(apart), three(hbm)));
    }
    shown.push(by_the_clock(lab, &Query::prefetching(1), &in_hbm())?);
    Ok(Found::shape(holds, shown.join("; ")))
}

fn faults_by_the_device(lab: &Lab) -> Result {
    let (mut holds, mut shown) = (true, Vec::new());
    for (name, b) in [("together", 0), ("apart", 1)] {
        let query = Query::prefetching(b);
        let prefetch = query.prefetch.clone().map(|prefetch| Prefetch { mapped: false, ..prefetch });
        let faulting = Query { prefetch, ..query.clone() };
        let hits = [of(lab, query.clone(), "cache hits")?, of(lab, faulting.clone(), "cache hits")?];
        // The same columns in place, without prefetching.
        let times = [of(lab, faulting, "query")?, of(lab, Query { b, ..near() }, "query")?];
        holds &= hits[1] < 0.2 * hits[0] && (times[0] / times[1] - 1.0).abs() <= 0.1;
        shown.push(format!(
            "columns {name}: hits {} % instead of {}, the query takes {} ms, without prefetching {}",
            three(hits[1]),
            three(hits[0]),
            three(times[0]),
            three(times[1])
        ));
    }
    Ok(Found::shape(holds, shown.join("; ")))
}

fn bursts(lab: &Lab) -> Result {
    // 32 threads of one node submit copies of a whole column, a sixteenth of the query's, at once, through one queue of
    // 128 entries.
    let retries = |size: u32| {
        let each = (256u64 << 20) / u64::from(size) / 32;
        let burst = Stream {
            by: ExecutedBy::SHARED,
            library: Library::Dml,
            depth: u32::try_from(each).unwrap_or(u32::MAX),
            submissions: each,
            dst: BufferPlacement::on(8),
            ..Stream::of(Opcode::MemoryMove, size)
        };
        let outcome = lab.run(&threads(on("xeon-max-9468", 1, WqMode::Shared, 1), 32, burst))?;
        Ok::<_, ScenarioError>(outcome.loads[0].timeline.retries)
    };
    let (small, large) = (retries(512 << 10)?, retries(2 << 20)?);
    Ok(Found::shape(small > 0 && large == 0, format!("refused: {small} with pieces of 512 KiB, {large} with 2 MiB")))
}
