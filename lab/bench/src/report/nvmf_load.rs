//! The result of a load on an NVMe/TCP target as text, CSV and HTML.

use crate::nvmf_load::LoadReport;
use telpher_report::html::Page;
use telpher_report::table::{Align, Table, wrapped};
use telpher_report::units;

/// Characters of a line of text.
const WIDTH: usize = 80;

/// The names and values of the table.
fn values(report: &LoadReport) -> Vec<(&'static str, String)> {
    let latency = report.latency_ns;
    let mut values = vec![
        ("commands", report.commands.to_string()),
        ("commands a second", units::three(report.iops)),
        ("data", units::rate(report.bytes_per_second)),
        ("latency, median", units::time(latency.p50)),
        ("latency, 99 %", units::time(latency.p99)),
        ("latency, 99.9 %", units::time(latency.p999)),
        ("latency, longest", units::time(latency.max)),
        ("CPU time of the host for a command", units::time(report.cpu_ns)),
        ("blocks that were verified", report.verified_blocks.to_string()),
    ];
    if report.unknown_blocks > 0 {
        values.push(("blocks without a checksum", report.unknown_blocks.to_string()));
    }
    if report.repeated_writes > 0 {
        values.push(("writes repeated after damaged data", report.repeated_writes.to_string()));
    }
    values
}

fn title(report: &LoadReport) -> String {
    format!(
        "{} on namespace {} of {} at {}: {} × {} in flight, digests: {}, {:.1} s",
        report.pattern,
        report.nsid,
        report.subsystem,
        report.address,
        report.connections,
        report.depth,
        report.digests,
        report.seconds
    )
}

/// Returns the table for a terminal.
pub fn text(report: &LoadReport) -> String {
    let mut out = telpher_report::heading(&report.machine, &report.remarks);
    out.push('\n');
    for line in wrapped(&title(report), WIDTH) {
        out += &line;
        out.push('\n');
    }
    let mut table = Table::new(&[("what", Align::Left), ("measured", Align::Right)]);
    values(report).into_iter().for_each(|(what, value)| table.row([what.to_owned(), value]));
    out += &table.to_string();
    for error in &report.errors {
        out += &format!("error: {error}\n");
    }
    out
}

/// Returns the CSV: a line of names, and one of values.
pub fn csv(report: &LoadReport) -> String {
    let latency = report.latency_ns;
    let fields = [
        ("pattern", report.pattern.clone()),
        ("digests", report.digests.to_owned()),
        ("connections", report.connections.to_string()),
        ("threads", report.threads.to_string()),
        ("depth", report.depth.to_string()),
        ("seconds", format!("{:.3}", report.seconds)),
        ("commands", report.commands.to_string()),
        ("iops", format!("{:.0}", report.iops)),
        ("bytes_per_second", format!("{:.0}", report.bytes_per_second)),
        ("p50_ns", format!("{:.0}", latency.p50)),
        ("p99_ns", format!("{:.0}", latency.p99)),
        ("p999_ns", format!("{:.0}", latency.p999)),
        ("max_ns", format!("{:.0}", latency.max)),
        ("cpu_ns", format!("{:.0}", report.cpu_ns)),
        ("verified_blocks", report.verified_blocks.to_string()),
        ("unknown_blocks", report.unknown_blocks.to_string()),
        ("repeated_writes", report.repeated_writes.to_string()),
        ("errors", report.errors.len().to_string()),
    ];
    let line = |part: fn(&(&str, String)) -> String| fields.iter().map(part).collect::<Vec<_>>().join(",");
    format!("{}\n{}\n", line(|(name, _)| (*name).to_owned()), line(|(_, value)| value.clone()))
}

/// Returns the HTML report.
pub fn html(report: &LoadReport) -> String {
    let lead = "Commands of a host on an NVMe/TCP target, with verified data.";
    let mut page = Page::new("telpher nvmf bench", lead, &report.machine, &report.remarks);
    page.section("Result", &title(report));
    let rows = values(report).into_iter().map(|(what, value)| vec![what.to_owned(), value]);
    let errors = report.errors.iter().map(|error| vec!["error".to_owned(), error.clone()]);
    page.table(&["what", "measured"].map(String::from), rows.chain(errors));
    page.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvmf_load::tests::sample;

    #[test]
    fn each_form_has_the_rates_and_the_errors() {
        let report = sample();
        let text = text(&report);
        assert!(text.contains("randread-16k on namespace 1") && text.contains("500"), "{text}");
        assert!(text.contains("error: connection 3: the target closed the connection"), "{text}");
        let csv = csv(&report);
        let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!((lines.len(), lines[0].len()), (2, lines[1].len()));
        assert!(html(&report).contains("connection 3: the target closed"));
    }
}
