//! Readings of processes that come, end, cannot be read, and describe any devices they like.

use super::*;
use crate::device_rows::OTHER;
use crate::exporter::{Exporter, TextFormat};
use crate::in_process::kinds::{MOST_KINDS, MOST_OF_PROCESS};
use crate::snapshot::Value;
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::time::Duration;
use telpher_device::published::{PublishedEngine, PublishedQueue};

/// Positions of totals, see `DeviceCounts`: descriptors of engine 0 by operation, and its descriptors of queue 0.
const NOPS: usize = 64;
const DESCRIPTORS: usize = 64 + 128;
/// The descriptor by which processes publish in these tests.
const FD: i32 = telpher_os::PUBLISHED_FROM;

/// A folder like `/proc`, and the number of its regions; removed on drop. The files of regions stay until then, so that
/// no inode is used twice.
struct Proc(PathBuf, Cell<u32>);

impl Proc {
    fn new(test: &str) -> Proc {
        let path = std::env::temp_dir().join(format!("telpher-sums-{}-{test}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Proc(path, Cell::new(0))
    }

    /// Opens a region in a process, and returns its inode.
    fn open(&self, pid: u32) -> u64 {
        self.1.set(self.1.get() + 1);
        let memory = self.0.join(format!("memory-{}", self.1.get()));
        let descriptors = self.0.join(format!("{pid}/fd"));
        fs::create_dir_all(&memory).unwrap();
        fs::create_dir_all(&descriptors).unwrap();
        let file = memory.join(format!("memfd:{} (deleted)", telpher_os::PUBLISHED_DEVICES));
        fs::write(&file, "").unwrap();
        symlink(&file, descriptors.join(FD.to_string())).unwrap();
        fs::metadata(file).unwrap().ino()
    }

    /// Writes `stat` of a process: its state, and when it was started.
    fn set_state(&self, pid: u32, state: char, started: u64) {
        let between = "0 ".repeat(18);
        let stat = format!("{pid} (a) Z 7) {state} {between}{started} 0\n");
        fs::write(self.0.join(format!("{pid}/stat")), stat).unwrap();
    }

    fn end(&self, pid: u32) {
        fs::remove_dir_all(self.0.join(pid.to_string())).unwrap();
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A device whose only queue has this many entries.
fn device(size: u32) -> PublishedDevice {
    let queue = PublishedQueue { size, enabled: true, ..PublishedQueue::default() };
    let engine = PublishedEngine { engine: 0, group: Some(0) };
    PublishedDevice { state: "enabled".into(), queues: vec![queue], engines: vec![engine], ..Default::default() }
}

/// A slot with an open device that has executed No-ops.
fn slot(number: u32, size: u32, nops: u64) -> PublishedSlot {
    let all = totals([(NOPS, nops), (DESCRIPTORS, nops)].into_iter());
    PublishedSlot { slot: number, device: device(size), is_open: true, all, ..PublishedSlot::default() }
}

fn region(pid: u32, inode: u64, slots: Vec<PublishedSlot>) -> DeviceRegion {
    DeviceRegion { pid, inode, unshown: 0, slots, path: PathBuf::new() }
}

/// The sums of a column of all tables: each must be the same.
fn descriptors(snapshot: &Snapshot) -> u64 {
    let sum = |works: Vec<&Value>| works.iter().map(|value| value.known().expect("a known sum")).sum::<u64>();
    let devices = sum(snapshot.devices.iter().map(|row| &row.work.descriptors).collect());
    assert_eq!(devices, sum(snapshot.queues.iter().map(|row| &row.work.descriptors).collect()));
    assert_eq!(devices, sum(snapshot.engines.iter().map(|row| &row.work.descriptors).collect()));
    assert_eq!(devices, sum(snapshot.processes.iter().map(|row| &row.work.descriptors).collect()));
    let nops = snapshot.devices.iter().flat_map(|row| &row.operations).map(|(_, count)| count).sum::<u64>();
    assert_eq!(devices, nops);
    devices
}

/// The sum of the samples of a family.
fn sum(text: &str, family: &str) -> u64 {
    let of_family = text.lines().filter(|line| line.split('{').next() == Some(family));
    of_family.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

#[test]
fn a_region_that_cannot_be_read_for_a_while_is_counted_once() {
    let proc = Proc::new("unread");
    let mut sums = DeviceSums::with_proc(proc.0.clone());
    let mut exporter = Exporter::with_roots(false, "/sys".into(), proc.0.clone(), "/var/log".into());
    let mut check = |regions: &[DeviceRegion], expected: u64, clients: u64| {
        let snapshot = sums.rows(regions);
        assert_eq!(descriptors(&snapshot), expected);
        assert_eq!(snapshot.devices[0].clients, Value::Known(clients));
        let text = exporter.families(&snapshot, (&[], &[]), Duration::ZERO).text(TextFormat::Prometheus);
        for of in ["device", "wq", "engine", "client"] {
            assert_eq!(sum(&text, &format!("dsa_{of}_descriptors_total")), expected, "{of}: {text}");
        }
    };
    let (one, two) = (proc.open(1), proc.open(2));
    let other = region(2, two, vec![slot(0, 16, 5)]);
    check(&[region(1, one, vec![slot(0, 16, 100)]), other.clone()], 105, 2);
    // A limit of open files, damage, or a moment without the right to look: it is still published.
    check(std::slice::from_ref(&other), 105, 2);
    check(&[], 105, 2);
    check(&[region(1, one, vec![slot(0, 16, 130)]), other.clone()], 135, 2);
    // It ends, without having been read once more.
    check(std::slice::from_ref(&other), 135, 2);
    proc.end(1);
    check(std::slice::from_ref(&other), 135, 1);
    // Its number is another process', which cannot be read at first, either.
    let next = proc.open(1);
    check(std::slice::from_ref(&other), 135, 1);
    check(&[region(1, next, vec![slot(0, 16, 7)]), other.clone()], 142, 2);
    // A region that its process has closed, for instance by execve, is no client any more.
    proc.end(2);
    let _ = proc.open(2);
    check(&[region(1, next, vec![slot(0, 16, 8)])], 143, 1);
}

#[test]
fn a_process_that_cannot_be_looked_at_is_a_client_until_it_has_ended() {
    for (state, started, clients) in [('S', 100, 1), ('Z', 100, 0), ('X', 100, 0), ('S', 200, 0)] {
        let proc = Proc::new("refused");
        let mut sums = DeviceSums::with_proc(proc.0.clone());
        let inode = proc.open(1);
        proc.set_state(1, 'R', 100);
        assert_eq!(sums.rows(&[region(1, inode, vec![slot(0, 16, 5)])]).devices[0].clients, Value::Known(1));
        // Its descriptors are now a loop of links, which the system refuses to follow.
        let descriptors = proc.0.join("1/fd");
        fs::remove_dir_all(&descriptors).unwrap();
        symlink("fd", &descriptors).unwrap();
        proc.set_state(1, state, started);
        let snapshot = sums.rows(&[]);
        assert_eq!(snapshot.devices[0].clients, Value::Known(clients), "{state} {started}");
        assert_eq!(snapshot.devices[0].work.descriptors, Value::Known(5), "{state} {started}");
    }
}

#[test]
fn a_process_that_takes_counts_back_makes_no_sum_shrink_and_none_count_twice() {
    let proc = Proc::new("back");
    let mut sums = DeviceSums::with_proc(proc.0.clone());
    let inode = proc.open(1);
    for (nops, expected) in [(100, 100), (60, 100), (70, 110), (0, 110), (200, 310)] {
        assert_eq!(descriptors(&sums.rows(&[region(1, inode, vec![slot(0, 16, nops)])])), expected, "{nops}");
    }
    // One word alone: the others do not count again.
    let mut changed = slot(0, 16, 200);
    changed.all = totals([(NOPS, 199), (DESCRIPTORS, 200)].into_iter());
    let snapshot = sums.rows(&[region(1, inode, vec![changed])]);
    assert_eq!(snapshot.queues[0].work.descriptors, Value::Known(310));
    assert_eq!(snapshot.devices[0].operations, [("nop".to_owned(), 310)]);
}

#[test]
fn a_process_that_takes_closed_devices_back_makes_no_sum_shrink() {
    let proc = Proc::new("closed");
    let mut sums = DeviceSums::with_proc(proc.0.clone());
    let inode = proc.open(1);
    let mut closed_before = 0;
    // Whether a device is open, how many were closed, all No-ops of the slot, and those of closed devices.
    let readings = [
        (true, 1, 100, 60),
        (true, 1, 100, 20),
        (true, 0, 110, 0),
        (false, 1, 120, 120),
        (true, 1, 130, 0),
        (true, 1, 50, 10),
        (true, 2, 60, 55),
    ];
    let mut expected = 0;
    let mut last = 0;
    for reading @ (is_open, closed, all, earlier) in readings {
        let of = |nops| totals([(NOPS, nops), (DESCRIPTORS, nops)].into_iter());
        let slot = PublishedSlot { is_open, closed, earlier: of(earlier), ..slot(0, 16, all) };
        let snapshot = sums.rows(&[region(1, inode, vec![slot])]);
        expected += all.saturating_sub(last);
        last = all;
        assert_eq!(descriptors(&snapshot), expected, "{reading:?}");
        let of_closed = snapshot.processes.iter().filter(|row| row.pid.known().is_none());
        let now: u64 = of_closed.map(|row| row.work.descriptors.known().unwrap()).sum();
        assert!(now >= closed_before, "{reading:?}: {now} of closed devices, {closed_before} before");
        closed_before = now;
    }
}

#[test]
fn one_process_with_many_kinds_of_devices_keeps_no_other_process_out() {
    let proc = Proc::new("hostile");
    let mut sums = DeviceSums::with_proc(proc.0.clone());
    let (hostile, honest) = (proc.open(1), proc.open(2));
    let kinds = u32::try_from(2 * MOST_KINDS).unwrap();
    let many = region(1, hostile, (0..kinds).map(|number| slot(number, 1000 + number, 1)).collect());
    let mut snapshot = sums.rows(std::slice::from_ref(&many));
    assert_eq!(descriptors(&snapshot), u64::from(kinds));
    for reading in 1..4 {
        snapshot = sums.rows(&[many.clone(), region(2, honest, vec![slot(0, 16, reading)])]);
        assert_eq!(descriptors(&snapshot), u64::from(kinds) + reading);
    }
    assert_eq!(snapshot.devices.len(), MOST_OF_PROCESS + 2, "eight rows, the other process', and the rest");
    let row = |size: u64| snapshot.queues.iter().find(|row| row.size == Value::Known(size));
    assert_eq!(row(16).map(|row| &row.work.descriptors), Some(&Value::Known(3)));
    let other = snapshot.devices.iter().find(|row| row.device == OTHER).expect("the rest");
    let rest = u64::from(kinds) - MOST_OF_PROCESS as u64;
    assert_eq!((other.work.descriptors.known(), other.state.as_str()), (Some(rest), "enabled"));
    // Each value that differs between them says why it is unknown.
    let queue = snapshot.queues.iter().find(|row| row.queue == OTHER).expect("the rest");
    let Value::Unknown { unknown } = &queue.size else { panic!("{queue:?}") };
    assert!(unknown.contains(&format!("{rest} configurations")), "{unknown}");
    // All have ended: nothing is lost, and the devices are closed.
    proc.end(1);
    proc.end(2);
    let snapshot = sums.rows(&[]);
    assert_eq!(descriptors(&snapshot), u64::from(kinds) + 3);
    assert!(snapshot.devices.iter().all(|row| row.state == "closed" && row.clients == Value::Known(0)), "{snapshot:?}");
}

#[test]
fn kinds_of_programs_that_have_ended_make_room_and_their_totals_stay() {
    let proc = Proc::new("ended");
    let mut sums = DeviceSums::with_proc(proc.0.clone());
    let mut exporter = Exporter::with_roots(false, "/sys".into(), proc.0.clone(), "/var/log".into());
    let lasting = proc.open(1);
    let programs = u32::try_from(MOST_KINDS + 16).unwrap();
    let mut most = 0;
    for program in 0..programs {
        let pid = 10 + program;
        let inode = proc.open(pid);
        let regions = [
            region(1, lasting, vec![slot(0, 16, u64::from(program) + 1)]),
            region(pid, inode, vec![slot(0, 1000 + program, 2)]),
        ];
        let snapshot = sums.rows(&regions);
        proc.end(pid);
        let expected = 3 * (u64::from(program) + 1);
        assert_eq!(descriptors(&snapshot), expected);
        let text = exporter.families(&snapshot, (&[], &[]), Duration::ZERO).text(TextFormat::Prometheus);
        assert_eq!(sum(&text, "dsa_client_descriptors_total"), expected, "{text}");
        let newest = snapshot.queues.iter().find(|row| row.size == Value::Known(u64::from(1000 + program)));
        assert_eq!(newest.map(|row| &row.work.descriptors), Some(&Value::Known(2)), "the latest program has a row");
        most = most.max(snapshot.devices.len());
        assert!(snapshot.queues.iter().any(|row| row.size == Value::Known(16)), "the one that goes on keeps its row");
        let is_full = program as usize >= MOST_KINDS - 1;
        assert_eq!(text.contains("device=\"other\",wq=\"other\""), is_full, "{program}: {text}");
    }
    assert_eq!(most, MOST_KINDS + 1);
}
