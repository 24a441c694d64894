//! Published and simulated numbers, as terminal tables, CSV and an HTML page.

use super::{ClaimRow, Count, PointRow, SeriesRow, Validation, count, is_underdetermined};
use crate::published::Use;
use crate::verdict::Row;
use std::fmt::Write as _;
use telpher_report::chart::{self, Scale, Series, TRANSFER};
use telpher_report::html::{Figure, Page};
use telpher_report::table::{Align, Table, WIDTH, hanging, wrapped};
use telpher_report::units;

/// Characters of a published or simulated number. Source: chosen; a table fills 79 of a terminal's 80 columns.
const NUMBER: usize = 20;

/// Returns the tables for a terminal.
#[must_use]
pub fn text(result: &Validation) -> String {
    let mut out = hanging("", 0, &result.about.heading());
    if let Some(remark) = remark(result) {
        out.push_str(&hanging("", 0, &remark));
    }
    out.push('\n');
    for line in counts(result) {
        out.push_str(&hanging("", 0, &line));
    }
    for (title, claims) in [(HELD_OUT, &result.held_out), ("Calibration", &result.calibration)] {
        if claims.rows.is_empty() {
            continue;
        }
        let _ = write!(out, "\n{}{}", hanging("", 0, &summary(title, &claims.count)), table(&claims.rows));
    }
    if !result.underdetermined.is_empty() {
        let _ = write!(out, "\n{}{}", hanging("", 0, UNDERDETERMINED), table(&result.underdetermined));
    }
    if !result.series.is_empty() {
        let _ = write!(out, "\n{}{}", hanging("", 0, SERIES), series_table(&result.series));
        for line in against_formulas(&result.series) {
            out.push_str(&hanging("", 0, &line));
        }
    }
    let printed = all(result).filter(|row| result.some || row.verdict != "holds" || row.by_step());
    let printed: Vec<&ClaimRow> = printed.collect();
    if !printed.is_empty() {
        let _ = writeln!(out, "\n{}", if result.some { "In detail" } else { NOT });
        for row in printed {
            out.push_str(&detail(row));
        }
    }
    if !result.not_simulated.is_empty() {
        let ids: Vec<&str> = result.not_simulated.iter().map(|row| row.id).collect();
        let _ = writeln!(out, "\nNot simulated (how things were measured, or nothing to simulate):");
        out.push_str(&hanging("", 2, &ids.join(" ")));
        for row in result.not_simulated.iter().filter(|row| row.held_out) {
            out.push_str(&detail(row));
        }
    }
    if !result.goals.is_empty() {
        let _ = writeln!(out, "\nWhat was to be reached");
        for goal in &result.goals {
            let met = format!("  {}", met(goal.met));
            let _ = write!(out, "{}{}", hanging(&met, 11, goal.goal), hanging("", 11, &goal.reached));
        }
    }
    out
}

fn all(result: &Validation) -> impl Iterator<Item = &ClaimRow> {
    result.held_out.rows.iter().chain(&result.calibration.rows).chain(&result.underdetermined)
}

const HELD_OUT: &str = "Held out";

const UNDERDETERMINED: &str = "Underdetermined: inputs that the sources do not print decide; the range that they span";

const SERIES: &str = "Raw series (LightDSA): deviation in per cent; mean over all sizes; fit: the mean of the \
                      formula max(overhead, size / cap + gap), fitted to the series itself";

const NOT: &str = "What does not hold, or holds by a step of a sweep alone, and why";

impl ClaimRow {
    /// True if it holds with the tolerance of one step of its source's sweep alone.
    fn by_step(&self) -> bool {
        self.verdict == "holds" && self.verdict_without_step.is_some_and(|without| without != "holds")
    }

    /// The verdict, with a mark if it is due to the tolerance of one step alone.
    fn marked_verdict(&self) -> String {
        if self.by_step() { format!("{} (1 step)", self.verdict) } else { self.verdict.to_owned() }
    }
}

/// Formats whether a goal was reached; `info` if there is no limit.
fn met(met: Option<bool>) -> &'static str {
    match met {
        Some(true) => "met",
        Some(false) => "NOT MET",
        None => "info",
    }
}

/// The three counts, and the number of claims that count nowhere.
fn counts(result: &Validation) -> Vec<String> {
    let [untouched, in_view] = [&result.held_out_untouched, &result.held_out_in_view];
    three_counts(untouched, in_view, &result.calibration.count, result.underdetermined.len())
}

