//! The result of a load on NVMe/TCP targets as text and CSV, and of one target as HTML.

use crate::nvmf_load::{Load, LoadReport, LoopsReport};
use telpher_report::html::Page;
use telpher_report::table::{Align, Table, wrapped};
use telpher_report::units;

/// Characters of a line of text.
const WIDTH: usize = 80;

/// The names and values of the table.
fn values(load: &Load) -> Vec<(&'static str, String)> {
    let latency = load.latency_ns;
    let mut values = vec![
        ("commands", load.commands.to_string()),
        ("commands a second", units::three(load.iops)),
        ("data", units::rate(load.bytes_per_second)),
        ("latency, median", units::time_or_none(latency.p50)),
        ("latency, 99 %", units::time_or_none(latency.p99)),
        ("latency, 99.9 %", units::time_or_none(latency.p999)),
        ("latency, longest", units::time_or_none(latency.max)),
        ("CPU time of the host for a command", units::time_or_none(load.cpu_ns)),
        ("blocks that were verified", load.verified_blocks.to_string()),
    ];
    if load.unknown_blocks > 0 {
        values.push(("blocks without a checksum", load.unknown_blocks.to_string()));
    }
    if load.repeated_writes > 0 {
        values.push(("writes repeated after damaged data", load.repeated_writes.to_string()));
    }
    values
}

/// What a load does on each of its connections.
fn work(load: &Load) -> String {
    format!("{} × {} in flight, digests: {}, {:.1} s", load.connections, load.in_flight, load.digests, load.seconds)
}

fn title(report: &LoadReport) -> String {
    format!(
        "{} on namespace {} of {} at {}: {}",
        report.load.pattern,
        report.nsid,
        report.subsystem,
        report.address,
        work(&report.load)
    )
}

fn lines(text: &str) -> String {
    wrapped(text, WIDTH).into_iter().map(|line| line + "\n").collect()
}

/// Returns the table for a terminal.
pub fn text(report: &LoadReport) -> String {
    let mut out = telpher_report::heading(&report.machine, &report.remarks);
    out.push('\n');
    out += &lines(&title(report));
    let mut table = Table::new(&[("what", Align::Left), ("measured", Align::Right)]);
    values(&report.load).into_iter().for_each(|(what, value)| table.row([what.to_owned(), value]));
    out += &table.to_string();
    for error in &report.load.errors {
        out += &format!("error: {error}\n");
    }
    out
}

/// Returns the table for a terminal: a row for each number of loops.
pub fn loops_text(report: &LoopsReport) -> String {
    let mut out = telpher_report::heading(&report.machine, &report.remarks);
    out.push('\n');
    let servers = &report.servers;
    let size = units::size(servers.memory_bytes);
    out += &lines(&format!("Servers: a disk of {size} in memory; data digests by {}.", servers.device));
    if let Some(run) = report.runs.first() {
        out += &lines(&format!("Load: {}, {} for each server.", run.load.pattern, work(&run.load)));
    }
    let columns = ["loops", "commands a second", "data", "median", "99 %", "host CPU a command"];
    let mut table = Table::new(&columns.map(|name| (name, Align::Right)));
    for run in &report.runs {
        let latency = run.load.latency_ns;
        table.row([
            run.loops.to_string(),
            units::three(run.load.iops),
            units::rate(run.load.bytes_per_second),
            units::time_or_none(latency.p50),
            units::time_or_none(latency.p99),
            units::time_or_none(run.load.cpu_ns),
        ]);
    }
    out += &table.to_string();
    for run in &report.runs {
        for error in &run.load.errors {
            out += &format!("error with {} loops: {error}\n", run.loops);
        }
    }
    out
}

