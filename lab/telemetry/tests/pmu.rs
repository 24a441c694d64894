//! Counters of hardware: a tree as Linux 6.12 shows it, and counters that the test sets.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use telpher_os::{CounterEvent, CounterReading};
use telpher_telemetry::exporter::{Exporter, TextFormat};
use telpher_telemetry::pmu::{Counter, Counters, Pmus};
use telpher_telemetry::{Snapshot, Value, sysfs, tables};

/// The counters of a fake system, by `config`.
#[derive(Clone, Debug, Default)]
struct Fake {
    counters: Rc<RefCell<BTreeMap<u64, Rc<Cell<CounterReading>>>>>,
    refused: Option<i32>,
}

#[derive(Debug)]
struct FakeCounter(Rc<Cell<CounterReading>>);

impl Counters for Fake {
    fn open(&self, event: &CounterEvent) -> io::Result<Box<dyn Counter>> {
        assert_eq!((event.kind, event.config[1], event.cpu), (31, 0, 4), "as the tree says");
        match self.refused {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => {
                let mut counters = self.counters.borrow_mut();
                Ok(Box::new(FakeCounter(Rc::clone(counters.entry(event.config[0]).or_default()))))
            }
        }
    }
}

impl Counter for FakeCounter {
    fn read(&self) -> io::Result<CounterReading> {
        Ok(self.0.get())
    }
}

impl Fake {
    /// Sets a counter by category and events.
    fn set(&self, category: u64, events: u64, count: u64, enabled_ns: u64, running_ns: u64) {
        let counters = self.counters.borrow();
        let counter = counters.get(&(category | events << 4)).unwrap_or_else(|| panic!("{counters:x?}"));
        counter.set(CounterReading { count, enabled_ns, running_ns });
    }
}

/// A machine with one device, two queues and an engine.
struct Machine(PathBuf);