/// The three counts of some claims as sentences: never in view, in view, calibrating; then those that count nowhere.
#[must_use]
pub fn summaries(rows: &[Row]) -> Vec<String> {
    let of = |wanted: fn(&Row) -> bool| count(rows.iter().filter(|row| wanted(row)));
    three_counts(
        &of(|row| row.claim.is_untouched()),
        &of(|row| !row.claim.seen.is_empty()),
        &of(|row| row.claim.usage == Use::Calibrate),
        rows.iter().filter(|row| is_underdetermined(row)).count(),
    )
}

/// The three counts as sentences, the headline first; those without claims are left out.
fn three_counts(untouched: &Count, in_view: &Count, calibrating: &Count, free: usize) -> Vec<String> {
    let named = [("Never in view", untouched), ("In view* during a choice", in_view), ("Calibrating", calibrating)];
    let mut lines: Vec<String> =
        named.iter().filter(|(_, count)| count.simulated > 0).map(|(title, count)| summary(title, count)).collect();
    if free > 0 {
        lines.push(format!("Underdetermined, in none of these counts: {free}"));
    }
    lines
}

/// Whether the simulator is closer to the series than the formula: where descriptors compete, and where nothing does.
fn against_formulas(series: &[SeriesRow]) -> Vec<String> {
    let of = |contends: bool, title: &str| {
        let rows: Vec<&SeriesRow> = series.iter().filter(|row| row.held_out && row.contends == contends).collect();
        let closer = |row: &&&SeriesRow| row.mean_absolute_deviation < row.formula.mean_absolute_deviation;
        let mean = |value: fn(&SeriesRow) -> f64| {
            rows.iter().map(|row| value(row) * row.points.len() as f64).sum::<f64>()
                / rows.iter().map(|row| row.points.len()).sum::<usize>().max(1) as f64
                * 100.0
        };
        (!rows.is_empty()).then(|| {
            format!(
                "{title}: the simulator is closer than the formula in {} of {} held-out series; {:.1} % against \
                 {:.1} % on average",
                rows.iter().filter(closer).count(),
                rows.len(),
                mean(|row| row.mean_absolute_deviation),
                mean(|row| row.formula.mean_absolute_deviation),
            )
        })
    };
    let both = [of(true, "Where descriptors compete"), of(false, "Where nothing competes")];
    both.into_iter().flatten().collect()
}

/// `Held out: 61 of 70 claims hold (87 %, 2 by one step), 3 contradict other numbers; 41 numbers, deviation 4.2 % on
/// average`.
fn summary(title: &str, count: &Count) -> String {
    let by_step = match count.hold_by_step {
        0 => String::new(),
        count => format!(", {count} by one step of a sweep"),
    };
    let contradict = match count.contradict {
        0 => String::new(),
        count => format!(", {count} contradict other numbers"),
    };
    format!(
        "{title}: {} of {} claims hold ({:.0} %{by_step}){contradict}; {} numbers, deviation {:.1} % on average",
        count.hold,
        count.simulated,
        count.share * 100.0,
        count.numbers,
        count.mean_absolute_deviation * 100.0
    )
}

/// Returns two lines for each claim: its numbers; its text and source.
fn table(rows: &[ClaimRow]) -> Table {
    let mut table = Table::new(&[
        ("claim", Align::Left),
        ("published", Align::Right),
        ("simulated", Align::Right),
        ("deviation", Align::Right),
        ("verdict", Align::Left),
    ]);
    for row in rows {
        let published = if row.kind == "shape" { "a statement".to_owned() } else { cut(&row.published, NUMBER) };
        table.row([marked(row), published, cut(&row.brief, NUMBER), off(row.deviation), row.marked_verdict()]);
        table.below(&format!("{} ({})", row.says, row.source));
    }
    table
}

fn off(deviation: Option<f64>) -> String {
    deviation.map_or(String::new(), |deviation| format!("{:+.1} %", deviation * 100.0))
}

