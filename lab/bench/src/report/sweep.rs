//! A sweep as terminal tables, CSV and an HTML page.

use crate::crossover::Crossover;
use crate::results::{Point, Route, SweepResult, WaitingEnergy};
use std::fmt::Write as _;
use telpher_report::chart::{self, Scale, Series, TRANSFER};
use telpher_report::html::{Figure, Page};
use telpher_report::table::{Align, Table, WIDTH, wrapped};
use telpher_report::units;

/// Returns the tables for a terminal: throughput, latency and CPU time for each operation, then the crossovers.
pub fn text(result: &SweepResult) -> String {
    let mut out = telpher_report::heading(&result.machine, &result.remarks);
    for op in result.ops() {
        let _ =
            write!(out, "\n{op}: throughput, GB/s\n{}", by_route(result, op, |p| units::three(p.bytes_per_s / 1e9)));
        let _ = write!(out, "\n{op}: latency p50 / p99 / p99.9, one at a time\n{}", latencies(result, op));
        if result.routes().iter().any(|r| !r.is_cpu() && r.is_sync()) {
            let _ = write!(out, "\n{op}: where that goes, prepare + submit + wait\n{}", parts(result, op));
        }
        let _ = write!(
            out,
            "\n{op}: CPU time of the submitting thread per operation\n{}",
            by_route(result, op, |p| units::time(p.cpu_ns_per_op))
        );
        // Where no point has it, a remark says why.
        if result.points.iter().any(|p| p.joules_per_gb.is_some()) {
            let joules = |p: &Point| units::three(p.joules_per_gb.unwrap_or(f64::NAN));
            let _ = write!(out, "\n{op}: energy of the processor packages, J/GB\n{}", by_route(result, op, joules));
        }
    }
    if let Some(waiting) = &result.waiting {
        let _ = write!(out, "\n{}", ways(waiting));
    }
    if !result.crossovers.is_empty() {
        out.push_str("\nCrossover: the size from which a route beats the CPU path at every larger size measured\n");
        out.push_str(&crossovers(result).to_string());
    }
    out
}

/// The cells of the energy of the CPU's copies and of each way of waiting.
fn energy_cells(waiting: &WaitingEnergy) -> impl Iterator<Item = [String; 2]> + '_ {
    waiting.ways.iter().map(|(way, joules)| [(*way).into(), joules.map_or_else(|| "–".into(), units::three)])
}

/// Returns the energy of the CPU's copies and of each way of waiting, and why it is not known.
fn ways(waiting: &WaitingEnergy) -> String {
    let device = waiting.device.as_deref().map_or(String::new(), |device| format!(", waiting for {device}"));
    let size = units::size(waiting.bytes as u64);
    let mut table = Table::new(&[("way", Align::Left), ("J/GB", Align::Right)]);
    energy_cells(waiting).for_each(|cells| table.row(cells));
    let mut out = format!("energy of the processor packages, copies of {size}{device}\n{table}");
    if let Some(reason) = &waiting.reason {
        let lines = wrapped(&format!("–: {reason}."), WIDTH - 2);
        lines.iter().for_each(|line| out.push_str(&format!("  {line}\n")));
    }
    out
}

fn by_route(result: &SweepResult, op: &str, cell: impl Fn(&Point) -> String) -> Table {
    per_route(result, op, &result.routes(), cell)
}

/// Returns a table with sizes as rows and routes as columns.
fn per_route(result: &SweepResult, op: &str, routes: &[Route], cell: impl Fn(&Point) -> String) -> Table {
    let labels: Vec<String> = routes.iter().map(Route::label).collect();
    let mut columns = vec![("size", Align::Right)];
    columns.extend(labels.iter().map(|l| (l.as_str(), Align::Right)));
    let apart = result.points.iter().any(|p| p.distance.is_some());
    if apart {
        columns.push(("cores apart", Align::Left));
    }
    let mut table = Table::new(&columns);
    for size in result.sizes() {
        let points: Vec<Option<&Point>> = routes.iter().map(|r| result.at(op, size, r)).collect();
        if points.iter().all(Option::is_none) {
            continue;
        }
        let cells = points.iter().map(|p| p.map_or("–".into(), &cell));
        let distance = points.iter().flatten().find_map(|p| p.distance).map(|d| d.to_string());
        table.row([units::size(size)].into_iter().chain(cells).chain(distance));
    }
    table
}

