//! Times, rates and verdicts of the fabric bench, as terminal tables, CSV and an HTML page.

use super::questions;
use super::rows;
use crate::fabric::{ALL, Conditions, FabricResult, Measured, Median, Peer, Task, Unit, bytes, shown};
use crate::goal::Verdict;
use crate::vhost::Distance;
use std::fmt::Write as _;
use telpher_report::chart::{self, Scale, Series};
use telpher_report::html::{Figure, Page};
use telpher_report::table::{Align, Table};
use telpher_report::units;

/// The first sentence of the report.
const LEAD: &str = "Messages between two processes, each on a core of its own: through telpher, libfabric's shm \
                    provider and the shared memory of MPIs, in turns of some milliseconds. Only points are compared \
                    between which the cores' distance did not change.";

/// Key of the medians in one table: part, task, buffers, distance.
type Group = (&'static str, Task, bool, Distance);

fn group_of(median: &Median) -> Group {
    (median.of.part, median.of.task, median.of.rewritten, median.distance)
}

fn groups(result: &FabricResult) -> Vec<Group> {
    let mut groups = Vec::new();
    for median in &result.medians {
        if !groups.contains(&group_of(median)) {
            groups.push(group_of(median));
        }
    }
    groups
}

fn name_of((part, task, rewritten, distance): Group) -> String {
    let what = match task {
        Task::PingPong => "half round trip",
        Task::Stream if part == "rate" => "messages a second",
        Task::Stream => "bytes a second",
        Task::Write => "bytes a second, written to remote memory",
        Task::Read => "bytes a second, read from remote memory",
        Task::AllReduce => "sum of floats",
        Task::Overlap => "hidden part of an exchange",
    };
    format!("{part}: {what}, {}, {} buffers", distance.name(), if rewritten { "rewritten" } else { "still" })
}

/// The medians of a group, its peers and its lengths.
struct Columns<'a> {
    medians: Vec<&'a Median>,
    peers: Vec<Peer>,
    sizes: Vec<u64>,
}

fn columns(result: &FabricResult, group: Group) -> Columns<'_> {
    let medians: Vec<&Median> = result.medians.iter().filter(|median| group_of(median) == group).collect();
    let peers = ALL.into_iter().filter(|peer| medians.iter().any(|median| median.peer == *peer)).collect();
    let mut sizes: Vec<u64> = medians.iter().map(|median| median.of.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    Columns { medians, peers, sizes }
}

/// Returns one line of a group: a peer, and its value and points at each length.
fn line(columns: &Columns<'_>, peer: Peer) -> Vec<String> {
    let value = |size: &u64| {
        let median = columns.medians.iter().find(|median| median.peer == peer && median.of.size == *size);
        median.map_or("–".into(), |median| format!("{} ({})", shown(median.unit, median.value), median.points))
    };
    let cpus = columns.medians.iter().filter(|median| median.peer == peer).map(|median| median.cpus);
    let cpus = cpus.fold(0.0, f64::max);
    let first = std::iter::once(peer.name().to_owned());
    first.chain(columns.sizes.iter().map(value)).chain([format!("{cpus:.2}")]).collect()
}

fn header(columns: &Columns<'_>) -> Vec<String> {
    let sizes = columns.sizes.iter().map(|&size| bytes(size));
    std::iter::once("peer".to_owned()).chain(sizes).chain(["CPUs".to_owned()]).collect()
}

/// The meaning of the tables' numbers.
const LEGEND: &str = "Medians, with the number of points; CPUs is the CPU time of both ranks by the elapsed time.";

const PEERS: [&str; 4] = ["peer", "copies", "long messages travel through", "program"];

fn peer_cells(measured: &Measured) -> [String; 4] {
    [measured.peer.name().into(), measured.copies.to_string(), measured.engine.into(), measured.program.clone()]
}

/// Returns the tables for a terminal.
pub fn text(result: &FabricResult) -> String {
    let mut out = questions::text(&result.answers);
    for group in groups(result) {
        let columns = columns(result, group);
        let _ = writeln!(out, "\n{}", name_of(group));
        let names = header(&columns);
        let align = |at: usize| if at == 0 { Align::Left } else { Align::Right };
        let heads: Vec<(&str, Align)> = names.iter().enumerate().map(|(at, name)| (name.as_str(), align(at))).collect();
        let mut table = Table::new(&heads);
        columns.peers.iter().for_each(|&peer| table.row(line(&columns, peer)));
        out.push_str(&table.to_string());
    }
    if !result.medians.is_empty() {
        let _ = writeln!(out, "\n{LEGEND}");
    }
    if !result.peers.is_empty() {
        out.push_str("\nPeers: copies of each byte of a long message, and how it travels\n");
        for measured in &result.peers {
            let [peer, copies, engine, program] = peer_cells(measured);
            let _ = writeln!(out, "  {peer} ({program}): {copies}; {engine}");
        }
    }
    out
}

fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Nanoseconds => "ns",
        Unit::Bandwidth => "B/s",
        Unit::Rate => "messages/s",
        Unit::Hidden => "%",
    }
}

