//! Simulation results, as terminal tables, CSV and an HTML page.

use super::{DEVICE, PARTS, Point, Refused, RunResult};
use crate::chart::{self, Scale, Series, TRANSFER};
use crate::html::{Figure, Page};
use crate::table::{Align, Table, hanging};
use crate::units;
use std::fmt::Write as _;

/// Returns the tables for a terminal.
#[must_use]
pub fn text(result: &RunResult) -> String {
    let mut out = result.about.heading();
    for remark in &result.remarks {
        out.push_str(&hanging("", 0, remark));
    }
    for op in ops(result) {
        let _ = write!(out, "\n{op}\n{}", table(result, op));
    }
    out.push_str(&limits(result));
    for (number, line) in refusals(result).iter().enumerate() {
        out.push_str(if number == 0 { "\n" } else { "" });
        out.push_str(&hanging(&format!("  {REFUSED}"), REFUSED.len() + 4, line));
    }
    for app in &result.apps {
        let _ = write!(out, "\n{}\n", app.load);
        for (name, value, unit) in &app.measures {
            let _ = writeln!(out, "  {:>12} {unit:12}  {name}", units::three(*value));
        }
    }
    let devices: Vec<&Point> = result.points.iter().filter(|point| !point.is_cpu()).collect();
    if devices.len() <= FEW {
        for point in devices {
            out.push_str(&detail(point));
        }
    }
    out
}

/// Maximum points that are printed in full detail. Source: chosen; what fits on a screen.
const FEW: usize = 2;

fn ops(result: &RunResult) -> Vec<&'static str> {
    let with_numbers = result.points.iter().map(|point| point.op);
    let mut ops: Vec<&'static str> = Vec::new();
    for op in with_numbers.chain(result.refused.iter().map(|refused| refused.op)) {
        if !ops.contains(&op) {
            ops.push(op);
        }
    }
    ops
}

/// Returns the sizes of an operation, and for each the points and the refused modes.
fn by_size<'a>(result: &'a RunResult, op: &str) -> Vec<(u64, Vec<&'a Point>, Vec<&'a Refused>)> {
    let points: Vec<&Point> = result.points.iter().filter(|point| point.op == op).collect();
    let refused: Vec<&Refused> = result.refused.iter().filter(|refused| refused.op == op).collect();
    let mut sizes: Vec<u64> = Vec::new();
    for size in points.iter().map(|point| point.size).chain(refused.iter().map(|refused| refused.size)) {
        if !sizes.contains(&size) {
            sizes.push(size);
        }
    }
    let of_size = |size: u64| {
        let points = points.iter().copied().filter(move |point| point.size == size);
        (size, points.collect(), refused.iter().copied().filter(move |refused| refused.size == size).collect())
    };
    sizes.into_iter().map(of_size).collect()
}

/// Returns a sentence for each operation that the device refuses; modes with the same answer share it.
fn refusals(result: &RunResult) -> Vec<String> {
    let mut sentences: Vec<String> = Vec::new();
    for Refused { device, status, reason, .. } in &result.refused {
        let line = format!("{reason}; {device} answers: {status}. There are no numbers.");
        if !sentences.contains(&line) {
            sentences.push(line);
        }
    }
    sentences
}

/// What stands in place of a limit where the device refuses the operation.
const REFUSED: &str = "refused";

fn table(result: &RunResult, op: &str) -> Table {
    let mut table = Table::new(&[
        ("size", Align::Right),
        ("how", Align::Left),
        ("GB/s", Align::Right),
        ("p50", Align::Right),
        ("p99", Align::Right),
        ("p99.9", Align::Right),
        ("core", Align::Right),
        ("limited by", Align::Left),
    ]);
    for (number, (size, points, refused)) in by_size(result, op).into_iter().enumerate() {
        if number > 0 {
            table.gap();
        }
        for point in points {
            table.row([
                units::size(size),
                point.how(),
                units::three(point.bytes_per_s / 1e9),
                units::time_or_none(point.p50_ns),
                units::time_or_none(point.p99_ns),
                units::time_or_none(point.p999_ns),
                units::time(point.core.busy_ns),
                point.bottleneck.as_ref().map_or("", |held| held.limit).to_owned(),
            ]);
        }
        for refused in refused {
            let none = || units::time_or_none(None);
            let cells = [none(), none(), none(), none(), none()];
            let [rate, p50, p99, p999, core] = cells;
            table.row([units::size(size), refused.label(), rate, p50, p99, p999, core, REFUSED.to_owned()]);
        }
    }
    table
}

