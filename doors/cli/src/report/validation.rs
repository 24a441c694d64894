//! Published beside simulated, as terminal tables, CSV and an HTML page.

use super::chart::{self, Scale, Series, TRANSFER};
use super::html::{Figure, Page};
use super::table::{Align, Table};
use super::units;
use crate::sim::validate::{ClaimRow, Claims, SeriesRow, ValidateResult};
use std::fmt::Write as _;

/// Characters of a sentence in a table's cell. Source: chosen; with the other columns it fills 150 of a terminal's.
const SENTENCE: usize = 62;
/// Characters of a published number or of what is compared.
const NUMBER: usize = 24;
/// Width of running text.
const WIDTH: usize = 110;

/// The tables for a terminal.
pub(crate) fn text(result: &ValidateResult) -> String {
    let mut out = result.about.heading();
    for (title, claims) in [("Held out", &result.held_out), ("Calibration", &result.calibration)] {
        if claims.rows.is_empty() {
            continue;
        }
        let _ = write!(out, "\n{}\n{}", summary(title, claims), table(&claims.rows));
    }
    if !result.series.is_empty() {
        let _ = write!(out, "\nRaw series (LightDSA): deviation in per cent by size\n{}", series_table(&result.series));
    }
    let told: Vec<&ClaimRow> = all(result).filter(|row| result.some || row.verdict != "holds").collect();
    if !told.is_empty() {
        let _ = writeln!(out, "\n{}", if result.some { "In detail" } else { "What does not hold, and why" });
        for row in told {
            out.push_str(&detail(row));
        }
    }
    if !result.not_simulated.is_empty() {
        let ids: Vec<&str> = result.not_simulated.iter().map(|row| row.id).collect();
        let _ = writeln!(out, "\nNot simulated (how things were measured, or not about the device):");
        for line in wrapped(&ids.join(" "), WIDTH - 2) {
            let _ = writeln!(out, "  {line}");
        }
    }
    if !result.goals.is_empty() {
        let mut table = Table::new(&[("goal", Align::Left), ("reached", Align::Left), ("", Align::Left)]);
        for goal in &result.goals {
            table.row([goal.goal.to_owned(), cut(&goal.reached, SENTENCE), met(goal.met).to_owned()]);
        }
        let _ = write!(out, "\nWhat was to be reached\n{table}");
    }
    out
}

fn all(result: &ValidateResult) -> impl Iterator<Item = &ClaimRow> {
    result.held_out.rows.iter().chain(&result.calibration.rows)
}

fn met(met: bool) -> &'static str {
    if met { "met" } else { "NOT MET" }
}

/// `Held out: 61 of 70 hold (87 %), 3 contradict other sources; 41 numbers 4.2 % off on average`.
fn summary(title: &str, claims: &Claims) -> String {
    let contradict = match claims.contradict {
        0 => String::new(),
        count => format!(", {count} contradict other numbers"),
    };
    format!(
        "{title}: {} of {} claims hold ({:.0} %){contradict}; {} numbers, {:.1} % off on average",
        claims.hold,
        claims.simulated,
        claims.share * 100.0,
        claims.numbers,
        claims.mean_absolute_deviation * 100.0
    )
}

fn table(rows: &[ClaimRow]) -> Table {
    let mut table = Table::new(&[
        ("claim", Align::Left),
        ("", Align::Left),
        ("published", Align::Right),
        ("simulated", Align::Right),
        ("off", Align::Right),
        ("verdict", Align::Left),
    ]);
    for row in rows {
        let published = if row.kind == "shape" { "a shape".to_owned() } else { cut(&row.published, NUMBER) };
        let (says, simulated) = (cut(row.says, SENTENCE), cut(&row.brief, NUMBER));
        table.row([row.id.to_owned(), says, published, simulated, off(row.deviation), row.verdict.to_owned()]);
    }
    table
}

fn off(deviation: Option<f64>) -> String {
    deviation.map_or(String::new(), |deviation| format!("{:+.1} %", deviation * 100.0))
}