/// Returns the routes with one operation at a time.
fn one_at_a_time(result: &SweepResult) -> Vec<Route> {
    result.routes().into_iter().filter(|r| r.is_cpu() || r.is_sync()).collect()
}

fn latencies(result: &SweepResult, op: &str) -> Table {
    per_route(result, op, &one_at_a_time(result), percentiles)
}

fn parts(result: &SweepResult, op: &str) -> Table {
    let routes: Vec<Route> = one_at_a_time(result).into_iter().filter(|r| !r.is_cpu()).collect();
    per_route(result, op, &routes, |p| {
        p.breakdown.map_or("–".into(), |b| joined([b.prepare_ns, b.submit_ns, b.wait_ns], " + "))
    })
}

fn percentiles(p: &Point) -> String {
    joined([p.p50_ns, p.p99_ns, p.p999_ns].map(|ns| ns.unwrap_or(f64::NAN)), " / ")
}

/// Formats three times, with the unit once if they share it.
fn joined(times: [f64; 3], between: &str) -> String {
    let texts = times.map(units::time);
    let unit = |t: &str| t.split(' ').nth(1).unwrap_or_default().to_owned();
    let cells = texts.iter().enumerate().map(|(i, t)| match t.split_once(' ') {
        Some((number, u)) if i < 2 && u == unit(&texts[i + 1]) => number.to_owned(),
        _ => t.clone(),
    });
    cells.collect::<Vec<_>>().join(between)
}

fn crossovers(result: &SweepResult) -> Table {
    let columns = [
        ("operation", Align::Left),
        ("route", Align::Left),
        ("by throughput", Align::Left),
        ("by CPU time", Align::Left),
    ];
    let mut table = Table::new(&columns);
    for row in &result.crossovers {
        table.row([row.op.into(), row.route.clone(), wins(&row.throughput), wins(&row.cpu_time)]);
    }
    table
}

fn wins(crossover: &Crossover) -> String {
    match crossover {
        Crossover::From(size) => format!("from {}", units::size(*size)),
        Crossover::Between(a, b) if a == b => format!("only at {}", units::size(*a)),
        Crossover::Between(a, b) => format!("only between {} and {}", units::size(*a), units::size(*b)),
        Crossover::Never => "not in this range".into(),
    }
}

/// Returns the CSV: one line for each point.
pub fn csv(result: &SweepResult) -> String {
    let mut out = String::from(
        "op,size_bytes,device,runner,depth,batch,threads,in_flight,bytes_per_s,ops_per_s,p50_ns,p99_ns,p999_ns,\
         timed_together,samples,cpu_ns_per_op,prepare_ns,submit_ns,wait_ns,core_round_trip_ns,core_class,\
         joules_per_gb\n",
    );
    let number = |n: Option<f64>| n.map_or(String::new(), |n| format!("{n:.3}"));
    for p in &result.points {
        let r = &p.route;
        let runner = r.runner.map_or(String::new(), |r| format!("{r:?}").to_lowercase());
        let distance = p.distance.map_or(",".into(), |d| format!("{:.1},{}", d.round_trip_ns, d.class()));
        let _ = writeln!(
            out,
            "{},{},{},{runner},{},{},{},{},{:.0},{:.0},{},{},{},{},{},{:.3},{},{},{},{distance},{}",
            p.op,
            p.size,
            quoted(&r.device),
            r.depth,
            r.batch,
            r.threads,
            p.in_flight,
            p.bytes_per_s,
            p.ops_per_s,
            units::field(p.p50_ns, 2),
            units::field(p.p99_ns, 2),
            units::field(p.p999_ns, 2),
            p.timed_together,
            p.samples,
            p.cpu_ns_per_op,
            number(p.breakdown.map(|b| b.prepare_ns)),
            number(p.breakdown.map(|b| b.submit_ns)),
            number(p.breakdown.map(|b| b.wait_ns)),
            number(p.joules_per_gb),
        );
    }
    out
}

