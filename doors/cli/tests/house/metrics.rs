//! Names of statistics: unique in the project, right in Prometheus, and listed in docs/metrics.md.

use crate::{none, root, rust_files};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use telpher_metrics::{Metric, Unit};

/// All sets that no other set contains.
const SETS: &[(&str, &[Metric])] = &[
    ("telpher_cache::Stats", telpher_cache::Stats::METRICS),
    ("telpher_fabric::ConnectorStats", telpher_fabric::ConnectorStats::METRICS),
    ("telpher_fabric::Stats", telpher_fabric::Stats::METRICS),
    ("telpher_mover::Work", telpher_mover::Work::METRICS),
    ("telpher_nvmf::stats::LoopStats", telpher_nvmf::stats::LoopStats::METRICS),
    ("telpher_nvmf::stats::Stats", telpher_nvmf::stats::Stats::METRICS),
    ("telpher_offload_wire::Counters", telpher_offload_wire::Counters::METRICS),
    ("telpher_switch::NicStats", telpher_switch::NicStats::METRICS),
    ("telpher_switch::PortStats", telpher_switch::PortStats::METRICS),
    ("telpher_switch::Stages", telpher_switch::Stages::METRICS),
    ("telpher_tier::Stats", telpher_tier::Stats::METRICS),
    ("telpher_vhost::DmaQueueStats", telpher_vhost::DmaQueueStats::METRICS),
    ("telpher_vhost::Stats", telpher_vhost::Stats::METRICS),
];

fn metrics() -> impl Iterator<Item = &'static Metric> {
    SETS.iter().flat_map(|(_, metrics)| *metrics)
}

#[test]
fn names_follow_the_rules_and_are_unique() {
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    let mut families: BTreeMap<&str, &Metric> = BTreeMap::new();
    for metric in metrics() {
        let Metric { name, label, .. } = metric;
        if let Some(rule) = metric.broken_rule() {
            findings.push(format!("{name}: {rule}"));
        }
        if !seen.insert((name, label)) {
            findings.push(format!("{name} {label:?} is declared twice"));
        }
        // Metrics with one name are one family in Prometheus: they differ in the label's value only.
        let family = families.entry(name).or_insert(metric);
        let key = |metric: &Metric| (metric.kind, metric.unit, metric.help, metric.label.map(|(key, _)| key));
        if key(family) != key(metric) {
            findings.push(format!("{name}: two declarations differ in kind, unit, help or label"));
        }
    }
    none("names of metrics", &findings);
}

/// A declaration that [`SETS`] lacks would be in no page and in no check.
#[test]
fn the_sets_are_all_that_the_project_declares() {
    let known: BTreeSet<&str> = metrics().map(|metric| metric.name).collect();
    let mut declared = BTreeSet::new();
    for (path, text) in rust_files() {
        if path.starts_with("base/metrics/") || !path.contains("/src/") || !text.contains("metrics! {") {
            continue;
        }
        let strings = text.split('"').skip(1).step_by(2);
        declared.extend(strings.filter(|string| string.starts_with("telpher_")).map(str::to_owned));
    }
    let declared: BTreeSet<&str> = declared.iter().map(String::as_str).collect();
    let missing: Vec<String> = declared.symmetric_difference(&known).map(|name| (*name).to_owned()).collect();
    none("names that are only in the sources or only in the tables of this test", &missing);
}

/// A renamed metric would leave a column of `telpher top` empty.
#[test]
fn the_table_of_programs_needs_metrics_that_exist() {
    let labels = |name: &str| -> Vec<&'static str> {
        metrics()
            .filter(|metric| metric.name == name)
            .map(|metric| metric.label.map_or("", |(_, value)| value))
            .collect()
    };
    let mut findings = Vec::new();
    for (name, wanted) in telpher_telemetry::programs::needed() {
        let known = labels(name);
        if known.is_empty() || wanted.iter().any(|label| !known.contains(label)) {
            findings.push(format!("{name} with the labels {wanted:?}; known are {known:?}"));
        }
    }
    none("metrics that `telpher top` shows and nothing counts", &findings);
}

/// Returns the rows of the page for a set: one for each name.
fn rows(metrics: &[Metric]) -> String {
    let mut rows = String::from("| name | kind | unit | what it counts |\n|---|---|---|---|\n");
    for (at, metric) in metrics.iter().enumerate() {
        let Metric { name, kind, unit, help, label, .. } = metric;
        if metrics[..at].iter().any(|earlier| earlier.name == *name) {
            continue;
        }
        let unit = if *unit == Unit::Count { "–" } else { unit.word() };
        let values = metrics.iter().filter(|other| other.name == *name).filter_map(|other| other.label);
        let values: Vec<&str> = values.map(|(_, value)| value).collect();
        let labels = label.map_or(String::new(), |(key, _)| format!(" `{key}`: {}.", values.join(", ")));
        writeln!(rows, "| `{name}` | {} | {unit} | {help}{labels} |", kind.word()).expect("a string grows");
    }
    rows
}

#[test]
fn the_page_lists_every_metric() {
    let page = std::fs::read_to_string(root().join("docs/metrics.md")).expect("docs/metrics.md");
    let mut expected = String::new();
    for (set, metrics) in SETS {
        write!(expected, "\n## `{set}`\n\n{}", rows(metrics)).expect("a string grows");
    }
    let (_, tables) = page.split_at(page.find("\n## ").expect("a first table"));
    assert_eq!(tables, expected, "docs/metrics.md must have these tables:\n{expected}");
}
