//! What hardware counts, by the perf PMU of each device: descriptors, bytes, Retry answers, faults, errors.
//!
//! The kernel counts only while an event is open, so the numbers begin with the first reading. A device has few
//! counters (eight, as far as published): they count for the whole device, and none is left to tell queues or engines
//! apart. Sources: Linux 6.12, `drivers/dma/idxd/perfmon.c`; SPEC App. D.

use crate::snapshot::{DeviceRow, Snapshot, Value, Work};
use crate::sysfs::HARDWARE;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use telpher_abi::perfmon::Event;
use telpher_os::{CounterEvent, CounterReading, DeviceCounter};

/// Opens counters: the system, or a test.
pub trait Counters: fmt::Debug {
    /// Opens a counter.
    ///
    /// # Errors
    /// The system's.
    fn open(&self, event: &CounterEvent) -> io::Result<Box<dyn Counter>>;
}

/// An open counter.
pub trait Counter: fmt::Debug {
    /// Reads it.
    ///
    /// # Errors
    /// The system's.
    fn read(&self) -> io::Result<CounterReading>;
}

/// The system's counters.
#[derive(Debug)]
pub struct SystemCounters;

impl Counters for SystemCounters {
    fn open(&self, event: &CounterEvent) -> io::Result<Box<dyn Counter>> {
        Ok(Box::new(DeviceCounter::open(event)?))
    }
}

impl Counter for DeviceCounter {
    fn read(&self) -> io::Result<CounterReading> {
        DeviceCounter::read(self)
    }
}

/// A number of a device, by the events of one category whose sum it is.
struct Wanted {
    category: u8,
    events: u32,
    /// What one event stands for.
    unit: u64,
    put: fn(&mut DeviceRow, Value),
}

const fn wanted(events: &[Event], unit: u64, put: fn(&mut DeviceRow, Value)) -> Wanted {
    let (mut bits, mut at) = (0, 0);
    while at < events.len() {
        bits |= events[at].bit;
        at += 1;
    }
    Wanted { category: events[0].category, events: bits, unit, put }
}

/// The bytes of a unit of data. Source: SPEC App. D.
const DATA_UNIT: u64 = 32;

/// The numbers of a device: as many as it has counters.
const WANTED: [Wanted; 8] = [
    wanted(&[Event::FROM_WQ], 1, |row, value| row.work.descriptors = value),
    wanted(&[Event::FROM_BATCH], 1, |row, value| row.work.members = value),
    wanted(&[Event::INPUT_32B], DATA_UNIT, |row, value| row.work.read_bytes = value),
    wanted(&[Event::OUTPUT_32B], DATA_UNIT, |row, value| row.work.written_bytes = value),
    wanted(&[Event::TRANSLATION_FAULT], 1, |row, value| row.work.faults = value),
    wanted(&[Event::SWQ_LIMITED_RETRY, Event::SWQ_UNLIMITED_RETRY], 1, |row, value| row.retries = value),
    wanted(&[Event::DWQ_FULL], 1, |row, value| row.lost = value),
    wanted(&[Event::ERROR], 1, |row, value| row.errors = value),
];

/// The numbers of pcm-accel: its four columns.
const PCM: [Wanted; 4] = [
    wanted(&[Event::INPUT_32B], DATA_UNIT, |row, value| row.work.read_bytes = value),
    wanted(&[Event::OUTPUT_32B], DATA_UNIT, |row, value| row.work.written_bytes = value),
    wanted(&[Event::SWQ_LIMITED_ACCEPTED, Event::SWQ_UNLIMITED_ACCEPTED], 1, |row, value| row.shared_requests = value),
    wanted(&[Event::DWQ_ACCEPTED], 1, |row, value| row.dedicated_requests = value),
];

/// Why queues and engines have no numbers.
const TOO_FEW: &str = "a device has too few perf counters for each queue and engine";

/// A counter, or why it cannot be opened.
type Opened = Result<Box<dyn Counter>, String>;