/// Returns the bottlenecks of the points, each once, with advice.
fn limits(result: &RunResult) -> String {
    let mut lines: Vec<(&str, String)> = Vec::new();
    for held in result.points.iter().filter_map(|point| point.bottleneck.as_ref()) {
        let what = match held.limit {
            // The longest part of the latency is printed with each point.
            "latency" => "no resource is busy; too few operations are in flight for their latency",
            _ => &held.what,
        };
        let line = (held.limit, format!("{what}; {}", held.help));
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    if lines.is_empty() {
        return String::new();
    }
    let column = lines.iter().map(|(limit, _)| limit.len() + 4).max().unwrap_or(0);
    let lines = lines.iter().map(|(limit, line)| hanging(&format!("  {limit}"), column, line));
    format!("\nlimited by\n{}", lines.collect::<String>())
}

/// Returns the full details of a point.
fn detail(point: &Point) -> String {
    let mut out = format!("\n{} of {}, {}\n", point.op, units::size(point.size), point.how());
    let _ = writeln!(
        out,
        "  {} GB/s, {} operations",
        units::three(point.bytes_per_s / 1e9),
        units::frequency(point.ops_per_s)
    );
    let _ = writeln!(out, "  latency    {} on average", units::time_or_none(point.mean_ns));
    for part in &point.parts {
        let share = part.ns.zip(point.mean_ns).map(|(ns, mean)| format!("  {:3.0} %", ns / mean * 100.0));
        let share = share.unwrap_or_default();
        let _ = writeln!(out, "    {:9}{:>9}{share}", part.name, units::time_or_none(part.ns));
    }
    let core = &point.core;
    let kinds =
        [("busy", core.busy_ns), ("polling", core.polling_ns), ("UMWAIT", core.umwait_ns), ("free", core.idle_ns)];
    out.push_str("  core time per operation\n");
    for (kind, ns) in kinds {
        let _ = writeln!(out, "    {kind:9}{:>9}", units::time(ns));
    }
    out.push_str("  utilization\n");
    for used in &point.resources {
        let _ = writeln!(out, "    {:3.0} %  {}", used.share * 100.0, used.what);
    }
    let pages = point.translations;
    if pages.requested > 0 {
        let (asked, walked, remembered) = (pages.requested, pages.walked, pages.remembered);
        let _ =
            writeln!(out, "  pages: {asked} translations, {walked} page walks, {remembered} hits on the page before");
    }
    if let Some(held) = &point.bottleneck {
        out.push_str(&hanging("", 2, &format!("Limited by {}.", held.sentence)));
    }
    out
}

/// One line for each point, and one for each result that an application reported.
#[must_use]
pub fn csv(result: &RunResult) -> String {
    let parts: String = PARTS.iter().map(|part| format!("{part}_ns,")).collect();
    let mut out = format!(
        "simulated,profile,profile_hash,load,op,size_bytes,device,depth,batch,threads,operations,bytes_per_s,ops_per_s,\
         p50_ns,p99_ns,p999_ns,mean_ns,{}busy_ns_per_op,polling_ns_per_op,umwait_ns_per_op,idle_ns_per_op,limit,\
         limited_by,measure,value,unit,status,reason\n",
        parts,
    );
    for p in &result.points {
        let parts: Vec<String> = p.parts.iter().map(|part| units::field(part.ns, 3)).collect();
        let (limit, sentence) = p.bottleneck.as_ref().map_or(("", ""), |held| (held.limit, held.sentence.as_str()));
        let _ = writeln!(
            out,
            "yes,{},{},{},{},{},{},{},{},{},{},{:.0},{:.0},{},{},{},{},{},{},{},{},{},{limit},\"{sentence}\",,,,,",
            quoted(&result.about.profile),
            result.about.profile_hash,
            quoted(&p.load),
            p.op,
            p.size,
            quoted(&p.device),
            p.depth,
            p.batch,
            p.threads,
            p.operations,
            p.bytes_per_s,
            p.ops_per_s,
            units::field(p.p50_ns, 3),
            units::field(p.p99_ns, 3),
            units::field(p.p999_ns, 3),
            units::field(p.mean_ns, 3),
            parts.join(","),
            p.core.busy_ns,
            p.core.polling_ns,
            p.core.umwait_ns,
            p.core.idle_ns,
        );
    }
    let columns = out.lines().next().map_or(0, |header| header.split(',').count());
    // No numbers: the fields between those of the operation and those of the answer stay empty.
    let none = ",".repeat(columns.saturating_sub(11));
    for Refused { op, size, device, depth, batch, threads, status, reason } in &result.refused {
        let (profile, hash) = (quoted(&result.about.profile), &result.about.profile_hash);
        let (device, status, reason) = (quoted(device), quoted(status), quoted(reason));
        let _ = writeln!(
            out,
            "yes,{profile},{hash},{DEVICE},{op},{size},{device},{depth},{batch},{threads}{none}{status},{reason}"
        );
    }
    // Fields of streams stay empty.
    let empty = ",".repeat(columns.saturating_sub(10));
    for app in &result.apps {
        for (name, value, unit) in &app.measures {
            let (profile, load, name) = (quoted(&result.about.profile), quoted(&app.load), quoted(name));
            let _ = writeln!(
                out,
                "yes,{profile},{},{load},{empty},{name},{},{unit},,",
                result.about.profile_hash,
                units::field(Some(*value), 6)
            );
        }
    }
    out
}

/// Quotes a CSV field; names may be paths.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// Returns the HTML report.
#[must_use]
pub fn html(result: &RunResult) -> String {
    let mut page = Page::with_facts(
        "telpher sim run",
        "What DSA hardware would give on the machine that the profile describes, in simulated time. Nothing here was \
         measured.",
        &result.about.facts(),
        &result.remarks,
    );
    let labels = labels(result);
    let legend = || labels.iter().enumerate().map(|(style, label)| (style, label.as_str()));
    type Value = fn(&Point) -> Option<f64>;
    let lines = |op: &str, value: Value| -> Vec<Series> {
        let line = |(style, label): (usize, &String)| {
            let of = result.points.iter().filter(|point| point.op == op && point.how() == *label);
            let points = of.filter_map(|point| Some((point.size, value(point)?))).collect();
            Series { name: label.clone(), style, dashed: false, points }
        };
        labels.iter().enumerate().map(line).collect()
    };
    let each = |y: &str, value: Value, tick: fn(f64) -> String| -> Vec<Figure<'static>> {
        let figure = |op: &'static str| Figure {
            caption: op.to_owned(),
            svg: chart::lines(&lines(op, value), y, TRANSFER, Scale::Log, tick),
            legend: Vec::new(),
        };
        ops(result).into_iter().map(figure).collect()
    };
    let mut sizes: Vec<u64> = result.points.iter().map(|point| point.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    // A line needs two points.
    if sizes.len() > 1 && result.workload.is_none() {
        page.section("Throughput", "Transfer size times operations per second; 1 GB is 10⁹ bytes.");
        page.legend(legend());
        page.charts(each("throughput, GB/s", |p| Some(p.bytes_per_s / 1e9), units::trimmed));
        page.section("Latency", "The median, from preparing a descriptor, or a batch, to seeing its record.");
        page.legend(legend());
        page.charts(each("latency", |p| p.p50_ns, units::time));
        spent(&mut page, result, &labels);
    }
    for op in ops(result) {
        page.section(op, "Everything that was simulated, and what held it up.");
        let header = ["size", "how", "GB/s", "operations", "p50", "p99", "p99.9", "core", "limited by"];
        let with_numbers = |point: &&Point| {
            vec![
                units::size(point.size),
                point.how(),
                units::three(point.bytes_per_s / 1e9),
                units::frequency(point.ops_per_s),
                units::time_or_none(point.p50_ns),
                units::time_or_none(point.p99_ns),
                units::time_or_none(point.p999_ns),
                units::time(point.core.busy_ns),
                point.bottleneck.as_ref().map_or(String::new(), |held| held.sentence.clone()),
            ]
        };
        let without = |refused: &&Refused| {
            let mut row = vec![units::time_or_none(None); header.len()];
            (row[0], row[1]) = (units::size(refused.size), refused.label());
            row[header.len() - 1] = format!("Refused: {}; the device answers: {}.", refused.reason, refused.status);
            row
        };
        let rows = by_size(result, op).into_iter().flat_map(|(_, points, refused)| {
            points.iter().map(with_numbers).chain(refused.iter().map(without)).collect::<Vec<_>>()
        });
        page.table(&header.map(String::from), rows);
    }
    for app in &result.apps {
        page.section(&app.load, "What the application reported.");
        let rows = app
            .measures
            .iter()
            .map(|(name, value, unit)| vec![name.clone(), format!("{} {unit}", units::three(*value))]);
        page.table(&["what", "simulated"].map(String::from), rows);
    }
    if !result.points.is_empty() {
        page.section("In use", "How much of its time, or room, everything was used, in per cent.");
        for point in &result.points {
            page.details(&format!("{} of {}, {}", point.op, units::size(point.size), point.how()), |page| {
                let rows =
                    point.resources.iter().map(|used| vec![used.what.clone(), format!("{:.1} %", used.share * 100.0)]);
                page.table(&["what", "in use"].map(String::from), rows);
            });
        }
    }
    page.finish()
}

