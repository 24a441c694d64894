//! The comparison with alternatives as terminal tables, CSV and an HTML page.

use crate::buffers::Temperature;
use crate::costs::Cost;
use crate::ops::{OpsResult, Row};
use std::fmt::Write as _;
use telpher_report::chart::{self, Scale, Series, TRANSFER};
use telpher_report::html::{Figure, Page};
use telpher_report::table::{Align, Table};
use telpher_report::units;

/// Returns the tables for a terminal.
pub fn text(result: &OpsResult) -> String {
    let mut out = telpher_report::heading(&result.machine, &result.remarks);
    if !result.rows.is_empty() {
        out.push_str(
            "\nThroughput in GB/s and ratio of the alternative's time to telpher's: above 1 telpher is \
             faster, '<' is below its goal.\nWarm: the same buffers again and again. Cold: rotating through \
             more memory than the last-level cache holds.\n",
        );
        out.push_str(&ratios(result).to_string());
        out.push_str("\nMedian over all sizes\n");
        out.push_str(&overall(result).to_string());
    }
    if !result.costs.is_empty() {
        out.push_str("\nAround a descriptor\n");
        out.push_str(&costs(&result.costs).to_string());
    }
    out
}

fn ratios(result: &OpsResult) -> Table {
    let columns = [
        ("operation", Align::Left),
        ("against", Align::Left),
        ("size", Align::Right),
        ("warm", Align::Right),
        ("other", Align::Right),
        ("ratio", Align::Right),
        ("", Align::Left),
        ("cold", Align::Right),
        ("other", Align::Right),
        ("ratio", Align::Right),
        ("", Align::Left),
        ("goal", Align::Right),
    ];
    let mut table = Table::new(&columns);
    let mut last = None;
    for row in &result.rows {
        let Some(cold) = result.rows.iter().find(|r| row.temperature == Temperature::Warm && r.is_cold_of(row)) else {
            continue;
        };
        let changed = last != Some((row.op, row.against));
        if last.is_some() && changed {
            table.gap();
        }
        last = Some((row.op, row.against));
        let name = |text: &str| if changed { text.to_owned() } else { String::new() };
        let side =
            |r: &Row| [gbps(r.size, r.ours_ns), gbps(r.size, r.theirs_ns), format!("{:.2}", r.ratio), mark(r).into()];
        let cells = [name(row.op), name(row.against), units::size(row.size)].into_iter();
        table.row(cells.chain(side(row)).chain(side(cold)).chain([format!("{:.1}", row.goal)]));
    }
    table
}

fn mark(row: &Row) -> &'static str {
    if row.falls_short() { "<" } else { "" }
}

fn gbps(size: u64, ns: f64) -> String {
    units::three(size as f64 / ns)
}

/// Returns one row for the page's table.
fn cells(row: &Row) -> Vec<String> {
    vec![
        row.op.into(),
        row.against.into(),
        units::size(row.size),
        row.temperature.name().into(),
        gbps(row.size, row.ours_ns),
        gbps(row.size, row.theirs_ns),
        format!("{:.2}", row.ratio),
        format!("{:.1}", row.goal),
        mark(row).into(),
    ]
}

fn overall(result: &OpsResult) -> Table {
    let columns = [
        ("operation", Align::Left),
        ("against", Align::Left),
        ("median ratio", Align::Right),
        ("lowest", Align::Right),
        ("below goal", Align::Right),
    ];
    let mut table = Table::new(&columns);
    for o in &result.overall {
        let short = format!("{} of {}", o.short, o.rows);
        table.row([o.op.into(), o.against.into(), format!("{:.2}", o.ratio), format!("{:.2}", o.lowest), short]);
    }
    table
}

fn costs(costs: &[Cost]) -> Table {
    let columns = [
        ("cost", Align::Left),
        ("measured", Align::Right),
        ("goal", Align::Right),
        ("", Align::Left),
        ("cores apart", Align::Left),
        ("how", Align::Left),
    ];
    let mut table = Table::new(&columns);
    for cost in costs {
        table.row(cost_cells(cost));
    }
    table
}

fn cost_cells(cost: &Cost) -> [String; 6] {
    let bound = if cost.at_least { "≥" } else { "≤" };
    [
        cost.what.into(),
        format!("{} {}", units::three(cost.measured), cost.unit),
        format!("{bound} {} {}", units::trimmed(cost.goal), cost.unit),
        if cost.reached() { String::new() } else { "<".into() },
        cost.distance.map_or(String::new(), |d| d.to_string()),
        cost.how.clone(),
    ]
}