/// Quotes a CSV field; device names may be paths.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// Returns the HTML report.
pub fn html(result: &SweepResult) -> String {
    let mut page = Page::new(
        "telpher bench",
        "Operations of the Data Streaming Accelerator on the CPU path and on devices, over transfer sizes.",
        &result.machine,
        &result.remarks,
    );
    let routes = result.routes();
    let labels: Vec<String> = routes.iter().map(Route::label).collect();
    let legend = |only: fn(&Route) -> bool| -> Vec<(usize, &str)> {
        let all = routes.iter().zip(&labels).enumerate();
        all.filter(|(_, (r, _))| only(r)).map(|(i, (_, l))| (i, l.as_str())).collect()
    };
    type Value = fn(&Point) -> Option<f64>;
    let lines = |op: &str, only: fn(&Route) -> bool, value: Value, dashed: Option<Value>| {
        let mut series = Vec::new();
        for (style, route) in routes.iter().enumerate().filter(|(_, r)| only(r)) {
            let line = |f: Value| result.of(op, route).filter_map(|p| Some((p.size, f(p)?))).collect();
            let name = labels[style].clone();
            let p99 = dashed.map(|f| Series { name: format!("{name}, p99"), style, dashed: true, points: line(f) });
            series.push(Series { name, style, dashed: false, points: line(value) });
            series.extend(p99);
        }
        series
    };
    let each = |draw: &dyn Fn(&str) -> String| -> Vec<Figure<'_>> {
        let figure = |op: &str| Figure { caption: op.to_owned(), svg: draw(op), legend: Vec::new() };
        result.ops().into_iter().map(figure).collect()
    };

    page.section(
        "Throughput",
        "Transfer size times operations per second; 1 GB is 10⁹ bytes. Each point is the median of several short \
         windows in which only operations run and no clock is read. The routes take turns, so that a slow moment of \
         the machine meets them all. Inline, the submitting thread executes for the model; threaded, an engine thread \
         does; hardware is a real device. Plain is one at a time, ×32 keeps 32 descriptors in flight, 2×b32 two \
         batches of 32.",
    );
    let simulated = result.simulated.as_ref();
    let name = simulated.map(|simulated| format!("DSA ({}), simulated", simulated.profile));
    page.legend(legend(|_| true).into_iter().chain(name.as_deref().map(|name| (routes.len(), name))));
    page.charts(each(&|op| {
        let mut series = lines(op, |_| true, |p| Some(p.bytes_per_s / 1e9), None);
        series.extend(simulated.map(|simulated| {
            let of_op = simulated.points.iter().filter(|point| point.op == op);
            let points = of_op.map(|point| (point.size, point.bytes_per_s / 1e9)).collect();
            let name = name.clone().unwrap_or_default();
            Series { name, style: routes.len(), dashed: true, points }
        }));
        chart::lines(&series, "throughput, GB/s", TRANSFER, Scale::Log, units::trimmed)
    }));

    page.section(
        "Latency, one at a time",
        "From preparing an operation to seeing it done, measured in windows of their own with the time stamp counter. \
         Full lines are medians, dashed lines the 99th percentile. Operations too short for the clock are timed in \
         groups, which hides their tails.",
    );
    page.legend(legend(|r| r.is_cpu() || r.is_sync()));
    page.charts(each(&|op| {
        let series = lines(op, |r| r.is_cpu() || r.is_sync(), |p| p.p50_ns, Some(|p| p.p99_ns));
        chart::lines(&series, "latency", TRANSFER, Scale::Log, axis_time)
    }));

    breakdowns(&mut page, result, &routes);

    page.section(
        "CPU time of the submitting thread",
        "What the submitting thread's own clock counted for one operation. A thread that executes inline, or that \
         waits by looking again and again, is charged for all of it; a thread that submits many and lets engines work \
         pays for submitting only as far as it sleeps while waiting.",
    );
    page.legend(legend(|_| true));
    page.charts(each(&|op| {
        chart::lines(
            &lines(op, |_| true, |p| Some(p.cpu_ns_per_op), None),
            "CPU time per operation",
            TRANSFER,
            Scale::Log,
            axis_time,
        )
    }));

    if !result.crossovers.is_empty() {
        page.section(
            "Crossover sizes",
            "The smallest size measured from which a route beats the CPU path at every larger size, by throughput and \
             by the submitting thread's CPU time.",
        );
        page.table(
            &["operation", "route", "by throughput", "by CPU time"].map(String::from),
            result
                .crossovers
                .iter()
                .map(|c| vec![c.op.into(), c.route.clone(), wins(&c.throughput), wins(&c.cpu_time)]),
        );
    }
    if let Some(waiting) = &result.waiting {
        let reason = waiting.reason.as_ref().map_or(String::new(), |reason| format!(" Not known here: {reason}."));
        let device = waiting.device.as_deref().unwrap_or("no device");
        page.section(
            "Energy of waiting",
            &format!(
                "Joules of the processor packages per 10⁹ bytes, for copies of {} by the CPU, and by {device} with \
                 each way of waiting.{reason}",
                units::size(waiting.bytes as u64)
            ),
        );
        page.table(&["way", "J/GB"].map(String::from), energy_cells(waiting).map(|cells| cells.to_vec()));
    }
    page.details("Every number", |page| every_number(page, result));
    page.finish()
}

