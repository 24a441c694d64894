//! A query with prefetched columns, as terminal tables, CSV and an HTML page.

use super::{Cell, DataColumn, QdpResult, Run};
use crate::html::{Figure, Page};
use crate::panel::{Axis, Origin, Panel, Scale, Series, Shape};
use crate::plot;
use crate::table::{Align, Table, WIDTH, hanging};
use crate::units;
use std::fmt::Write as _;

/// Maximum printed lines of an answer. Source: chosen; a terminal shows them without much scrolling. JSON has all.
const SHOWN: usize = 40;

/// Characters of a name and of its value. Source: chosen; together they fill a terminal's line.
const LONGEST: usize = 57;
const NUMBER: usize = 18;

/// Returns the tables for a terminal.
#[must_use]
pub fn text(result: &QdpResult) -> String {
    let mut out = String::new();
    let remarks: String = result.remarks.iter().map(|remark| hanging("", 0, remark)).collect();
    let _ = write!(out, "{}{remarks}\n{}", crate::heading(&result.machine, &[]), hanging("", 0, &result.summary));
    let _ = writeln!(out, "{}", about(result));
    let _ = write!(out, "\n{}\n", answer(result));
    let align = |name: &&'static str| (*name, if *name == "way" { Align::Left } else { Align::Right });
    let mut ways = Table::new(&WAYS.iter().map(align).collect::<Vec<_>>());
    result.runs.iter().for_each(|run| ways.row(cells(run)));
    let _ = write!(out, "{ways}\n{}", hanging("", 2, LEGEND));
    for run in &result.runs {
        out.push_str(&hanging(&format!("  {}", run.name), 11, run.how));
    }
    out
}

/// Describes the data.
fn about(result: &QdpResult) -> String {
    let data = &result.data;
    let names = |of: fn(&DataColumn) -> bool| {
        let names: Vec<&str> = data.columns.iter().filter(|it| of(it)).map(|it| it.name.as_str()).collect();
        if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
    };
    let mut text = hanging(
        "data",
        9,
        &format!("{} rows, {} that the query reads; {}", data.rows, units::size(data.bytes), data.from),
    );
    text += &hanging("scanned", 9, &names(|column| column.scanned));
    let fetched = format!("{} ({})", names(|column| column.fetched), units::size(data.fetched_bytes));
    text += &hanging("fetched", 9, &fetched);
    if let Some(shape) = &result.shape {
        let threads = format!(
            "{} groups; in each {} scan, {} fetch, {} sum; chunks of {} rows",
            shape.groups, shape.scanners, shape.fetchers, shape.aggregators, shape.chunk_rows
        );
        text += &hanging("threads", 9, &threads);
    }
    text.trim_end().to_owned()
}

/// Returns the answer as a table, or as lines of names and values if the table is too wide for a terminal.
fn answer(result: &QdpResult) -> String {
    let names = &result.answer.columns;
    let mut table = Table::new(&names.iter().map(|name| (name.as_str(), Align::Right)).collect::<Vec<_>>());
    answer_rows(result, SHOWN).for_each(|row| table.row(row));
    let table = table.to_string();
    if table.lines().all(|line| line.chars().count() <= WIDTH) {
        return table + &more(result, SHOWN);
    }
    let shown = (SHOWN / names.len()).max(1);
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).min(LONGEST);
    let mut out = String::new();
    for row in answer_rows(result, shown) {
        if !out.is_empty() {
            out.push('\n');
        }
        for (name, value) in names.iter().zip(row) {
            let _ = writeln!(out, "  {name:longest$}  {value:>NUMBER$}");
        }
    }
    out + &more(result, shown)
}

fn answer_rows(result: &QdpResult, most: usize) -> impl Iterator<Item = Vec<String>> {
    let cell = |cell: &Cell| match cell {
        Cell::Null => "null".to_owned(),
        Cell::Number(number) => number.to_string(),
        Cell::Float(number) => format!("{number:?}"),
        Cell::Boolean(value) => value.to_string(),
        Cell::Text(text) => text.escape_debug().to_string(),
    };
    result.answer.rows.iter().take(most).map(move |row| row.iter().map(cell).collect())
}

/// Returns a line with the number of omitted rows.
fn more(result: &QdpResult, shown: usize) -> String {
    match result.answer.rows.len().saturating_sub(shown) {
        0 => String::new(),
        more => format!("  … and {more} rows more; --format json has all\n"),
    }
}

const WAYS: [&str; 8] = ["way", "time", "to none", "read", "hits", "SCAN", "FETCH", "AGGREGATE"];

const LEGEND: &str = "time: median; to none: how much longer than without fetching, turn by turn, median; read: \
                      columns by time; hits: blocks that AGGREGATE found in fast memory; stages: time at work of one \
                      thread, mean.";

