//! Fürst, TU Dresden 2024: Tables 6.1 and 6.2, Figures 6.1 and 6.2.

use super::sweep::{axis, published, simulated};
use super::{Axis, Panel, Result, Scale, Shape, Sheet};
use crate::lab::Lab;
use crate::published::Value;
use crate::query::{self, QueryVariant, VariantResult};

pub(super) const SHEETS: &[Sheet] = &[
    Sheet {
        id: "thesis-6.1",
        source: "Fürst, TU Dresden 2024, Figure 6.1 and Table 6.1",
        title: "A query's stages without prefetching",
        how: "Two columns of 4 GiB, filtered and summed by 96 threads on the twelve cores of node 0: both in DDR, or \
              column b in HBM. A stage's time is that of all hardware threads together. Both times calibrate the rates \
              of memory and threads.",
        claims: &["T-060", "T-061", "T-063", "T-064"],
        draw: figure_1,
    },
    Sheet {
        id: "thesis-6.2",
        source: "Fürst, TU Dresden 2024, Figure 6.2 and Table 6.2",
        title: "A query's stages with prefetching",
        how: "The same; 32 of the threads have the four devices of the socket copy column b from DDR to HBM, in chunks \
              of 16 MiB. Whether a copy is done when its chunk is needed is simulated: hits are a result, not an \
              input.",
        claims: &["T-066", "T-067", "T-068", "T-069", "T-070", "T-071", "T-072", "T-073", "T-074"],
        draw: figure_2,
    },
];

fn bars(title: &str, x: Axis, y: Axis, series: Vec<super::Series>) -> Panel {
    Panel { title: title.into(), x, y, shape: Shape::Bars, series, marks: Vec::new() }
}

fn ms() -> Axis {
    axis("time", "ms", Scale::Linear)
}

/// Their stages, a series for each variant.
fn stages(ways: &[(QueryVariant, VariantResult)]) -> Panel {
    let names = ways.first().map(|(_, result)| result.stages.iter().map(|stage| stage.name.clone()).collect());
    let series = ways.iter().map(|(way, result)| {
        simulated(way.name, (0u8..).map(f64::from).zip(result.stages.iter().map(|stage| stage.value)))
    });
    let x = axis("stage", "", Scale::Names(names.unwrap_or_default()));
    bars("stages", x, ms(), series.collect())
}

/// One number of each variant, simulated beside published.
fn table(title: &str, y: Axis, rows: Vec<(&str, f64, &Value)>) -> Panel {
    // Names as short as the axis positions allow: prefetched variants follow those with longer names.
    let short = |name: &str| name.trim_start_matches("prefetching, ").to_owned();
    let x = axis("way", "", Scale::Names(rows.iter().map(|row| short(row.0)).collect()));
    let places = || (0u8..).map(f64::from);
    let printed = rows.iter().map(|row| if let Value::One(value) = row.2 { *value } else { f64::NAN });
    let series =
        vec![simulated(title, places().zip(rows.iter().map(|row| row.1))), published(title, places().zip(printed))];
    bars(title, x, y, series)
}

fn times(ways: &[(QueryVariant, VariantResult)]) -> Panel {
    let rows = ways.iter().filter_map(|(way, result)| Some((way.name, result.ms, &way.published?.time.value)));
    table("query", ms(), rows.collect())
}

fn run(lab: &Lab) -> Result<Vec<(QueryVariant, VariantResult)>> {
    query::published().into_iter().map(|way| way.run(lab).map(|result| (way, result))).collect()
}

fn figure_1(lab: &Lab) -> Result<Vec<Panel>> {
    let ways = run(lab)?;
    Ok(vec![stages(&ways[..2]), times(&ways[..2])])
}

fn figure_2(lab: &Lab) -> Result<Vec<Panel>> {
    let ways = run(lab)?;
    let hits = ways.iter().filter_map(|(way, result)| Some((way.name, result.hits?, &way.published?.hits?.value)));
    let hits = table("hits of the cache", axis("hits", "%", Scale::Linear), hits.collect());
    Ok(vec![stages(&ways[2..]), times(&ways), hits])
}