/// Everything about a claim.
fn detail(row: &ClaimRow) -> String {
    let mut out = format!("\n  {} {}: {}\n", row.id, row.verdict, row.says);
    let compared = if row.kind == "shape" { String::new() } else { row.compared.to_owned() };
    for (name, text) in [
        ("source", row.source.as_str()),
        ("published", &row.published),
        ("compared", &compared),
        ("simulated", &row.simulated),
        ("why", &row.why),
        ("note", row.notes),
    ] {
        for (index, line) in wrapped(text, WIDTH - 14).into_iter().enumerate() {
            let _ = writeln!(out, "    {:<10}{line}", if index == 0 { name } else { "" });
        }
    }
    out
}

fn series_table(series: &[SeriesRow]) -> Table {
    let sizes: Vec<u32> = sizes(series);
    let names: Vec<String> = sizes.iter().map(|size| short(*size)).collect();
    let mut columns = vec![("series", Align::Left), ("", Align::Left), ("mean", Align::Right)];
    columns.extend(names.iter().map(|name| (name.as_str(), Align::Right)));
    let mut table = Table::new(&columns);
    let mut group = None;
    for row in series {
        let kind = (row.by, row.held_out);
        if group.is_some_and(|group| group != kind) {
            table.gap();
        }
        group = Some(kind);
        let at = |size: &u32| {
            let point = row.points.iter().find(|point| point.size_bytes == *size);
            point.map_or(String::new(), |point| format!("{:+.0}", point.deviation * 100.0))
        };
        let name = row.id.strip_prefix("lightdsa.").unwrap_or(row.id).to_owned();
        let mean = format!("{:.1}", row.mean_absolute_deviation * 100.0);
        let held_out = if row.held_out { "held out" } else { "calibrates" }.to_owned();
        table.row([name, held_out, mean].into_iter().chain(sizes.iter().map(at)));
    }
    table
}