/// Draws where latency is spent, by size: bars for each mode of a device.
fn spent(page: &mut Page, result: &RunResult, labels: &[String]) {
    let Some(parts) = result.points.iter().find(|point| !point.is_cpu()).map(|point| &point.parts) else { return };
    page.section(
        "Where latency is spent",
        "On average: the backlog before an operation is begun, preparing its descriptor, submitting it, waiting in the \
         queue, the engine's work until the last byte, the rest until the record, and noticing that.",
    );
    let names: Vec<(usize, &str)> = parts.iter().enumerate().map(|(style, part)| (style, part.name)).collect();
    page.legend(names.iter().copied());
    let mut figures = Vec::new();
    for op in ops(result) {
        for label in labels {
            let of = result.points.iter().filter(|point| point.op == op && point.how() == *label && !point.is_cpu());
            let bars: Vec<chart::Bar> = of
                .map(|point| (point.size, point.parts.iter().filter_map(|part| part.ns).enumerate().collect()))
                .collect();
            let svg = chart::bars(&bars, &names, "latency", units::time);
            figures.push(Figure { caption: format!("{op}, {label}"), svg, legend: Vec::new() });
        }
    }
    page.charts(figures);
}

/// Returns every mode, in the order of the points.
fn labels(result: &RunResult) -> Vec<String> {
    let mut labels: Vec<String> = Vec::new();
    for label in result.points.iter().map(Point::how) {
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    labels
}
