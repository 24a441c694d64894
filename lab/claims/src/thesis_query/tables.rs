//! The thesis' tables of query-driven prefetching, simulated, as terminal tables, CSV and an HTML page.

use super::{Compared, Pair, QuestionRows, SimulatedResult, WayRow};
use crate::figures::page as figures;
use std::fmt::Write as _;
use telpher_report::html::{Figure, Page};
use telpher_report::panel::{Axis, Origin, Panel, Scale, Series, Shape};
use telpher_report::plot;
use telpher_report::table::{Align, Table, hanging};

const OPENING: &str = "The query of Fürst's thesis (section 6.1), two columns of 4 GiB: SCAN_a filters one, SCAN_b has \
                       the other copied from DDR to HBM, and AGGREGATE sums it. Nothing was measured here; published \
                       numbers are from the thesis.";

/// The uses of published numbers: key, title and explanation.
const USES: [(&str, &str, &str); 3] = [
    ("held out", "Held out", "no parameter was fitted to these"),
    (
        "outcome",
        "Cache hits",
        "results of the simulated copies; of the published values only their granularity was used, which gives the \
         chunk size",
    ),
    ("calibration", "Calibration", "parameters of the machine were fitted to these, so they prove nothing"),
];

/// Returns the published numbers with this use, each with its configuration.
fn used<'a>(result: &'a SimulatedResult, usage: &str) -> Vec<(&'a WayRow, &'a Compared)> {
    let all = result.published.iter().flat_map(|row| row.published.iter().map(move |compared| (row, compared)));
    all.filter(|(_, compared)| compared.usage == usage).collect()
}

/// `Held out: 4 numbers, deviation 3.1 % on average, 5.2 % at most; no parameter was fitted to these`.
fn summary(title: &str, means: &str, numbers: &[(&WayRow, &Compared)]) -> String {
    let off: Vec<f64> = numbers.iter().filter_map(|(_, it)| Some(it.deviation?.abs() * 100.0)).collect();
    let mean = off.iter().sum::<f64>() / off.len().max(1) as f64;
    let most = off.iter().copied().fold(0.0, f64::max);
    let count = numbers.len();
    format!("{title}: {count} numbers, deviation {mean:.1} % on average, {most:.1} % at most; {means}")
}

/// Returns choices that were made while the numbers were known, each once.
fn in_view<'a>(numbers: &[(&'a WayRow, &'a Compared)]) -> Vec<&'a str> {
    let mut all: Vec<&str> = numbers.iter().map(|(_, it)| it.in_view).filter(|it| !it.is_empty()).collect();
    all.dedup();
    all
}

/// Returns the tables for a terminal.
#[must_use]
pub fn text(result: &SimulatedResult) -> String {
    let mut out = hanging("", 0, &result.about.heading());
    result.remarks.iter().for_each(|remark| out.push_str(&hanging("", 0, remark)));
    out.push_str(&hanging("", 0, OPENING));
    let _ = writeln!(out, "\nTables 6.1 and 6.2");
    for (usage, title, means) in USES {
        let numbers = used(result, usage);
        if numbers.is_empty() {
            continue;
        }
        let mut table = Table::new(&columns(COMPARED));
        numbers.iter().for_each(|(row, it)| table.row(compared(row, it)));
        let _ = write!(out, "\n{}{table}", hanging("", 0, &summary(title, means, &numbers)));
        in_view(&numbers).into_iter().for_each(|choice| out.push_str(&hanging("  *", 4, choice)));
    }
    let mut stages = Table::new(&columns(STAGES));
    result.published.iter().for_each(|row| stages.row(stage_cells(row)));
    let _ = write!(out, "\nFigures 6.1 and 6.2: milliseconds of all hardware threads together\n{stages}");
    for question in &result.questions {
        let mut table = Table::new(&columns(PAIRS));
        thesis(result).into_iter().for_each(|row| table.row(row));
        question.ways.iter().for_each(|pair| table.row(pair_cells(pair.name, [&pair.same_node, &pair.distributed])));
        let (asks, answer) = (format!("{}: {}", question.name, question.asks), hanging("", 2, &question.answer));
        let _ = write!(out, "\n{}{answer}{table}", hanging("", 0, &asks));
    }
    let _ = write!(out, "\n{}", hanging("", 0, APART));
    out
}

const APART: &str =
    "Speedups are relative to both columns in DDR without prefetching; separate: each column on a node of its own.";

/// Columns of which only the first has words.
fn columns<const N: usize>(names: [&'static str; N]) -> [(&'static str, Align); N] {
    let mut first = true;
    names.map(|name| (name, if std::mem::take(&mut first) { Align::Left } else { Align::Right }))
}

const COMPARED: [&str; 5] = ["configuration", "quantity", "simulated", "published", "deviation"];

fn compared(row: &WayRow, compared: &Compared) -> Vec<String> {
    let number = |value: f64| match compared.what {
        "time" => format!("{value:.2} ms"),
        "hits" => format!("{value:.2} %"),
        _ => format!("{value:.2}"),
    };
    vec![
        format!("{}{}", row.name, if compared.in_view.is_empty() { "" } else { " *" }),
        compared.what.to_owned(),
        number(compared.simulated),
        number(compared.published),
        compared.deviation.map_or("–".into(), |deviation| format!("{:+.1} %", deviation * 100.0)),
    ]
}

const STAGES: [&str; 5] = ["configuration", "SCAN_a", "SCAN_b", "AGGREGATE", "refused"];

fn stage_cells(row: &WayRow) -> Vec<String> {
    let stage = |name: &str| {
        let stage = row.stages.iter().find(|stage| stage.stage == name);
        stage.map_or("–".into(), |stage| format!("{:.1}", stage.ms))
    };
    let sent_back = if stage("SCAN_b") == "–" { "–".into() } else { row.sent_back.to_string() };
    vec![row.name.to_owned(), stage("SCAN_a"), stage("SCAN_b"), stage("AGGREGATE"), sent_back]
}