/// Returns the CSV: one line for each median, then the verdicts.
pub fn csv(result: &FabricResult) -> String {
    let mut out = String::from("kind,part,task,size_bytes,buffers,window,distance,peer,value,unit,cpus,points\n");
    for Median { of, distance, peer, value, unit, cpus, points, .. } in &result.medians {
        let Conditions { part, task, size, rewritten, window } = of;
        let buffers = if *rewritten { "rewritten" } else { "still" };
        let (task, distance, peer, unit) = (task.name(), distance.name(), peer.name(), unit_name(*unit));
        let _ = writeln!(
            out,
            "median,{part},{task},{size},{buffers},{window},{distance},\"{peer}\",{value:.3},{unit},{cpus:.3},{points}"
        );
    }
    for answer in &result.answers.contests {
        for row in &answer.rows {
            let verdict = match row.verdict() {
                Verdict::Reached => "reached",
                Verdict::Short => "short",
                Verdict::Open => "open",
            };
            let _ =
                writeln!(out, "{verdict},{},,,,,,\"{}\",{},{},,", answer.name, row.what, rows::number(row), row.unit);
        }
    }
    out
}

/// Colours: telpher's, then the others'.
fn style(peer: Peer) -> usize {
    match peer {
        Peer::Telpher | Peer::OpenMpi => 4,
        Peer::TelpherHelper | Peer::Library | Peer::Mpich => 3,
        Peer::ShmCma => 1,
        Peer::ShmSar => 2,
        Peer::Vader => 5,
        Peer::VaderNoCma => 6,
        Peer::TelpherMapped | Peer::OpenMpiCollectives => 8,
        Peer::MpichCollectives => 9,
        Peer::Ucx => 7,
        Peer::OpenMpiShm => 1,
        Peer::MpichShm => 2,
    }
}

/// Returns the HTML report.
pub fn html(result: &FabricResult) -> String {
    let answers = &result.answers;
    let mut page =
        Page::new("telpher bench fabric", &format!("{LEAD} {}", rows::MARKS), &answers.machine, &answers.remarks);
    for answer in &answers.contests {
        page.section(answer.name, answer.question);
        if !answer.rows.is_empty() {
            page.table(&rows::HEADER.map(String::from), answer.rows.iter().map(|row| rows::cells(row).to_vec()));
        }
        // A line needs two lengths.
        let charts = groups(result).into_iter().filter(|group| group.0 == answer.name);
        page.charts(charts.filter(|group| columns(result, *group).sizes.len() > 1).map(|group| figure(result, group)));
    }
    page.details("Every median", |page| {
        page.small(LEGEND);
        for group in groups(result) {
            let columns = columns(result, group);
            page.small(&name_of(group));
            page.table(&header(&columns), columns.peers.iter().map(|&peer| line(&columns, peer)));
        }
    });
    page.details("The peers", |page| {
        page.table(&PEERS.map(String::from), result.peers.iter().map(|measured| peer_cells(measured).to_vec()));
    });
    page.finish()
}

fn figure(result: &FabricResult, group: Group) -> Figure<'static> {
    let columns = columns(result, group);
    let unit = columns.medians.first().map_or(Unit::Nanoseconds, |median| median.unit);
    let (label, scale, per): (_, _, f64) = match unit {
        Unit::Nanoseconds => ("time, µs", Scale::Log, 1e-3),
        Unit::Bandwidth => ("throughput, GB/s", Scale::Fitting, 1e-9),
        Unit::Rate => ("rate, million/s", Scale::Fitting, 1e-6),
        Unit::Hidden => ("hidden, %", Scale::Linear, 1.0),
    };
    let series = columns.peers.iter().map(|&peer| {
        let of = columns.medians.iter().filter(|median| median.peer == peer);
        let mut points: Vec<(u64, f64)> = of.map(|median| (median.of.size, median.value * per)).collect();
        points.sort_unstable_by_key(|point| point.0);
        Series { name: peer.name().into(), style: style(peer), dashed: false, points }
    });
    let svg = chart::lines(&series.collect::<Vec<_>>(), label, "bytes of a message", scale, units::trimmed);
    Figure {
        caption: name_of(group),
        svg,
        legend: columns.peers.iter().map(|&peer| (style(peer), peer.name())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::tests::sample;

    #[test]
    fn every_distance_and_kind_of_buffers_has_a_table_and_missing_values_are_dashes() {
        let text = text(&sample());
        for words in [
            "long: half round trip, far, still buffers",
            "long: half round trip, near, still buffers",
            "long: half round trip, far, rewritten buffers",
            "telpher (libfabric 1.17): 2; slots of shared memory",
        ] {
            assert!(text.contains(words), "{words} is missing in\n{text}");
        }
        assert!(text.contains("300 ns (1)") && text.contains("80.0 µs (1)"), "{text}");
        assert!(text.contains("2.00 of the time"), "{text}");
    }

    #[test]
    fn csv_has_a_line_for_every_median_and_every_verdict() {
        let result = sample();
        let csv = csv(&result);
        let rows: usize = result.answers.contests.iter().map(|answer| answer.rows.len()).sum();
        assert_eq!(csv.lines().count(), 1 + result.medians.len() + rows);
        assert!(csv.contains("median,long,pingpong,8,still,1,far,\"telpher\",300.000,ns,2.000,1\n"), "{csv}");
        let fields = |line: &str| line.split('"').step_by(2).collect::<String>().matches(',').count();
        assert!(csv.lines().all(|line| fields(line) == 11), "{csv}");
    }

    #[test]
    fn the_page_has_the_goals_and_the_medians() {
        let html = html(&sample());
        for words in ["How long?", "rewritten buffers", "Every median", "process_vm_readv", "of the time"] {
            assert!(html.contains(words), "{words}");
        }
    }
}
