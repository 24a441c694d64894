//! Rates, costs and verdicts of the vhost bench, as terminal tables, CSV and an HTML page.

use super::questions;
use crate::goal::Verdict;
use crate::vhost::{COPIES, CPU, Cost, DEVICE, Distance, HYBRID, PIPELINE, Rate, RateConditions, Ratio, VhostResult};
use std::fmt::Write as _;
use telpher_report::chart::{self, Scale, Series};
use telpher_report::html::{Figure, Page};
use telpher_report::table::{Align, Table};
use telpher_report::units;

/// Key of the rates in one table: part, ring, direction, distance.
type Group = (&'static str, &'static str, &'static str, Distance);

fn group_of(place: RateConditions) -> Group {
    (place.part, place.ring, place.traffic, place.distance)
}

fn groups(result: &VhostResult) -> Vec<Group> {
    let mut groups = Vec::new();
    for rate in &result.rates {
        let group = group_of(rate.place);
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

/// Describes a direction.
fn way(traffic: &str) -> &'static str {
    match traffic {
        "b2f" => "into the guest (b2f)",
        "f2b" => "out of the guest (f2b)",
        _ => "around (loop)",
    }
}

fn name_of((part, ring, traffic, distance): Group) -> String {
    let name = format!("{ring}, {}, {}", way(traffic), distance.name());
    if part == COPIES { name } else { format!("{part}: {name}") }
}

/// The columns of a group: the competitors with rates, and the compared pairs.
struct Columns<'a> {
    rates: Vec<&'a Rate>,
    backends: Vec<&'static str>,
    compared: Vec<(&'static str, &'static str)>,
    sizes: Vec<u32>,
}

fn columns(result: &VhostResult, group: Group) -> Columns<'_> {
    let rates: Vec<&Rate> = result.rates.iter().filter(|rate| group_of(rate.place) == group).collect();
    let (mut backends, mut sizes, mut compared) = (Vec::new(), Vec::new(), Vec::new());
    for rate in &rates {
        if !backends.contains(&rate.backend) {
            backends.push(rate.backend);
        }
        if !sizes.contains(&rate.place.size) {
            sizes.push(rate.place.size);
        }
    }
    sizes.sort_unstable();
    for ratio in &result.ratios {
        let pair = (ratio.of, ratio.by);
        if group_of(ratio.place) == group && !compared.contains(&pair) {
            compared.push(pair);
        }
    }
    Columns { rates, backends, compared, sizes }
}

/// Returns one line of a group: the length, a rate for each competitor, a ratio for each pair.
fn line(result: &VhostResult, group: Group, columns: &Columns<'_>, size: u32) -> Vec<String> {
    let rate = |backend: &&'static str| {
        let rate = columns.rates.iter().find(|rate| rate.backend == *backend && rate.place.size == size);
        let share = |rate: &Rate| rate.share.map_or(String::new(), |share| format!("; {:.0} %", 100.0 * share));
        rate.map_or("–".into(), |rate| format!("{:.2} ({}{})", rate.mpps, rate.points, share(rate)))
    };
    let ratio = |&(of, by): &(&'static str, &'static str)| {
        let is_it = |ratio: &&Ratio| group_of(ratio.place) == group && (ratio.of, ratio.by) == (of, by);
        let found = result.ratios.iter().find(|ratio| is_it(ratio) && ratio.place.size == size);
        found.map_or("–".into(), |ratio| format!("{:.2} ({})", ratio.ratio, ratio.rounds))
    };
    let first = std::iter::once(format!("{size} B"));
    first.chain(columns.backends.iter().map(rate)).chain(columns.compared.iter().map(ratio)).collect()
}

fn header(columns: &Columns<'_>) -> Vec<String> {
    let ratios = columns.compared.iter().map(|(of, by)| format!("{of} / {by}"));
    let backends = columns.backends.iter().map(|backend| (*backend).to_owned());
    std::iter::once("packet".to_owned()).chain(backends).chain(ratios).collect()
}

/// Returns the tables for a terminal.
pub fn text(result: &VhostResult) -> String {
    let mut out = questions::text(&result.answers);
    for group in groups(result) {
        let columns = columns(result, group);
        let device = if columns.rates.iter().any(|rate| rate.share.is_some()) { "; bytes by the device" } else { "" };
        let _ = writeln!(out, "\n{}: million packets a second (points{device}), and ratios (pairs)", name_of(group));
        let names = header(&columns);
        let heads: Vec<(&str, Align)> = names.iter().map(|name| (name.as_str(), Align::Right)).collect();
        let mut table = Table::new(&heads);
        for &size in &columns.sizes {
            table.row(line(result, group, &columns, size));
        }
        out.push_str(&table.to_string());
    }
    if !result.costs.is_empty() {
        out.push_str("\nWhat a packet costs the forwarding core, around\n");
        let heads = COSTS.map(|name| (name, Align::Right));
        let mut table = Table::new(&heads);
        result.costs.iter().for_each(|cost| table.row(cost_cells(cost)));
        out.push_str(&table.to_string());
    }
    out
}

