//! Directory trees as Linux 6.12 shows them stand for hardware.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use telpher_telemetry::exporter::{Exporter, TextFormat};
use telpher_telemetry::{Snapshot, Value, sysfs, tables};

/// A tree in a folder of its own, removed on drop.
struct Tree(PathBuf);

impl Tree {
    fn new(test: &str, files: &[(&str, &str)]) -> Tree {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("telemetry-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for (path, text) in files {
            let path = root.join("bus/dsa/devices").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Tree(root)
    }

    fn read(&self) -> Snapshot {
        sysfs::read(&self.0)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const TREE: &[(&str, &str)] = &[
    ("dsa0/state", "enabled\n"),
    ("dsa0/clients", "2\n"),
    ("wq0.0/state", "enabled\n"),
    ("wq0.0/mode", "shared\n"),
    ("wq0.0/size", "16\n"),
    ("wq0.0/threshold", "12\n"),
    ("wq0.0/priority", "10\n"),
    ("wq0.0/group_id", "0\n"),
    ("wq0.0/clients", "2\n"),
    ("wq0.0/occupancy", "3\n"),
    ("wq0.0/dsa!wq0.0/file0/pid", "4000000000\n"),
    ("wq0.0/dsa!wq0.0/file0/cr_faults", "5\n"),
    ("wq0.0/dsa!wq0.0/file1/pid", "4000000001\n"),
    ("wq0.1/state", "disabled\n"),
    ("wq0.1/group_id", "-1\n"),
    ("engine0.0/group_id", "0\n"),
    ("iax1/state", "enabled\n"),
    ("wqx/state", "enabled\n"),
];

#[test]
fn the_event_log_is_counted_by_code_where_it_can_be_read() {
    let log = "Event Log head 2 tail 2 interrupt pending 0\n\nEvent Log entry 0 (real index 1) processed: 1\n\
               desc valid 1 wq idx valid 1\nbatch 0 fault rw 1 priv 0 error 0x1a\n";
    let with = [TREE, &[("../../../kernel/debug/idxd/dsa0/event_log", log)]].concat();
    let snapshot = Tree::new("log", &with).read();
    let device = &snapshot.devices[0];
    assert_eq!((device.logged.known(), device.logged_codes[0].1), (Some(1), 1), "{device:?}");
    assert!(device.logged_codes[0].0.starts_with("0x1a "), "{device:?}");
    let mut exporter = Exporter::new(false);
    let text = exporter.families(&snapshot, (&[], &[]), Duration::ZERO).text(TextFormat::Prometheus);
    assert!(text.contains("dsa_device_event_log_entries{source=\"hardware\",device=\"dsa0\",code=\"0x1a "), "{text}");
    let without = Tree::new("no-log", TREE).read();
    assert!(without.devices[0].logged.known().is_none() && without.devices[0].logged_codes.is_empty());
}

#[test]
fn what_linux_shows_is_known_and_the_rest_has_a_reason() {
    let snapshot = Tree::new("known", TREE).read();
    let [device] = &snapshot.devices[..] else { panic!("{snapshot:?}") };
    assert_eq!((device.device.as_str(), device.state.as_str()), ("dsa0", "enabled"));
    assert_eq!(device.clients, Value::Known(2));
    let work = &device.work;
    for value in [&work.descriptors, &work.members, &work.read_bytes, &work.written_bytes, &device.retries] {
        assert_eq!(value.known(), None);
    }
    let [shared, unused] = &snapshot.queues[..] else { panic!("{snapshot:?}") };
    assert_eq!(
        (shared.occupancy.known(), shared.size.known(), shared.threshold.known()),
        (Some(3), Some(16), Some(12))
    );
    assert_eq!((unused.state.as_str(), unused.group.known(), unused.occupancy.known()), ("disabled", None, None));
    let Value::Unknown { unknown } = &unused.group else { panic!("{unused:?}") };
    assert_eq!(unknown, "group_id is '-1'");
    assert_eq!(snapshot.engines.iter().map(|row| row.engine.as_str()).collect::<Vec<_>>(), ["engine0.0"]);
}

#[test]
fn processes_are_those_that_the_driver_names() {
    let snapshot = Tree::new("processes", TREE).read();
    let rows: Vec<_> = snapshot
        .processes
        .iter()
        .map(|row| (row.pid.known(), row.record_faults.known(), row.command.as_str()))
        .collect();
    assert_eq!(rows, [(Some(4_000_000_000), Some(5), ""), (Some(4_000_000_001), None, "")]);
    assert!(snapshot.processes.iter().all(|row| row.work.descriptors.known().is_none()));
}

#[test]
fn the_distance_of_a_process_is_from_the_node_on_which_it_ran_last() {
    let pid = format!("{}\n", std::process::id());
    // All CPUs are on node 0, and the device is on node 1.
    let two_nodes: &[(&str, &str)] = &[
        ("dsa0/numa_node", "1\n"),
        ("wq0.0/dsa!wq0.0/file2/pid", &pid),
        ("../../../devices/system/node/online", "0-1\n"),
        ("../../../devices/system/node/node0/cpulist", "0-8191\n"),
        ("../../../devices/system/node/node0/distance", "10 21\n"),
        ("../../../devices/system/node/node1/distance", "21 10\n"),
    ];
    let distances = |test: &str, files: &[(&str, &str)]| {
        let snapshot = Tree::new(test, &[TREE, files].concat()).read();
        let mut exporter = Exporter::new(true);
        let text = exporter.families(&snapshot, (&[], &[]), Duration::ZERO).text(TextFormat::Prometheus);
        let distances: Vec<_> = snapshot.processes.into_iter().map(|row| row.numa_distance).collect();
        (distances, text)
    };
    let (seen, text) = distances("far", two_nodes);
    assert_eq!(seen.iter().map(Value::known).collect::<Vec<_>>(), [None, None, Some(21)], "{seen:?}");
    let sample =
        format!("dsa_client_numa_distance{{source=\"hardware\",device=\"dsa0\",wq=\"wq0.0\",pid=\"{}\"", pid.trim());
    assert!(text.lines().any(|line| line.starts_with(&sample) && line.ends_with("} 21")), "{text}");
    let (seen, text) = distances("no-node", &[("dsa0/numa_node", "-1\n"), two_nodes[1]]);
    assert!(
        seen.iter().all(|value| value.known().is_none()) && !text.contains("dsa_client_numa_distance{"),
        "{seen:?}"
    );
}

#[test]
fn a_machine_without_the_driver_has_no_devices() {
    assert_eq!(Tree::new("none", &[]).read(), Snapshot::default());
}

#[test]
fn unknown_values_are_dashes_in_text_and_words_in_csv() {
    let snapshot = Tree::new("shown", TREE).read();
    let text = tables::text(&snapshot, 200, None);
    let queue = text.lines().find(|line| line.contains("wq0.0")).unwrap();
    assert_eq!(
        queue.split_whitespace().collect::<Vec<_>>(),
        ["wq0.0", "enabled", "shared", "2", "3/16", "–", "–", "–", "–", "–", "–", "–"]
    );
    let csv = tables::csv(&snapshot);
    let columns = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().all(|line| line.split(',').count() == columns), "{csv}");
    assert!(csv.contains("device,hardware,dsa0,,,enabled,,,2,,,,unknown,"), "{csv}");
}

#[test]
fn the_columns_of_pcm_are_rates_and_unknown_ones_say_so() {
    let before = Tree::new("pcm", TREE).read();
    let header = "Accelerator,Socket,Inbound_BW(Bps),Outbound_BW(Bps),ShareWQ_ReqNb,DedicateWQ_ReqNb";
    let pcm = tables::pcm(&before, &before, 1.0);
    assert_eq!(pcm, format!("{header}\nDSA#0,unknown,unknown,unknown,unknown,unknown\n"));
    let with = |bytes: u64, requests: u64| {
        let mut snapshot = before.clone();
        snapshot.devices[0].work.read_bytes = bytes.into();
        snapshot.devices[0].work.written_bytes = (2 * bytes).into();
        snapshot.devices[0].shared_requests = requests.into();
        snapshot.devices[0].dedicated_requests = 0.into();
        snapshot
    };
    let pcm = tables::pcm(&with(1000, 7), &with(4001, 14), 2.0);
    assert_eq!(pcm.lines().nth(1), Some("DSA#0,unknown,1500,3001,3,0"));
}