fn cells(run: &Run) -> Vec<String> {
    let stage = |name: &str| {
        let stage = run.stages.iter().find(|stage| stage.stage == name && stage.threads > 0);
        stage.map_or("–".into(), |stage| units::time(stage.busy_ns / f64::from(stage.threads)))
    };
    let some = |value: Option<f64>, text: fn(f64) -> String| value.map_or("–".into(), text);
    vec![
        run.name.to_owned(),
        units::time(run.median_ns),
        some(run.overhead, |share| format!("{:+.1} %", share * 100.0)),
        units::rate(run.bytes_per_s),
        some(run.hit_rate, |rate| format!("{:.1} %", rate * 100.0)),
        stage("SCAN"),
        stage("FETCH"),
        stage("AGGREGATE"),
    ]
}

/// One line for each execution.
#[must_use]
pub fn csv(result: &QdpResult) -> String {
    let mut out = String::from("way,execution,time_ns,rows,bytes,fetched_bytes,hits,late,absent,spared,copies\n");
    let data = &result.data;
    for run in &result.runs {
        let blocks = &run.blocks;
        for (number, time) in run.times_ns.iter().enumerate() {
            let _ = writeln!(
                out,
                "{},{},{time},{},{},{},{},{},{},{},{}",
                run.name,
                number + 1,
                data.rows,
                data.bytes,
                data.fetched_bytes,
                blocks.hits,
                blocks.late,
                blocks.absent,
                blocks.spared,
                blocks.copies
            );
        }
    }
    out
}

/// Returns the HTML report.
#[must_use]
pub fn html(result: &QdpResult) -> String {
    let mut page = Page::new(
        "telpher qdp",
        "A query whose later columns are fetched ahead into fast memory while its first ones are filtered. Its ways \
         take turns; every execution's answer is the engine's own.",
        &result.machine,
        &result.remarks,
    );
    page.section("The query", &result.summary);
    page.listing(&about(result));
    page.table(&result.answer.columns, answer_rows(result, SHOWN));
    page.small(&more(result, SHOWN));
    page.section("How long it took", LEGEND);
    page.charts([
        Figure { caption: "One execution".into(), svg: plot::svg(&times(result)), legend: Vec::new() },
        stages(result),
    ]);
    page.table(&WAYS.map(String::from), result.runs.iter().map(cells));
    let how = result.runs.iter().map(|run| vec![run.name.to_owned(), run.how.to_owned()]);
    page.sentences(&["way", "how it works"], how);
    page.section("What became of the blocks", "Over all executions of each way.");
    let header = ["way", "requested", "spared", "hits", "late", "absent", "copies", "bytes", "fallbacks", "evictions"];
    let rows = result.runs.iter().filter(|run| !run.stages.is_empty()).map(|run| {
        let blocks = &run.blocks;
        let counts = [blocks.requested, blocks.spared, blocks.hits, blocks.late, blocks.absent, blocks.copies];
        let name = std::iter::once(run.name.to_owned());
        let counts = name.chain(counts.map(|count| count.to_string()));
        let rest = [units::size(blocks.bytes_copied), blocks.fallbacks.to_string(), blocks.evictions.to_string()];
        counts.chain(rest).collect()
    });
    page.table(&header.map(String::from), rows);
    page.finish()
}

fn panel(names: Vec<String>, label: &str, shape: Shape, series: Vec<Series>) -> Panel {
    Panel {
        title: String::new(),
        x: Axis { label: "way".into(), unit: "", scale: Scale::Names(names) },
        y: Axis { label: label.into(), unit: "ms", scale: Scale::Linear },
        shape,
        series,
        marks: Vec::new(),
    }
}

/// Draws a bar for each value.
fn bars(name: &str, values: impl Iterator<Item = f64>) -> Series {
    let points = values.enumerate().map(|(number, value)| (number as f64, value)).collect();
    // Filled bars are results of this run.
    Series { name: name.into(), origin: Origin::Simulated, points }
}

fn times(result: &QdpResult) -> Panel {
    let names = result.runs.iter().map(|run| run.name.to_owned()).collect();
    let values = result.runs.iter().map(|run| run.median_ns / 1e6);
    panel(names, "time", Shape::Bars, vec![bars("time", values)])
}

/// Returns the work of each stage's threads, for each configuration.
fn stages(result: &QdpResult) -> Figure<'static> {
    let runs = || result.runs.iter().filter(|run| !run.stages.is_empty());
    let names = ["SCAN", "FETCH", "AGGREGATE"];
    let busy = |run: &Run, name| run.stages.iter().filter(|it| it.stage == name).map(|it| it.busy_ns / 1e6).sum();
    let series = names.map(|name| bars(name, runs().map(|run| busy(run, name))));
    let panel =
        panel(runs().map(|run| run.name.to_owned()).collect(), "time of all threads", Shape::Stacks, series.into());
    let legend = plot::colours(&panel).into_iter().zip(names).map(|((style, _), name)| (style, name)).collect();
    Figure { caption: "Stages: time at work, of all their threads".into(), svg: plot::svg(&panel), legend }
}