fn breakdowns(page: &mut Page, result: &SweepResult, routes: &[Route]) {
    const PARTS: [(usize, &str); 3] = [(1, "prepare"), (4, "submit"), (3, "wait")];
    // Above this size only the wait is visible.
    const LARGEST: u64 = 16 << 10;
    page.section(
        "Where the latency goes",
        "Median time to prepare a descriptor, to submit it, and to wait for its completion record, one at a time; \
         sizes to 16 KiB. Inline, submitting executes the descriptor, so the work shows under submit; threaded, it \
         shows under wait.",
    );
    page.legend(PARTS);
    let mut charts = Vec::new();
    for op in result.ops() {
        for route in routes.iter().filter(|r| !r.is_cpu() && r.is_sync()) {
            let points = result.of(op, route).filter(|p| p.size <= LARGEST);
            let bars: Vec<chart::Bar> = points
                .filter_map(|p| {
                    let b = p.breakdown?;
                    Some((p.size, PARTS.iter().map(|x| x.0).zip([b.prepare_ns, b.submit_ns, b.wait_ns]).collect()))
                })
                .collect();
            let svg = chart::bars(&bars, &PARTS, "time", axis_time);
            charts.push(Figure { caption: format!("{op}, {}", route.label()), svg, legend: Vec::new() });
        }
    }
    page.charts(charts);
}

fn every_number(page: &mut Page, result: &SweepResult) {
    let header = [
        "operation",
        "size",
        "route",
        "GB/s",
        "operations",
        "p50",
        "p99",
        "p99.9",
        "CPU time",
        "prepare",
        "submit",
        "wait",
        "in flight",
        "cores apart",
    ];
    page.table(
        &header.map(String::from),
        result.points.iter().map(|p| {
            let part = |f: fn(&crate::results::Breakdown) -> f64| {
                p.breakdown.as_ref().map_or(String::new(), |b| units::time(f(b)))
            };
            vec![
                p.op.into(),
                units::size(p.size),
                p.route.label(),
                units::three(p.bytes_per_s / 1e9),
                units::frequency(p.ops_per_s),
                units::time_or_none(p.p50_ns),
                units::time_or_none(p.p99_ns),
                units::time_or_none(p.p999_ns),
                units::time(p.cpu_ns_per_op),
                part(|b| b.prepare_ns),
                part(|b| b.submit_ns),
                part(|b| b.wait_ns),
                p.in_flight.to_string(),
                p.distance.map_or(String::new(), |d| d.to_string()),
            ]
        }),
    );
}