const COSTS: [&str; 7] = ["ring", "packet", "copied by", "ticks", "ns", "by the device", "intervals"];

fn cost_cells(cost: &Cost) -> Vec<String> {
    vec![
        cost.ring.into(),
        format!("{} B", cost.size),
        if cost.by_device { "a device".into() } else { "the core".into() },
        format!("{:.0}", cost.ticks),
        units::three(cost.ns),
        format!("{:.1} %", 100.0 * cost.share),
        format!("{} ({} interrupted)", cost.intervals, cost.interrupted),
    ]
}

/// Returns the CSV: one line for each rate, ratio and cost, then the verdicts.
pub fn csv(result: &VhostResult) -> String {
    let mut out =
        String::from("kind,part,ring,traffic,distance,size_bytes,backend,by,value,unit,points,device_share\n");
    for Rate { place: p, backend, mpps, points, share, .. } in &result.rates {
        let share = share.map_or(String::new(), |share| format!("{share:.4}"));
        let _ = writeln!(
            out,
            "rate,{},{},{},{},{},\"{backend}\",,{mpps:.4},Mpps,{points},{share}",
            p.part,
            p.ring,
            p.traffic,
            p.distance.name(),
            p.size
        );
    }
    for ratio in &result.ratios {
        let p = ratio.place;
        let _ = writeln!(
            out,
            "ratio,{},{},{},{},{},\"{}\",\"{}\",{:.4},times,{},",
            p.part,
            p.ring,
            p.traffic,
            p.distance.name(),
            p.size,
            ratio.of,
            ratio.by,
            ratio.ratio,
            ratio.rounds
        );
    }
    for cost in &result.costs {
        let by = if cost.by_device { "device" } else { "core" };
        let _ = writeln!(
            out,
            "cost,,{},loop,,{},{by},,{:.2},ticks,{},{:.4}",
            cost.ring, cost.size, cost.ticks, cost.intervals, cost.share
        );
    }
    for answer in &result.answers.contests {
        for row in &answer.rows {
            let verdict = match row.verdict() {
                Verdict::Reached => "reached",
                Verdict::Short => "short",
                Verdict::Open => "open",
            };
            let number = super::rows::number(row);
            let _ = writeln!(out, "{},,,,,,\"{}\",{verdict},{number},{},,", answer.name, row.what, row.unit);
        }
    }
    out
}

/// Colours of our CPU copies, our device, both together, and the peer.
fn style(backend: &str) -> usize {
    match backend {
        CPU => 3,
        PIPELINE | HYBRID => 4,
        DEVICE => 5,
        _ => 1,
    }
}

/// The label of a chart's horizontal axis.
const PACKET: &str = "packet size";

/// Returns the HTML report.
pub fn html(result: &VhostResult) -> String {
    let lead = "Packets between a switch on one core and its guest on another, in rounds: telpher's forwarding loop, \
                DPDK's net_vhost, and telpher's asynchronous pipeline, each with the same guest. Only points are \
                compared between which the cores' distance did not change.";
    let answers = &result.answers;
    let mut page =
        Page::new("telpher bench vhost", &format!("{lead} {}", super::rows::MARKS), &answers.machine, &answers.remarks);
    if !result.rates.is_empty() {
        page.section(
            "Forwarding rate over packet size",
            "Million packets a second as the guest counts them, medians over rounds: copied by the CPU, and through \
             the pipeline.",
        );
        page.charts(groups(result).into_iter().map(|group| rates_figure(result, group)));
    }
    if !result.costs.is_empty() {
        page.section(
            "What a packet costs the forwarding core",
            "Time of the forwarding loop's turns for one packet, taken from the guest and given back, over intervals \
             without an interruption: copied by the core, which grows with the packet, and by a device, when only the \
             rings' work is left. On the right the rate that one core has time for, if its device keeps up.",
        );
        let mut rings: Vec<&'static str> = result.costs.iter().map(|cost| cost.ring).collect();
        rings.dedup();
        page.charts(rings.into_iter().flat_map(|ring| costs_figures(&result.costs, ring)));
    }
    for answer in &answers.contests {
        page.section(answer.name, answer.question);
        page.table(
            &super::rows::HEADER.map(String::from),
            answer.rows.iter().map(|row| super::rows::cells(row).to_vec()),
        );
    }
    page.details("Every rate and ratio", |page| {
        for group in groups(result) {
            let columns = columns(result, group);
            page.small(&name_of(group));
            page.table(&header(&columns), columns.sizes.iter().map(|&size| line(result, group, &columns, size)));
        }
    });
    if !result.costs.is_empty() {
        page.details("Every cost", |page| page.table(&COSTS.map(String::from), result.costs.iter().map(cost_cells)));
    }
    page.finish()
}