/// Returns the CSV: one line for each row, then the costs with an empty size.
pub fn csv(result: &OpsResult) -> String {
    let mut out = String::from("op,against,size_bytes,temperature,ours_ns,theirs_ns,ratio,goal,turns\n");
    for r in &result.rows {
        let _ = writeln!(
            out,
            "\"{}\",\"{}\",{},{},{:.3},{:.3},{:.4},{},{}",
            r.op,
            r.against,
            r.size,
            r.temperature.name(),
            r.ours_ns,
            r.theirs_ns,
            r.ratio,
            r.goal,
            r.turns
        );
    }
    out
}

/// Returns the HTML report.
pub fn html(result: &OpsResult) -> String {
    let mut page = Page::new(
        "telpher bench ops",
        "Each operation of telpher's CPU kernels against the best alternative found on this machine, in the same run.",
        &result.machine,
        &result.remarks,
    );
    page.section(
        "Ratio by size",
        "Time of the alternative divided by telpher's time: above 1 telpher is faster. Both sides run in turns of a \
         few milliseconds and the ratio is the median over the turns. Full lines are warm (the same buffers again and \
         again), dashed lines cold (rotating through more memory than the last-level cache holds).",
    );
    let ops = result.overall.iter().map(|o| o.op).fold(Vec::new(), |mut seen: Vec<&str>, op| {
        if !seen.contains(&op) {
            seen.push(op);
        }
        seen
    });
    page.charts(ops.into_iter().map(|op| {
        let rivals: Vec<&str> = result.overall.iter().filter(|o| o.op == op).map(|o| o.against).collect();
        let mut series = Vec::new();
        for (i, rival) in rivals.iter().enumerate() {
            for temperature in [Temperature::Warm, Temperature::Cold] {
                let rows =
                    result.rows.iter().filter(|r| r.op == op && r.against == *rival && r.temperature == temperature);
                let points = rows.map(|r| (r.size, r.ratio)).collect();
                let dashed = temperature == Temperature::Cold;
                let name = format!("{rival}, {}", if dashed { "cold" } else { "warm" });
                series.push(Series { name, style: STYLE_OF[i % 2], dashed, points });
            }
        }
        let svg = chart::lines(&series, "times as fast", TRANSFER, Scale::Fitting, units::trimmed);
        let legend = rivals.iter().enumerate().map(|(i, r)| (STYLE_OF[i % 2], *r)).collect();
        Figure { caption: op.to_owned(), svg, legend }
    }));
    page.section(
        "Median over all sizes",
        "Warm and cold together; a row is below its goal where the table further down marks it.",
    );
    page.table(
        &["operation", "against", "median ratio", "lowest", "below goal"].map(String::from),
        result.overall.iter().map(|o| {
            let short = format!("{} of {}", o.short, o.rows);
            vec![o.op.into(), o.against.into(), format!("{:.2}", o.ratio), format!("{:.2}", o.lowest), short]
        }),
    );
    if !result.costs.is_empty() {
        page.section("Around a descriptor", "What submitting, waiting and keeping a modelled device costs.");
        page.table(
            &["cost", "measured", "goal", "", "cores apart", "how"].map(String::from),
            result.costs.iter().map(|c| cost_cells(c).to_vec()),
        );
    }
    page.details("Every ratio", |page| {
        let header = ["operation", "against", "size", "", "telpher, GB/s", "other, GB/s", "ratio", "goal", ""];
        page.table(&header.map(String::from), result.rows.iter().map(cells));
    });
    page.finish()
}

/// Colours of the first and the second alternative.
const STYLE_OF: [usize; 2] = [3, 1];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::tests::sample;

    #[test]
    fn a_ratio_below_its_goal_is_marked() {
        let text = text(&sample());
        let marked: Vec<&str> = text.lines().filter(|l| l.contains(" < ")).collect();
        assert_eq!(marked.len(), 1, "{text}");
        assert!(marked[0].contains("4 KiB") && marked[0].contains("0.80"));
        assert!(text.contains("1 of 6"));
    }

    #[test]
    fn csv_has_one_line_per_row() {
        assert_eq!(csv(&sample()).lines().count(), 1 + sample().rows.len());
    }

    #[test]
    fn the_page_has_one_chart_per_operation() {
        let html = html(&sample());
        assert_eq!(html.matches("<svg ").count(), 2);
        assert!(html.contains("times as fast") && html.contains("memcpy"));
    }
}