/// Formats a tick mark of a time axis: `10 ns`, `1 µs`.
pub fn axis_time(ns: f64) -> String {
    match ns {
        ns if ns < 999.5 => format!("{} ns", units::trimmed(ns)),
        ns if ns < 999.5e3 => format!("{} µs", units::trimmed(ns / 1e3)),
        ns if ns < 999.5e6 => format!("{} ms", units::trimmed(ns / 1e6)),
        ns => format!("{} s", units::trimmed(ns / 1e9)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{MODEL_REMARK, sample};

    #[test]
    fn the_tables_name_sizes_routes_and_distance() {
        let text = text(&sample());
        for word in ["64 KiB", "threaded", "near 61 ns", "p50 / p99 / p99.9", "from 4 KiB", "prepare + submit + wait"] {
            assert!(text.contains(word), "{word} is missing in\n{text}");
        }
        assert!(text.contains(MODEL_REMARK));
    }

    #[test]
    fn the_energy_of_each_way_of_waiting_is_a_number_or_a_dash_with_its_reason() {
        let of = |joules: Option<f64>, reason: Option<&str>| {
            let ways = vec![("CPU", joules), ("spinning", joules.map(|joules| 2.0 * joules)), ("yielding", None)];
            let (device, reason) = (Some("model:spr".into()), reason.map(Into::into));
            let waiting = Some(WaitingEnergy { device, bytes: 4 << 20, ways, reason });
            let result = SweepResult { waiting, ..sample() };
            (text(&result), html(&result))
        };
        let (text, html) = of(Some(1.5), None);
        let heading = "energy of the processor packages, copies of 4 MiB, waiting for model:spr\n";
        let table = text.split_once(heading).expect("the table").1;
        let rows: Vec<Vec<&str>> = table.lines().skip(2).take(3).map(|row| row.split_whitespace().collect()).collect();
        assert_eq!(rows, [["CPU", "1.50"], ["spinning", "3.00"], ["yielding", "–"]], "{text}");
        assert!(html.contains("Energy of waiting") && html.contains("3.00"));
        let (text, html) = of(None, Some("Linux shows no package energy"));
        assert!(text.contains("CPU          –") && text.contains("–: Linux shows no package energy."), "{text}");
        assert!(html.contains("Not known here: Linux shows no package energy."));
    }

    #[test]
    fn csv_lines_have_equal_fields() {
        let csv = csv(&sample());
        let counts: Vec<usize> = csv.lines().map(|l| l.split(',').count()).collect();
        assert_eq!(counts, [22; 7], "{csv}");
    }

    #[test]
    fn unmeasured_values_are_dashes_or_empty_fields() {
        let mut result = sample();
        for point in &mut result.points {
            (point.p50_ns, point.p99_ns, point.p999_ns, point.breakdown, point.samples) = (None, None, None, None, 0);
        }
        let (text, csv, html) = (text(&result), csv(&result), html(&result));
        assert!(text.contains("– / – / –") && !text.contains(" 0 ns"), "{text}");
        assert!(csv.contains(",,,,1,0,"), "{csv}");
        assert!(html.contains("–") && !html.contains(">0 ns<"), "{html}");
    }

    #[test]
    fn the_page_carries_charts_labels_facts_and_the_remark() {
        let html = html(&sample());
        for word in [
            "throughput, GB/s",
            "64 B",
            "4 KiB",
            "transfer size",
            "Kernel",
            "telpher 0",
            MODEL_REMARK,
            "1 µs",
            "CPU time",
        ] {
            assert!(html.contains(word), "{word} is missing");
        }
        assert!(html.matches("<svg ").count() >= 4);
        assert!(!html.contains("http://www.w3.org/1999/xlink"));
    }
}