/// Returns everything about a claim.
fn detail(row: &ClaimRow) -> String {
    let mut out = String::from("\n");
    for line in wrapped(&format!("{} {}: {}", row.id, row.verdict, row.says), WIDTH - 2) {
        let _ = writeln!(out, "  {line}");
    }
    let compared = if row.kind == "shape" { String::new() } else { row.compared.to_owned() };
    let without =
        row.verdict_without_step.map_or(String::new(), |verdict| format!("{verdict} without a step's tolerance"));
    for (name, text) in [
        ("source", row.source.as_str()),
        ("published", &row.published),
        ("compared", &compared),
        ("simulated", &row.simulated),
        ("beside", &row.beside),
        ("old", &without),
        ("why", &row.why),
        ("note", row.notes),
        ("in view", row.in_view),
    ] {
        for (index, line) in wrapped(text, WIDTH - 14).into_iter().enumerate() {
            let _ = writeln!(out, "    {:<10}{line}", if index == 0 { name } else { "" });
        }
    }
    out
}

fn series_table(series: &[SeriesRow]) -> Table {
    let sizes: Vec<u32> = sizes(series).into_iter().step_by(2).filter(|size| *size < 1 << 18).collect();
    let names: Vec<String> = sizes.iter().map(|size| short(*size)).collect();
    let mut columns = vec![("series", Align::Left), ("mean", Align::Right), ("fit", Align::Right)];
    columns.extend(names.iter().map(|name| (name.as_str(), Align::Right)));
    let mut table = Table::new(&columns);
    let mut group = None;
    for row in series {
        let kind = (row.by, row.held_out);
        if group != Some(kind) {
            table.gap();
            table.row([format!("{}, {}", row.by, used(row))]);
        }
        group = Some(kind);
        let at = |size: &u32| {
            let point = row.points.iter().find(|point| point.size_bytes == *size);
            point.map_or(String::new(), |point| format!("{:+.0}", point.deviation * 100.0))
        };
        let name = row.id.strip_prefix("lightdsa.").unwrap_or(row.id);
        let mean = format!("{:.1}", row.mean_absolute_deviation * 100.0);
        let formula = format!("{:.1}", row.formula.mean_absolute_deviation * 100.0);
        table.row([format!("  {name}"), mean, formula].into_iter().chain(sizes.iter().map(at)));
    }
    table
}

fn used(series: &SeriesRow) -> &'static str {
    if series.held_out { "held out" } else { "calibrates" }
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

/// Shortens a text to a maximum number of characters.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept: String = text.chars().take(most - 1).collect();
    format!("{}…", kept.trim_end())
}

/// Returns a claim's name, with a star if something was chosen while the claim was known.
fn marked(row: &ClaimRow) -> String {
    format!("{}{}", row.id, if row.in_view.is_empty() { "" } else { "*" })
}

/// Returns the complete tables as Markdown.
#[must_use]
pub fn markdown(result: &Validation) -> String {
    let mut out = result.about.heading();
    if let Some(remark) = remark(result) {
        let _ = writeln!(out, "\n{remark}");
    }
    let _ = writeln!(out, "\n{}", counts(result).into_iter().map(|line| format!("- {line}\n")).collect::<String>());
    let free = ("Underdetermined", UNDERDETERMINED.to_owned(), &result.underdetermined);
    let counted = [(HELD_OUT, &result.held_out), ("Calibration", &result.calibration)];
    let counted = counted.map(|(title, claims)| (title, summary(title, &claims.count), &claims.rows));
    for (title, summary, rows) in counted.into_iter().chain([free]) {
        let _ = writeln!(out, "\n### {title}\n\n{summary}\n");
        let header = ["claim", "what it says", "source", "published", "simulated", "off", "verdict"];
        let rows = rows.iter().map(|row| {
            let beside = if row.beside.is_empty() { String::new() } else { format!(" (beside: {})", row.beside) };
            let simulated = format!("{}{beside}", row.simulated);
            let numbers = [row.published.clone(), simulated, off(row.deviation), row.marked_verdict()];
            [marked(row), row.says.to_owned(), row.source.clone()].into_iter().chain(numbers).collect()
        });
        markdown_table(&mut out, &header, rows);
    }
    let reasons = all(result).filter(|row| row.verdict != "holds" || row.by_step());
    let reasons = reasons.chain(result.not_simulated.iter().filter(|row| row.held_out));
    let _ = write!(out, "\n### {NOT}\n\n");
    let rows = reasons.map(|row| vec![marked(row), row.verdict.to_owned(), row.why.clone()]);
    markdown_table(&mut out, &["claim", "verdict", "why"], rows);
    if !result.series.is_empty() {
        let sizes = sizes(&result.series);
        let sizes: Vec<String> = sizes.iter().map(|size| short(*size)).collect();
        let _ = write!(out, "\n### Raw series\n\n{SERIES}\n\n");
        for line in against_formulas(&result.series) {
            let _ = writeln!(out, "- {line}");
        }
        out.push('\n');
        let header: Vec<&str> =
            ["series", "use", "mean", "formula"].into_iter().chain(sizes.iter().map(String::as_str)).collect();
        markdown_table(&mut out, &header, result.series.iter().map(series_cells(&result.series)));
    }
    if !result.goals.is_empty() {
        out.push_str("\n### What was to be reached\n\n");
        let rows =
            result.goals.iter().map(|goal| vec![goal.goal.to_owned(), goal.reached.clone(), met(goal.met).to_owned()]);
        markdown_table(&mut out, &["goal", "reached", ""], rows);
    }
    out
}