impl Machine {
    fn new(test: &str, has_pmu: bool) -> Machine {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pmu-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let mut files = vec![
            ("bus/dsa/devices/dsa0/state", "enabled"),
            ("bus/dsa/devices/wq0.0/state", "enabled"),
            ("bus/dsa/devices/wq0.1/state", "enabled"),
            ("bus/dsa/devices/engine0.0/group_id", "0"),
        ];
        if has_pmu {
            files.extend([
                ("bus/event_source/devices/dsa0/type", "31"),
                ("bus/event_source/devices/dsa0/cpumask", "4"),
                ("bus/event_source/devices/dsa0/format/event_category", "config:0-3"),
                ("bus/event_source/devices/dsa0/format/event", "config:4-31"),
            ]);
        }
        for (file, says) in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{says}\n")).unwrap();
        }
        Machine(root)
    }

    fn read(&self, pmus: &mut Pmus) -> Snapshot {
        let mut snapshot = sysfs::read(&self.0);
        pmus.fill(&mut snapshot);
        snapshot
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn reason(value: &Value) -> &str {
    match value {
        Value::Unknown { unknown } => unknown,
        Value::Known(value) => panic!("{value} is known"),
    }
}

#[test]
fn a_device_s_numbers_come_from_eight_counters() {
    let machine = Machine::new("device", true);
    let fake = Fake::default();
    let mut pmus = Pmus::new(&machine.0, Box::new(fake.clone()), false);
    let first = machine.read(&mut pmus);
    assert_eq!(first.devices[0].work.descriptors, Value::Known(0), "nothing since the counters were opened");
    assert_eq!(fake.counters.borrow().len(), 8, "as many as a device has");
    fake.set(1, 0x20, 7, 100, 100);
    fake.set(1, 0x10, 5, 100, 100);
    fake.set(1, 0x1, 3, 100, 100);
    fake.set(1, 0x2, 4, 100, 100);
    fake.set(2, 0x2, 2, 100, 100);
    fake.set(0, 0xa, 9, 100, 100);
    fake.set(0, 0x20, 1, 100, 100);
    fake.set(4, 0x8, 6, 100, 100);
    let snapshot = machine.read(&mut pmus);
    let device = &snapshot.devices[0];
    let work = &device.work;
    let values = [&work.descriptors, &work.members, &work.read_bytes, &work.written_bytes, &work.faults];
    assert_eq!(values.map(Value::known), [7, 5, 96, 128, 2].map(Some));
    assert_eq!([&device.retries, &device.lost, &device.errors].map(Value::known), [9, 1, 6].map(Some));
    assert!(reason(&snapshot.queues[1].work.descriptors).contains("too few"));
    assert!(reason(&snapshot.queues[1].retries).contains("too few"));
    assert!(reason(&snapshot.engines[0].work.read_bytes).contains("too few"));
}

#[test]
fn what_was_counted_in_turns_is_estimated_and_what_was_never_counted_is_unknown() {
    let machine = Machine::new("turns", true);
    let fake = Fake::default();
    let mut pmus = Pmus::new(&machine.0, Box::new(fake.clone()), false);
    machine.read(&mut pmus);
    fake.set(1, 0x20, 100, 1000, 250);
    fake.set(1, 0x10, 0, 1000, 0);
    fake.set(1, 0x1, u64::MAX, 1000, 1);
    let snapshot = machine.read(&mut pmus);
    let work = &snapshot.devices[0].work;
    assert_eq!(work.descriptors, Value::Known(400));
    assert!(reason(&work.members).contains("other readers"), "{work:?}");
    assert_eq!(work.read_bytes, Value::Known(u64::MAX), "without an overflow");
}

#[test]
fn a_refusal_says_what_to_do() {
    // EACCES, ENOSYS.
    for (errno, part) in [(13, "CAP_PERFMON or kernel.perf_event_paranoid of 0 or less"), (38, "cannot be opened")] {
        let machine = Machine::new(&format!("refused-{errno}"), true);
        let fake = Fake { refused: Some(errno), ..Fake::default() };
        let snapshot = machine.read(&mut Pmus::new(&machine.0, Box::new(fake), false));
        let device = &snapshot.devices[0];
        for value in [&device.work.descriptors, &device.retries, &device.errors] {
            assert!(reason(value).contains(part), "{value:?}");
        }
    }
    let machine = Machine::new("absent", false);
    let snapshot = machine.read(&mut Pmus::new(&machine.0, Box::new(Fake::default()), false));
    assert!(reason(&snapshot.devices[0].work.descriptors).contains("no perf counters of dsa0"));
}

#[test]
fn the_columns_of_pcm_need_four_counters() {
    let machine = Machine::new("pcm", true);
    let fake = Fake::default();
    let mut pmus = Pmus::new(&machine.0, Box::new(fake.clone()), true);
    let before = machine.read(&mut pmus);
    assert_eq!(fake.counters.borrow().len(), 4);
    fake.set(1, 0x1, 100, 1, 1);
    fake.set(1, 0x2, 50, 1, 1);
    fake.set(0, 0x5, 20, 1, 1);
    fake.set(0, 0x10, 8, 1, 1);
    let after = machine.read(&mut pmus);
    assert_eq!(tables::pcm(&before, &after, 2.0).lines().nth(1), Some("DSA#0,unknown,1600,800,10,4"));
}

#[test]
fn the_exporter_has_what_the_counters_of_a_device_say_and_no_total_shrinks() {
    let machine = Machine::new("exporter", true);
    let fake = Fake::default();
    let mut pmus = Pmus::new(&machine.0, Box::new(fake.clone()), false);
    let mut exporter = Exporter::with_roots(false, machine.0.clone(), "/proc".into(), "/var/log".into());
    let mut text = |pmus: &mut Pmus| {
        let families = exporter.families(&machine.read(pmus), (&[], &[]), Duration::ZERO);
        families.text(TextFormat::Prometheus)
    };
    text(&mut pmus);
    fake.set(1, 0x20, 100, 1000, 250);
    fake.set(1, 0x2, 4, 100, 100);
    fake.set(4, 0x8, 6, 100, 100);
    let sample = |name: &str, value: u64| format!("{name}{{source=\"hardware\",device=\"dsa0\"}} {value}\n");
    for _ in 0..2 {
        let text = text(&mut pmus);
        for (name, value) in [
            ("dsa_device_descriptors_total", 400),
            ("dsa_device_written_bytes_total", 128),
            ("dsa_device_errors_total", 6),
            ("dsa_device_retries_total", 0),
        ] {
            assert!(text.contains(&sample(name, value)), "{name} {value}\n{text}");
        }
        let unknown = "metric=\"dsa_wq_descriptors_total\",reason=\"a device has too few perf counters";
        assert!(text.contains(unknown) && text.contains("metric=\"dsa_operations_total\""), "{text}");
        // The next estimate is smaller. A total that shrinks would be a restart for Prometheus.
        fake.set(1, 0x20, 110, 2000, 1000);
    }
}
