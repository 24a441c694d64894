//! What other processes can read of the endpoints of this one. The only test of its process, whose endpoints are
//! summed.

#[allow(dead_code, reason = "the helpers of all tests of messages")]
#[path = "messages/common.rs"]
mod common;

use common::{exact, nodes, pattern, run_until, run_until_done};
use std::collections::BTreeMap;
use telpher_fabric::{ConnectorStats, Stats};
use telpher_metrics::{AtomicU64, Metric, RegionReader};

/// Returns the sums over all endpoints of this process, by name and value of the label, as another process reads them.
fn published() -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path()) {
        let name = std::fs::read_link(&entry).unwrap_or_default();
        if name.to_str() != Some(&format!("/memfd:{} (deleted)", telpher_os::PUBLISHED)) {
            continue;
        }
        let bytes = std::fs::read(entry).unwrap();
        let words: Vec<AtomicU64> =
            bytes.as_chunks::<8>().0.iter().map(|word| AtomicU64::new(u64::from_ne_bytes(*word))).collect();
        let reader = RegionReader::open(&words).unwrap();
        let sets = reader.snapshot().sets;
        for (at, metric) in reader.metrics().iter().enumerate() {
            let label = metric.label.as_ref().map_or("", |(_, value)| value);
            let sum: u64 = sets.iter().map(|set| set.values[at]).sum();
            *sums.entry(format!("{} {label}", metric.name)).or_default() += sum;
        }
    }
    sums.retain(|name, _| name.starts_with("telpher_fabric_"));
    sums
}

fn named<'a>(values: impl Iterator<Item = (&'a Metric, u64)>) -> impl Iterator<Item = (String, u64)> {
    values.map(|(metric, value)| (format!("{} {}", metric.name, metric.label.map_or("", |(_, value)| value)), value))
}

#[test]
fn other_processes_read_what_all_endpoints_have_counted_and_those_that_are_closed_too() {
    let mut nodes = nodes(2);
    for (number, len) in (0..).zip([0, 33, 8192, 100_000, 1 << 20]) {
        nodes[0].send(1, Some(number), pattern(len, number), number);
        if number > 2 {
            nodes[1].receive(Some(0), exact(number), len, number);
        }
    }
    run_until_done(&mut nodes, &[5, 2]);
    // The counters are published after some passes in a row that move nothing.
    let counted = |nodes: &[common::Node]| -> BTreeMap<String, u64> {
        let sum: Stats = nodes.iter().map(|node| node.endpoint.statistics()).sum();
        named(sum.values()).collect()
    };
    let is_equal = |nodes: &[common::Node]| {
        let (seen, counted) = (published(), counted(nodes));
        counted.iter().all(|(name, value)| seen.get(name) == Some(value))
    };
    run_until(&mut nodes, |nodes| is_equal(nodes));
    let seen = published();
    let of = |name: &str| seen[name];
    assert_eq!(of("telpher_fabric_eager_messages_sent_total "), 3);
    assert_eq!(of("telpher_fabric_long_messages_sent_total "), 2);
    assert_eq!(of("telpher_fabric_sent_bytes_total "), 33 + 8192 + 100_000 + (1 << 20));
    assert!(of("telpher_fabric_unexpected_bytes ") > 8192, "three messages are kept");
    let slots = ["plain", "streaming"].map(|stores| of(&format!("telpher_fabric_filled_slots_total {stores}")));
    assert!(slots.iter().sum::<u64>() >= 2, "{seen:?}");
    let expected = ConnectorStats { connected: 1, accepted: 1, ..ConnectorStats::default() };
    let connections = named(expected.values());
    assert!(connections.filter(|(name, _)| !name.contains("wakes")).all(|(name, value)| of(&name) == value));

    // Counts of closed endpoints stay; what was present is not.
    let mut counted = counted(&nodes);
    counted.insert("telpher_fabric_unexpected_bytes ".into(), 0);
    drop(nodes);
    let seen = published();
    assert!(counted.iter().all(|(name, value)| seen[name] == *value || name.contains("wakes")), "{seen:?}");
}