fn markdown_table(out: &mut String, header: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    out.push_str(&line(header.iter().map(|name| (*name).to_owned()).collect()));
    out.push_str(&line(vec!["---".to_owned(); header.len()]));
    for row in rows {
        // A bar would end the cell.
        out.push_str(&line(row.iter().map(|cell| cell.replace('|', "\\|")).collect()));
    }
}

/// Returns a series' cells: its name, its use, its mean, and its deviation at every size.
fn series_cells(series: &[SeriesRow]) -> impl Fn(&SeriesRow) -> Vec<String> {
    let sizes = sizes(series);
    move |row| {
        let at = |size: &u32| {
            let point = row.points.iter().find(|point| point.size_bytes == *size);
            point.map_or(String::new(), |point| format!("{:+.0}", point.deviation * 100.0))
        };
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let [mean, formula] = [row.mean_absolute_deviation, row.formula.mean_absolute_deviation].map(percent);
        [row.id.to_owned(), used(row).to_owned(), mean, formula].into_iter().chain(sizes.iter().map(at)).collect()
    }
}

/// One line for each claim, then one line for each point of a series.
#[must_use]
pub fn csv(result: &Validation) -> String {
    let mut out = String::from(
        "simulated,profiles,use,claim,source,about,kind,says,published,simulated_value,deviation_percent,verdict,why,\
         in_view,beside,verdict_without_step,formula_deviation_percent\n",
    );
    let percent = |deviation: f64| format!("{:.2}", deviation * 100.0);
    for (used, rows) in [
        ("held out", &result.held_out.rows),
        ("calibration", &result.calibration.rows),
        ("underdetermined", &result.underdetermined),
        ("not simulated", &result.not_simulated),
    ] {
        for row in rows {
            let deviation = row.deviation.map_or(String::new(), percent);
            let cells = [
                "yes",
                &result.about.named,
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
                row.in_view,
                &row.beside,
                row.verdict_without_step.unwrap_or_default(),
                "",
            ];
            let _ = writeln!(out, "{}", cells.map(quoted).join(","));
        }
    }
    for series in &result.series {
        for point in &series.points {
            let _ = writeln!(
                out,
                "yes,{},{},{},LightDSA,{},series,{},{:.0} MiB/s,{:.0} MiB/s,{},,,,,,{}",
                quoted(&result.about.named),
                if series.held_out { "held out" } else { "calibration" },
                series.id,
                series.by,
                quoted(&format!("{}: {} bytes", series.says, point.size_bytes)),
                point.published_mib_per_s,
                point.simulated_mib_per_s,
                percent(point.deviation),
                percent(series.formula.mean_absolute_deviation),
            );
        }
    }
    out
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// Returns the notice for results on another machine.
fn remark(result: &Validation) -> Option<String> {
    result.elsewhere.as_ref().map(|name| {
        format!(
            "Everything was done on {name}, in place of the machines of which numbers were published: what does not \
             hold tells how {name} differs from them."
        )
    })
}

/// Returns the HTML report.
#[must_use]
pub fn html(result: &Validation) -> String {
    let mut page = Page::with_facts(
        "telpher sim validate",
        "Every published number about the device, and the simulated one. Nothing here was measured.",
        &result.about.facts(),
        remark(result).as_slice(),
    );
    let words = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
    if !result.goals.is_empty() {
        page.section("Goals", "");
        let rows =
            result.goals.iter().map(|goal| vec![goal.goal.to_owned(), goal.reached.clone(), met(goal.met).to_owned()]);
        page.table(&words(&["goal", "reached", ""]), rows);
    }
    page.section("Claims", &format!("{}.", counts(result).join(". ")));
    let held_out = format!("{}. No parameter was set by any of these.", summary(HELD_OUT, &result.held_out.count));
    let calibration = "Each of these set a parameter: it proves nothing that they come back.";
    let calibration = format!("{}. {calibration}", summary("Calibration", &result.calibration.count));
    for (title, about, claims) in [
        (HELD_OUT, held_out, &result.held_out.rows),
        ("Calibration", calibration, &result.calibration.rows),
        ("Underdetermined", format!("{UNDERDETERMINED}."), &result.underdetermined),
    ] {
        page.section(title, &about);
        let rows = claims.iter().map(|row| {
            let published = if row.kind == "shape" { "a statement".to_owned() } else { row.published.clone() };
            let numbers = [published, row.brief.clone(), off(row.deviation), row.marked_verdict()];
            [marked(row), row.says.to_owned(), row.source.clone()].into_iter().chain(numbers).collect()
        });
        page.sentences(&["claim", "what it says", "source", "published", "simulated", "off", "verdict"], rows);
        page.details("What was compared, all that came, what is to be known", |page| {
            let rows = claims.iter().map(|row| {
                let seen = if row.in_view.is_empty() { String::new() } else { format!("In view: {}", row.in_view) };
                let old = row.verdict_without_step;
                let old = old.map_or(String::new(), |verdict| format!("Without a step's tolerance: {verdict}"));
                let known: Vec<&str> = [row.notes, &seen, &old].into_iter().filter(|text| !text.is_empty()).collect();
                let found = [row.simulated.clone(), row.beside.clone()];
                [marked(row), row.compared.to_owned()].into_iter().chain(found).chain([known.join(". ")]).collect()
            });
            page.sentences(&["claim", "compared", "simulated", "other readings", "to be known"], rows);
        });
    }
    let not: Vec<&ClaimRow> = all(result).filter(|row| row.verdict != "holds" || row.by_step()).collect();
    if !not.is_empty() {
        page.section(NOT, "A reason is shown by something, or said to be supposed.");
        let rows = not.into_iter().map(|row| vec![marked(row), row.simulated.clone(), row.why.clone()]);
        page.sentences(&["claim", "simulated", "why"], rows);
    }
    if !result.series.is_empty() {
        page.section(
            "Raw series",
            &format!(
                "LightDSA's result files (EuroSys 2026): MiB a second, published dashed, simulated drawn through. \
                 Series of one engine with one descriptor at a time calibrate; all others are held out. Beside the \
                 mean deviation stands that of the formula max(overhead, size / cap + gap), fitted to the series \
                 itself. {}.",
                against_formulas(&result.series).join(". ")
            ),
        );
        page.legend([(0, "published"), (1, "simulated")]);
        page.charts(result.series.iter().map(chart_of));
        let sizes = sizes(&result.series);
        let header = ["series", "use", "mean", "formula"]
            .into_iter()
            .map(String::from)
            .chain(sizes.iter().map(|size| short(*size)));
        page.table(&header.collect::<Vec<_>>(), result.series.iter().map(series_cells(&result.series)));
    }
    page.details("Claims about which there is nothing to simulate", |page| {
        let rows = result.not_simulated.iter().map(|row| {
            vec![row.id.to_owned(), row.says.to_owned(), row.source.clone(), row.published.clone(), row.why.clone()]
        });
        page.sentences(&["claim", "what it says", "source", "published", "why"], rows);
    });
    page.finish()
}

fn chart_of(row: &SeriesRow) -> Figure<'static> {
    let line = |name: &str, style, dashed, value: fn(&PointRow) -> f64| Series {
        name: name.into(),
        style,
        dashed,
        points: row.points.iter().map(|point| (point.size_bytes.into(), value(point))).collect(),
    };
    let lines = [
        line("published", 0, true, |point| point.published_mib_per_s),
        line("simulated", 1, false, |point| point.simulated_mib_per_s),
    ];
    Figure {
        caption: format!(
            "{}: deviation {:.1} % on average, of the formula {:.1} %",
            row.id,
            row.mean_absolute_deviation * 100.0,
            row.formula.mean_absolute_deviation * 100.0
        ),
        svg: chart::lines(&lines, "throughput, MiB/s", TRANSFER, Scale::Log, units::trimmed),
        legend: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_shortened() {
        assert_eq!(cut("queues and engines", 9), "queues a…");
        assert_eq!(cut("queues", 9), "queues");
    }
}