fn sizes(series: &[SeriesRow]) -> Vec<u32> {
    let mut sizes: Vec<u32> = series.iter().flat_map(|row| &row.points).map(|point| point.size_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// `64`, `4k`, `1m`.
fn short(size: u32) -> String {
    match size {
        size if size >= 1 << 20 => format!("{}m", size >> 20),
        size if size >= 1 << 10 => format!("{}k", size >> 10),
        size => size.to_string(),
    }
}

/// At most so many characters.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most - 1).collect();
    format!("{}…", kept.trim_end())
}

/// Lines of at most so many characters, broken between words.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// One line a claim, then one line a point of a series.
pub(crate) fn csv(result: &ValidateResult) -> String {
    let mut out = String::from(
        "simulated,use,claim,source,about,kind,says,published,simulated_value,deviation_percent,verdict,why\n",
    );
    let percent = |deviation: f64| format!("{:.2}", deviation * 100.0);
    for (used, rows) in [
        ("held out", &result.held_out.rows),
        ("calibration", &result.calibration.rows),
        ("not simulated", &result.not_simulated),
    ] {
        for row in rows {
            let deviation = row.deviation.map_or(String::new(), percent);
            let cells = [
                "yes",
                used,
                row.id,
                &row.source,
                row.about,
                row.kind,
                row.says,
                &row.published,
                &row.simulated,
                &deviation,
                row.verdict,
                &row.why,
            ];
            let _ = writeln!(out, "{}", cells.map(quoted).join(","));
        }
    }
    for series in &result.series {
        for point in &series.points {
            let _ = writeln!(
                out,
                "yes,{},{},LightDSA,{},series,{},{:.0} MiB/s,{:.0} MiB/s,{},,",
                if series.held_out { "held out" } else { "calibration" },
                series.id,
                series.by,
                quoted(&format!("{}: {} bytes", series.says, point.size_bytes)),
                point.published_mib_per_s,
                point.simulated_mib_per_s,
                percent(point.deviation),
            );
        }
    }
    out
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// The report.
pub(crate) fn html(result: &ValidateResult) -> String {
    let mut page = Page::with_facts(
        "telpher sim validate",
        "Every number that was published about the device, beside what the simulation gives for it. Nothing here was measured.",
        &result.about.facts(),
        &[],
    );
    let words = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
    if !result.goals.is_empty() {
        page.section("What was to be reached", "");
        let rows =
            result.goals.iter().map(|goal| vec![goal.goal.to_owned(), goal.reached.clone(), met(goal.met).to_owned()]);
        page.table(&words(&["goal", "reached", ""]), rows);
    }
    let header = words(&[
        "claim",
        "what it says",
        "source",
        "published",
        "simulated",
        "off",
        "verdict",
        "why, and what is to be known",
    ]);
    for (title, claims) in [("Held out", &result.held_out), ("Calibration", &result.calibration)] {
        let about = match title {
            "Held out" => "No parameter was set by any of these.",
            _ => "Each of these set a parameter: it proves nothing that they come back.",
        };
        page.section(title, &format!("{about} {}.", summary(title, claims)));
        let rows = claims.rows.iter().map(|row| {
            let known =
                [row.why.as_str(), row.notes].iter().filter(|text| !text.is_empty()).copied().collect::<Vec<_>>();
            vec![
                row.id.to_owned(),
                row.says.to_owned(),
                row.source.clone(),
                row.published.clone(),
                row.simulated.clone(),
                off(row.deviation),
                row.verdict.to_owned(),
                known.join(". "),
            ]
        });
        page.table(&header, rows);
    }
    if !result.series.is_empty() {
        page.section(
            "Raw series",
            "LightDSA's result files (EuroSys 2026): MiB a second, published dashed, simulated drawn through. Series of one engine with \
             one descriptor at a time calibrate; all others are held out.",
        );
        page.legend([(0, "published"), (1, "simulated")]);
        page.charts(result.series.iter().map(chart_of));
        let sizes = sizes(&result.series);
        let header =
            ["series", "use", "mean"].into_iter().map(String::from).chain(sizes.iter().map(|size| short(*size)));
        let rows = result.series.iter().map(|row| {
            let at = |size: &u32| {
                let point = row.points.iter().find(|point| point.size_bytes == *size);
                point.map_or(String::new(), |point| format!("{:+.0}", point.deviation * 100.0))
            };
            let held_out = if row.held_out { "held out" } else { "calibrates" }.to_owned();
            let mean = format!("{:.1} %", row.mean_absolute_deviation * 100.0);
            [row.id.to_owned(), held_out, mean].into_iter().chain(sizes.iter().map(at)).collect()
        });
        page.table(&header.collect::<Vec<_>>(), rows);
    }
    page.details("Claims about which there is nothing to simulate", |page| {
        let rows = result.not_simulated.iter().map(|row| {
            vec![row.id.to_owned(), row.says.to_owned(), row.source.clone(), row.published.clone(), row.why.clone()]
        });
        page.table(&words(&["claim", "what it says", "source", "published", "why"]), rows);
    });
    page.finish()
}

fn chart_of(row: &SeriesRow) -> Figure<'static> {
    let line = |style, dashed, value: fn(&crate::sim::validate::PointRow) -> f64| Series {
        style,
        dashed,
        points: row.points.iter().map(|point| (point.size_bytes.into(), value(point))).collect(),
    };
    let lines = [line(0, true, |point| point.published_mib_per_s), line(1, false, |point| point.simulated_mib_per_s)];
    Figure {
        caption: format!("{}: {:.1} % off on average", row.id, row.mean_absolute_deviation * 100.0),
        svg: chart::lines(&lines, "MiB/s", TRANSFER, Scale::Log, units::trimmed),
        legend: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sentences_are_cut_and_broken_between_words() {
        assert_eq!(cut("queues and engines", 9), "queues a…");
        assert_eq!(cut("queues", 9), "queues");
        assert_eq!(wrapped("queues and engines of a device", 12), ["queues and", "engines of a", "device"]);
    }
}