/// The fields of a line of CSV, with their names.
fn fields(load: &Load) -> Vec<(&'static str, String)> {
    let latency = load.latency_ns;
    vec![
        ("pattern", load.pattern.clone()),
        ("digests", load.digests.to_owned()),
        ("connections", load.connections.to_string()),
        ("threads", load.threads.to_string()),
        ("in_flight", load.in_flight.to_string()),
        ("seconds", format!("{:.3}", load.seconds)),
        ("commands", load.commands.to_string()),
        ("iops", format!("{:.0}", load.iops)),
        ("bytes_per_second", format!("{:.0}", load.bytes_per_second)),
        ("p50_ns", units::field(latency.p50, 0)),
        ("p99_ns", units::field(latency.p99, 0)),
        ("p999_ns", units::field(latency.p999, 0)),
        ("max_ns", units::field(latency.max, 0)),
        ("cpu_ns", units::field(load.cpu_ns, 0)),
        ("verified_blocks", load.verified_blocks.to_string()),
        ("unknown_blocks", load.unknown_blocks.to_string()),
        ("repeated_writes", load.repeated_writes.to_string()),
        ("errors", load.errors.len().to_string()),
    ]
}

/// Returns the CSV: a line of names, and a line of values for each load.
fn csv_of(loads: &[Vec<(&'static str, String)>]) -> String {
    let line = |cells: Vec<&str>| cells.join(",") + "\n";
    let names = loads.first().map(|fields| line(fields.iter().map(|(name, _)| *name).collect()));
    let values = loads.iter().map(|fields| line(fields.iter().map(|(_, value)| value.as_str()).collect()));
    names.into_iter().chain(values).collect()
}

/// Returns the CSV: a line of names, and one of values.
pub fn csv(report: &LoadReport) -> String {
    csv_of(&[fields(&report.load)])
}

/// Returns the CSV: a line of names, and one of values for each number of loops.
pub fn loops_csv(report: &LoopsReport) -> String {
    let with_loops = report.runs.iter().map(|run| {
        let mut all = vec![("loops", run.loops.to_string())];
        all.extend(fields(&run.load));
        all
    });
    csv_of(&with_loops.collect::<Vec<_>>())
}

/// Returns the HTML report.
pub fn html(report: &LoadReport) -> String {
    let lead = "Commands of a host on an NVMe/TCP target, with verified data.";
    let mut page = Page::new("telpher nvmf bench", lead, &report.machine, &report.remarks);
    page.section("Result", &title(report));
    let rows = values(&report.load).into_iter().map(|(what, value)| vec![what.to_owned(), value]);
    let errors = report.load.errors.iter().map(|error| vec!["error".to_owned(), error.clone()]);
    page.table(&["what", "measured"].map(String::from), rows.chain(errors));
    page.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvmf_load::tests::{sample, sample_of_loops};

    fn cells(csv: &str) -> Vec<Vec<&str>> {
        csv.lines().map(|line| line.split(',').collect()).collect()
    }

    #[test]
    fn each_form_has_the_rates_and_the_errors() {
        let report = sample();
        let text = text(&report);
        assert!(text.contains("randread-16k on namespace 1") && text.contains("500"), "{text}");
        assert!(text.contains("error: connection 3: the target closed the connection"), "{text}");
        let csv = csv(&report);
        let lines = cells(&csv);
        assert_eq!((lines.len(), lines[0].len()), (2, lines[1].len()));
        assert!(html(&report).contains("connection 3: the target closed"));
    }

    #[test]
    fn each_number_of_loops_has_a_row() {
        let report = sample_of_loops();
        let text = loops_text(&report);
        assert!(text.contains("A remark.\n") && text.contains("data digests by model:spr."), "{text}");
        assert!(text.contains("error with 2 loops: connection 3: the target closed"), "{text}");
        let table: Vec<&str> = text.lines().skip_while(|line| !line.contains("loops  ")).collect();
        assert!(table.iter().any(|line| line.trim_start().starts_with("1  ") && line.contains("500")), "{text}");
        assert!(table.iter().any(|line| line.trim_start().starts_with("2  ") && line.contains("–")), "{text}");
        assert!(text.lines().skip(1).all(|line| line.chars().count() <= WIDTH), "{text}");
        let csv = loops_csv(&report);
        let lines = cells(&csv);
        let loops: Vec<&str> = lines.iter().map(|line| line[0]).collect();
        assert_eq!(loops, ["loops", "1", "2"]);
        assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{csv}");
        let p99 = lines[0].iter().position(|name| *name == "p99_ns").expect("a column");
        assert!(!lines[1][p99].is_empty() && lines[2][p99].is_empty(), "{csv}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["runs"][1]["loops"], &json["runs"][1]["commands"]), (&2.into(), &60.into()));
    }
}