/// The counters of all devices, open from the first reading on.
#[derive(Debug)]
pub struct Pmus {
    sys: PathBuf,
    counters: Box<dyn Counters>,
    is_pcm: bool,
    open: BTreeMap<String, Vec<Opened>>,
    /// The largest numbers so far: an estimate may become smaller, and a total may not.
    most: BTreeMap<(String, usize), u64>,
}

impl Pmus {
    /// Counters of the devices below `sys`, which is `/sys` except in tests. `is_pcm`: only what pcm-accel shows.
    #[must_use]
    pub fn new(sys: &Path, counters: Box<dyn Counters>, is_pcm: bool) -> Pmus {
        Pmus { sys: sys.into(), counters, is_pcm, open: BTreeMap::new(), most: BTreeMap::new() }
    }

    fn wanted(&self) -> &'static [Wanted] {
        if self.is_pcm { &PCM } else { &WANTED }
    }

    /// Puts what the devices have counted into the rows of hardware. The counters of new devices are opened.
    pub fn fill(&mut self, snapshot: &mut Snapshot) {
        let wanted = self.wanted();
        for row in snapshot.devices.iter_mut().filter(|row| row.source == HARDWARE) {
            if !self.open.contains_key(&row.device) {
                self.open.insert(row.device.clone(), self.open_device(&row.device));
            }
            for (at, (wanted, counter)) in wanted.iter().zip(&self.open[&row.device]).enumerate() {
                let mut value = value(wanted, counter);
                if let Value::Known(number) = &mut value {
                    let most = self.most.entry((row.device.clone(), at)).or_default();
                    *most = (*most).max(*number);
                    *number = *most;
                }
                (wanted.put)(row, value);
            }
        }
        for row in snapshot.queues.iter_mut().filter(|row| row.source == HARDWARE) {
            row.work = Work::unknown(TOO_FEW);
            (row.retries, row.lost) = (Value::unknown(TOO_FEW), Value::unknown(TOO_FEW));
        }
        for row in snapshot.engines.iter_mut().filter(|row| row.source == HARDWARE) {
            row.work = Work::unknown(TOO_FEW);
        }
    }

    fn open_device(&self, device: &str) -> Vec<Opened> {
        let source = self.sys.join("bus/event_source/devices").join(device);
        let open = |wanted: &Wanted| {
            let fields = [("event_category", u64::from(wanted.category)), ("event", u64::from(wanted.events))];
            let event = CounterEvent::of_fields(&source, &fields)
                .ok_or_else(|| format!("Linux shows no perf counters of {device}"))?;
            self.counters.open(&event).map_err(|error| refusal(&error))
        };
        self.wanted().iter().map(open).collect()
    }
}

/// Why a counter cannot be opened, and what to do.
fn refusal(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
            format!(
                "perf counters of devices need CAP_PERFMON or kernel.perf_event_paranoid of 0 or less, and it is '{}'",
                level.trim()
            )
        }
        _ => format!("the perf counter cannot be opened: {error}"),
    }
}

fn value(wanted: &Wanted, counter: &Opened) -> Value {
    let counter = match counter {
        Ok(counter) => counter,
        Err(reason) => return Value::unknown(reason),
    };
    match counter.read() {
        Ok(CounterReading { enabled_ns, running_ns: 0, .. }) if enabled_ns > 0 => {
            Value::unknown("other readers use all perf counters of the device")
        }
        // The kernel has taken turns: the part that was not counted is estimated.
        Ok(CounterReading { count, enabled_ns, running_ns }) if running_ns < enabled_ns => {
            let estimate =
                u128::from(count) * u128::from(enabled_ns) / u128::from(running_ns) * u128::from(wanted.unit);
            Value::Known(u64::try_from(estimate).unwrap_or(u64::MAX))
        }
        Ok(CounterReading { count, .. }) => Value::Known(count.saturating_mul(wanted.unit)),
        Err(error) => Value::unknown(format!("the perf counter cannot be read: {error}")),
    }
}