const PAIRS: [&str; 7] = ["variant", "ms", "speedup", "hits %", "separate: ms", "speedup", "hits %"];

fn pair_cells(name: &str, pair: [&WayRow; 2]) -> Vec<String> {
    let of = |row: &WayRow| {
        let hits = row.hits_percent.map_or("–".into(), |hits| format!("{hits:.1}"));
        [format!("{:.1}", row.time_ms), format!("{:.2}", row.speedup), hits]
    };
    std::iter::once(name.to_owned()).chain(pair.into_iter().flat_map(of)).collect()
}

const THESIS: &str = "as in the thesis";

/// The baseline of the questions: the last two rows of Table 6.2, with prefetching.
fn fetched(result: &SimulatedResult) -> Option<[&WayRow; 2]> {
    let rows: Vec<&WayRow> = result.published.iter().filter(|row| row.stages.len() == 3).collect();
    rows.try_into().ok()
}

fn thesis(result: &SimulatedResult) -> Option<Vec<String>> {
    Some(pair_cells(THESIS, fetched(result)?))
}

/// One line for each configuration.
#[must_use]
pub fn csv(result: &SimulatedResult) -> String {
    let mut out = String::from(
        "simulated,profile,question,variant,time_ms,speedup,hits_percent,scan_a_ms,scan_b_ms,aggregate_ms,sent_back,\
         published_ms,published_speedup,published_hits_percent,use\n",
    );
    let mut line = |question: &str, row: &WayRow| {
        let stage = |name: &str| row.stages.iter().find(|it| it.stage == name).map(|it| it.ms);
        let of = |what: &str| row.published.iter().find(|it| it.what == what);
        let stages = ["SCAN_a", "SCAN_b", "AGGREGATE"].map(stage);
        let text = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.4}"));
        let numbers = [Some(row.time_ms), Some(row.speedup), row.hits_percent].into_iter().chain(stages);
        let numbers = numbers.map(text).collect::<Vec<_>>().join(",");
        let beside = ["time", "speedup", "hits"].map(|what| text(of(what).map(|it| it.published))).join(",");
        let (named, name, sent_back) = (&result.about.named, row.name, row.sent_back);
        let usage = of("time").map_or("", |it| it.usage);
        let _ = writeln!(out, "yes,\"{named}\",{question},\"{name}\",{numbers},{sent_back},{beside},{usage}");
    };
    result.published.iter().for_each(|row| line("published", row));
    for question in &result.questions {
        let ways = question.ways.iter().flat_map(|pair| [&pair.same_node, &pair.distributed]);
        ways.for_each(|row| line(question.name, row));
    }
    out
}

/// Returns the HTML report.
#[must_use]
pub fn html(result: &SimulatedResult) -> String {
    let mut page = Page::with_facts("telpher qdp", OPENING, &result.about.facts(), &result.remarks);
    page.section("Tables 6.1 and 6.2", "Published in the thesis beside simulated.");
    for (usage, title, means) in USES {
        let numbers = used(result, usage);
        if numbers.is_empty() {
            continue;
        }
        page.small(&format!("{}.", summary(title, means, &numbers)));
        page.table(&COMPARED.map(String::from), numbers.iter().map(|(row, it)| compared(row, it)));
        in_view(&numbers).into_iter().for_each(|choice| page.small(&format!("* {choice}.")));
    }
    result.figures.iter().for_each(|figure| figures::section(&mut page, figure));
    page.section("Stages", "Milliseconds of all hardware threads together; submissions that a full queue refused.");
    page.table(&STAGES.map(String::from), result.published.iter().map(stage_cells));
    for question in &result.questions {
        page.section(&format!("What if: {}", question.name), &format!("{}.", question.asks));
        page.small(&question.answer);
        page.charts([times(result, question)]);
        let ways = question.ways.iter().map(|pair| pair_cells(pair.name, [&pair.same_node, &pair.distributed]));
        page.table(&PAIRS.map(String::from), thesis(result).into_iter().chain(ways));
        page.details("Stages", |page| {
            let ways = question.ways.iter().flat_map(|pair| [&pair.same_node, &pair.distributed]);
            page.table(&STAGES.map(String::from), ways.map(stage_cells));
        });
    }
    page.small(APART);
    page.finish()
}

/// Returns the query's times, those of the thesis' configuration first.
fn times<'a>(result: &'a SimulatedResult, question: &'a QuestionRows) -> Figure<'a> {
    let asked = question.ways.iter().map(|Pair { name, same_node, distributed }| (*name, [same_node, distributed]));
    let ways: Vec<(&str, [&WayRow; 2])> = fetched(result).map(|rows| (THESIS, rows)).into_iter().chain(asked).collect();
    let series = ways.iter().map(|(name, rows)| {
        let points = [0.0, 1.0].into_iter().zip(rows.map(|row| row.time_ms)).collect();
        Series { name: (*name).into(), origin: Origin::Simulated, points }
    });
    let names = ["both columns on one node", "columns on separate nodes"].map(String::from).into();
    let panel = Panel {
        title: String::new(),
        x: Axis { label: "where columns lie".into(), unit: "", scale: Scale::Names(names) },
        y: Axis { label: "time of the query".into(), unit: "ms", scale: Scale::Linear },
        shape: Shape::Bars,
        series: series.collect(),
        marks: Vec::new(),
    };
    let legend = plot::colours(&panel).into_iter().zip(&ways).map(|((style, _), (name, _))| (style, *name)).collect();
    Figure { caption: question.name.into(), legend, svg: plot::svg(&panel) }
}