fn rates_figure(result: &VhostResult, group: Group) -> Figure<'static> {
    let columns = columns(result, group);
    let styles: Vec<(usize, &'static str)> =
        columns.backends.iter().map(|backend| (style(backend), *backend)).collect();
    let series = styles.iter().map(|&(style, backend)| {
        let mut points: Vec<(u64, f64)> = columns
            .rates
            .iter()
            .filter(|rate| rate.backend == backend)
            .map(|rate| (u64::from(rate.place.size), rate.mpps))
            .collect();
        points.sort_unstable_by_key(|point| point.0);
        Series { name: backend.into(), style, dashed: false, points }
    });
    let svg =
        chart::lines(&series.collect::<Vec<_>>(), "rate, million packets/s", PACKET, Scale::Fitting, units::trimmed);
    Figure { caption: name_of(group), svg, legend: styles }
}

/// Returns charts of the cost over packet size, and of the rate that it allows.
fn costs_figures(costs: &[Cost], ring: &'static str) -> [Figure<'static>; 2] {
    let legend = || vec![(3, "copied by the core"), (4, "copied by a device")];
    let series = |value: fn(&Cost) -> f64| {
        [(false, 3), (true, 4)].map(|(by_device, style)| {
            let of = costs.iter().filter(|cost| cost.ring == ring && cost.by_device == by_device);
            let points = of.map(|cost| (u64::from(cost.size), value(cost))).collect();
            let name = legend().into_iter().find(|of| of.0 == style).map_or("", |of| of.1);
            Series { name: name.into(), style, dashed: false, points }
        })
    };
    let cost = chart::lines(&series(|cost| cost.ticks), "cost, ticks a packet", PACKET, Scale::Fitting, units::trimmed);
    let room =
        chart::lines(&series(|cost| 1e3 / cost.ns), "rate, million packets/s", PACKET, Scale::Fitting, units::trimmed);
    [
        Figure { caption: format!("{ring}: cost of a packet, around"), svg: cost, legend: legend() },
        Figure { caption: format!("{ring}: what the core has time for"), svg: room, legend: legend() },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vhost::tests::sample;

    #[test]
    fn every_distance_has_its_own_table_and_missing_values_are_dashes() {
        let text = text(&sample());
        for words in ["split, around (loop), far:", "split, around (loop), near:", "telpher / net_vhost"] {
            assert!(text.contains(words), "{words} is missing in\n{text}");
        }
        let line = |start: &str| text.lines().filter(|line| line.trim_start().starts_with(start)).collect::<Vec<_>>();
        assert!(line("1518 B")[0].ends_with("0.80 (5)") && line("1518 B").len() == 1, "{text}");
        assert_eq!(line("64 B").len(), 2, "{text}");
        // The lowest is short, and the median over both lengths is not.
        assert_eq!(text.lines().filter(|line| line.contains("  <  ")).count(), 1, "{text}");
    }

    #[test]
    fn csv_has_a_line_for_every_number() {
        let result = sample();
        let rows: usize = result.answers.contests.iter().map(|answer| answer.rows.len()).sum();
        let csv = csv(&result);
        assert_eq!(csv.lines().count(), 1 + result.rates.len() + result.ratios.len() + result.costs.len() + rows);
        for told in [
            "rate,copies,split,loop,far,64,\"telpher\",,6.0000,Mpps,5,\n",
            "cost,,split,loop,,1518,device,,400.00,ticks,10,1.0000\n",
        ] {
            assert!(csv.contains(told), "{told} is missing in\n{csv}");
        }
    }

    #[test]
    fn the_page_shows_both_lines_over_packet_size_and_the_cost() {
        let html = html(&sample());
        assert_eq!(html.matches("<svg ").count(), 4, "two distances, cost and room");
        for told in ["packet size", "million packets/s", "ticks a packet", "copied by a device", "net_vhost"] {
            assert!(html.contains(told), "{told}");
        }
    }
}
