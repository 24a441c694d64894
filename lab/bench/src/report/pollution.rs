//! The pollution experiment as a terminal table, CSV and an HTML page.

use super::sweep::axis_time;
use crate::pollution::{Copies, PollutionResult, Row};
use std::fmt::Write as _;
use telpher_report::chart::{self, Scale, Series};
use telpher_report::html::{Figure, Page};
use telpher_report::table::{Align, Table};
use telpher_report::units;

const HEADER: [&str; 6] =
    ["working set", "copies beside it", "access latency", "against none", "copied meanwhile", "cores apart"];

/// Returns the table for a terminal.
pub fn text(result: &PollutionResult) -> String {
    let mut out = telpher_report::heading(&result.machine, &result.remarks);
    let _ = writeln!(
        out,
        "\nRandom access latency of {} co-runner(s) while another core copies {} at a time; the device is {}",
        result.co_runners,
        units::size(result.copy_size),
        result.device
    );
    let align = [Align::Right, Align::Left, Align::Right, Align::Right, Align::Right, Align::Left];
    let mut columns: Vec<_> = HEADER.into_iter().zip(align).collect();
    // Where no row has them, a remark says why.
    let has_cache = result.rows.iter().any(|row| row.runner_cache.is_some() || row.copier_cache.is_some());
    if has_cache {
        columns.extend([("cache of a co-runner", Align::Right), ("of the copier", Align::Right)]);
    }
    let mut table = Table::new(&columns);
    for row in &result.rows {
        if row.copies == Copies::None {
            table.gap();
        }
        let caches = [row.runner_cache, row.copier_cache].map(|bytes| bytes.map_or("–".into(), cache));
        table.row(cells(row).into_iter().chain(caches.into_iter().filter(|_| has_cache)));
    }
    out.push_str(&table.to_string());
    out
}

/// Bytes of a cache, to a tenth of a MiB.
fn cache(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}

fn cells(row: &Row) -> [String; 6] {
    let quiet = row.copies == Copies::None;
    [
        units::size(row.working_set),
        row.copies.name().into(),
        units::time(row.latency_ns),
        if quiet { String::new() } else { format!("{:+.0} %", (row.against_none - 1.0) * 100.0) },
        if quiet { String::new() } else { units::rate(row.copied_per_s) },
        row.distance.map_or(String::new(), |d| d.to_string()),
    ]
}

/// Returns the CSV: one line for each row.
pub fn csv(result: &PollutionResult) -> String {
    let mut out = String::from(
        "working_set_bytes,copies,latency_ns,against_none,copied_bytes_per_s,core_round_trip_ns,\
                      runner_cache_bytes,copier_cache_bytes\n",
    );
    for r in &result.rows {
        let distance = r.distance.map_or(String::new(), |d| format!("{:.1}", d.round_trip_ns));
        let _ = writeln!(
            out,
            "{},{},{:.3},{:.4},{:.0},{distance},{},{}",
            r.working_set,
            r.copies.name(),
            r.latency_ns,
            r.against_none,
            r.copied_per_s,
            units::field(r.runner_cache, 0),
            units::field(r.copier_cache, 0),
        );
    }
    out
}

/// Returns the HTML report.
pub fn html(result: &PollutionResult) -> String {
    let mut page = Page::new(
        "telpher bench pollution",
        "What copying on one core does to the memory latency of programs on the other cores.",
        &result.machine,
        &result.remarks,
    );
    page.section(
        "Access latency of the co-runners",
        &format!(
            "{} pinned co-runner(s) follow pointers at random through a working set, so that each access waits for the \
             one before; the line is the median time of an access over five rounds. Meanwhile another core copies {} \
             at a time through more memory than the last-level cache holds; the device is {}. The kinds of copies take \
             turns.",
            result.co_runners,
            units::size(result.copy_size),
            result.device
        ),
    );
    let line = |value: fn(&Row) -> f64, copies: Copies| -> Vec<(u64, f64)> {
        result.rows.iter().filter(|r| r.copies == copies).map(|r| (r.working_set, value(r))).collect()
    };
    let series = |value: fn(&Row) -> f64, from: usize| -> Vec<Series> {
        let kinds = Copies::ALL.into_iter().enumerate().skip(from);
        kinds
            .map(|(i, c)| Series { name: c.name().into(), style: STYLES[i], dashed: false, points: line(value, c) })
            .collect()
    };
    page.legend(Copies::ALL.into_iter().enumerate().map(|(i, c)| (STYLES[i], c.name())));
    let latency =
        chart::lines(&series(|r| r.latency_ns, 0), "latency of one access", "working set", Scale::Log, axis_time);
    let copied = chart::lines(
        &series(|r| r.copied_per_s / 1e9, 1),
        "copied, GB/s",
        "working set",
        Scale::Fitting,
        units::trimmed,
    );
    page.charts([
        Figure { caption: "Access latency over the working set".into(), svg: latency, legend: Vec::new() },
        Figure { caption: "What was copied meanwhile".into(), svg: copied, legend: Vec::new() },
    ]);
    page.table(&HEADER.map(String::from), result.rows.iter().map(|r| cells(r).to_vec()));
    page.finish()
}

/// Colours of the kinds of copies.
const STYLES: [usize; 4] = [0, 1, 5, 4];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pollution::tests::sample;

    #[test]
    fn the_table_shows_the_slowdown() {
        let text = text(&sample());
        assert!(text.contains("+50 %") && text.contains("16 MiB") && text.contains("non-temporal"), "{text}");
    }

    #[test]
    fn the_page_names_its_axes() {
        let html = html(&sample());
        for word in ["working set", "latency of one access", "copied, GB/s", "device"] {
            assert!(html.contains(word), "{word}");
        }
    }

    #[test]
    fn the_caches_of_the_threads_are_shown_where_they_are_known() {
        let mut result = sample();
        assert!(!text(&result).contains("cache of a co-runner"));
        result.rows[1].copier_cache = Some(1_572_864.0);
        let text = text(&result);
        assert!(text.contains("cache of a co-runner") && text.contains("1.5 MiB") && text.contains('–'), "{text}");
        assert!(csv(&result).lines().nth(2).unwrap().ends_with(",,1572864"), "{}", csv(&result));
    }

    #[test]
    fn csv_has_one_line_per_row() {
        assert_eq!(csv(&sample()).lines().count(), 9);
    }
}
