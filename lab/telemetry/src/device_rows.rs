//! Makes rows of what was read of a modelled device.

use crate::snapshot::{DeviceRow, EngineRow, NOT_RECORDED, ProcessRow, QueueRow, Snapshot, Value, Work, errors};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use telpher_abi::{Opcode, Status};
use telpher_device::published::PublishedDevice;
use telpher_model::{ExecutionTimes, MAX_ENGINES, MAX_WQS, OPERATIONS, QueueTotals, STATUSES, Totals};

/// The reason of a sum that cannot be known.
const UNREAD: &str = "the totals of a process cannot be read";

/// What was read of a device.
pub(crate) struct DeviceReading<'a> {
    pub(crate) device: &'a PublishedDevice,
    /// The totals of all its queues.
    pub(crate) sum: Totals,
    /// What each queue has done.
    pub(crate) queues: BTreeMap<u32, Done>,
    /// What each client has done.
    pub(crate) clients: Vec<Client>,
    /// What closed files have done.
    pub(crate) closed: Vec<Closed>,
    /// The queues of which a client could not be read.
    pub(crate) unread: BTreeSet<u32>,
    /// Why the entries of its event log are unknown.
    pub(crate) no_log: &'static str,
}

/// The numbers of a queue, or of a client in its queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Done {
    pub(crate) work: QueueTotals,
    pub(crate) retries: u64,
    pub(crate) lost: u64,
}

/// A process that has a queue.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) wq: u32,
    pub(crate) process: u32,
    pub(crate) pasid: u32,
    pub(crate) done: Done,
    /// Its descriptors that wait in the queue.
    pub(crate) occupancy: Value,
    /// It has a row of its own.
    pub(crate) is_shown: bool,
}

/// The sum of those that have left a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closed {
    pub(crate) wq: u32,
    /// Their number.
    pub(crate) files: u64,
    pub(crate) done: Done,
}

impl Done {
    /// Returns the sum of both.
    pub(crate) fn and(&self, more: &Done) -> Done {
        Done {
            work: [self.work, more.work].into_iter().sum(),
            retries: self.retries.saturating_add(more.retries),
            lost: self.lost.saturating_add(more.lost),
        }
    }

    pub(crate) fn of(totals: &Totals, wq: u32) -> Done {
        let wq = wq as usize;
        Done { work: totals.queue(wq), retries: totals.retries(wq), lost: totals.lost(wq) }
    }

    /// The numbers of all queues.
    pub(crate) fn all(totals: &Totals) -> Done {
        (0..).take(MAX_WQS).fold(Done::default(), |sum, wq| sum.and(&Done::of(totals, wq)))
    }
}

/// The name of the device, the queue and the engine that stand for all that have no row of their own.
pub(crate) const OTHER: &str = "other";

/// What was read of devices that have no row of their own.
pub(crate) struct OtherReading {
    /// The number of their configurations; a device that never had a row counts as one.
    pub(crate) kinds: u64,
    pub(crate) state: &'static str,
    pub(crate) is_enabled: bool,
    /// The totals of all of them.
    pub(crate) sum: Totals,
    /// The processes that have one open; the number of the queue has no meaning.
    pub(crate) clients: Vec<Client>,
    /// What closed ones have done.
    pub(crate) closed: Option<Closed>,
    /// Why the entries of their event logs are unknown.
    pub(crate) no_log: &'static str,
}

/// Adds the rows of devices that have no row of their own: a device, a queue and an engine.
pub(crate) fn add_other(snapshot: &mut Snapshot, source: &str, reading: &OtherReading) {
    let OtherReading { kinds, state, is_enabled, sum, clients, closed, no_log } = reading;
    let differs =
        Value::unknown(format!("a sum over devices of {kinds} configurations, which have no row of their own"));
    let all = Done::all(sum);
    let count = clients.len() as u64;
    snapshot.queues.push(QueueRow {
        source: source.into(),
        queue: OTHER.into(),
        state: if *is_enabled { "enabled" } else { "disabled" }.into(),
        mode: "any".into(),
        size: differs.clone(),
        threshold: differs.clone(),
        priority: differs.clone(),
        group: differs.clone(),
        clients: count.into(),
        occupancy: waiting(clients.iter()),
        work: all.work.into(),
        retries: all.retries.into(),
        lost: all.lost.into(),
    });
    let times = (0..MAX_ENGINES).filter_map(|engine| sum.times(engine)).reduce(|sum, more| ExecutionTimes {
        count: sum.count.saturating_add(more.count),
        sum_ns: sum.sum_ns.saturating_add(more.sum_ns),
        buckets: std::array::from_fn(|at| sum.buckets[at].saturating_add(more.buckets[at])),
    });
    snapshot.engines.push(engine_row(source, OTHER.into(), differs.clone(), all.work.into(), times));
    snapshot.processes.extend(clients.iter().map(|client| process(source, OTHER.into(), client)));
    snapshot.processes.extend(closed.iter().map(|closed| closed_row(source, OTHER.into(), closed)));
    snapshot.devices.push(DeviceRow {
        source: source.into(),
        device: OTHER.into(),
        state: (*state).into(),
        clients: count.into(),
        work: all.work.into(),
        retries: all.retries.into(),
        lost: all.lost.into(),
        errors: errors(sum).into(),
        shared_requests: differs.clone(),
        dedicated_requests: differs,
        operations: operations(sum),
        statuses: statuses(sum),
        logged: Value::unknown(*no_log),
        logged_codes: Vec::new(),
    });
}

/// The row of an engine; its times if they were recorded.
fn engine_row(source: &str, engine: String, group: Value, work: Work, times: Option<ExecutionTimes>) -> EngineRow {
    let recorded = |value: Option<u64>| value.map_or_else(|| Value::unknown(NOT_RECORDED), Value::Known);
    EngineRow {
        source: source.into(),
        engine,
        group,
        work,
        timed: recorded(times.as_ref().map(|times| times.count)),
        busy_ns: recorded(times.as_ref().map(|times| times.sum_ns)),
        times: times.map_or_else(Vec::new, |times| times.buckets.to_vec()),
    }
}

/// The row of those that have left a queue.
fn closed_row(source: &str, queue: String, closed: &Closed) -> ProcessRow {
    ProcessRow {
        pid: Value::unknown("the sum of closed files"),
        command: format!("{} closed", closed.files),
        pasid: Value::unknown("the sum of closed files"),
        ..row(source, queue, &closed.done)
    }
}

/// The codes of which something was counted, with their names.
fn named(count: usize, name: impl Fn(u8) -> String, of: impl Fn(u8) -> u64) -> Vec<(String, u64)> {
    (0..)
        .take(count)
        .map(|code| (code, of(code)))
        .filter(|(_, of)| *of != 0)
        .map(|(code, of)| (name(code), of))
        .collect()
}

fn operations(totals: &Totals) -> Vec<(String, u64)> {
    named(OPERATIONS, |code| Opcode::from_code(code).name().to_owned(), |code| totals.operation(code))
}

fn statuses(totals: &Totals) -> Vec<(String, u64)> {
    named(STATUSES, |code| format!("{:?}", Status::from_code(code)), |code| totals.status(code))
}

fn group(group: Option<u32>) -> Value {
    group.map_or_else(|| Value::unknown("in no group"), |group| u64::from(group).into())
}

fn known(is_whole: bool, value: u64) -> Value {
    // A sum without one of its files would be a wrong number.
    if is_whole { value.into() } else { Value::unknown(UNREAD) }
}

fn work(is_whole: bool, totals: QueueTotals) -> Work {
    if is_whole { totals.into() } else { Work::unknown(UNREAD) }
}

/// Adds the rows of a device, its queues and engines, and of the processes that use it.
pub(crate) fn add_device(snapshot: &mut Snapshot, source: &str, reading: &DeviceReading<'_>) {
    let DeviceReading { device, sum, clients, .. } = reading;
    let is_whole = reading.unread.is_empty();
    let mut all = Done::default();
    let (mut shared, mut dedicated) = (0_u64, 0_u64);
    for queue in &device.queues {
        let done = reading.queues.get(&queue.wq).copied().unwrap_or_default();
        all = all.and(&done);
        let is_read = !reading.unread.contains(&queue.wq);
        let requests = if queue.dedicated { &mut dedicated } else { &mut shared };
        *requests = requests.saturating_add(done.work.descriptors);
        let open = || clients.iter().filter(|client| client.wq == queue.wq);
        snapshot.queues.push(QueueRow {
            source: source.into(),
            queue: queue_name(device, queue.wq),
            state: if queue.enabled { "enabled" } else { "disabled" }.into(),
            mode: if queue.dedicated { "dedicated" } else { "shared" }.into(),
            size: u64::from(queue.size).into(),
            threshold: if queue.dedicated {
                Value::unknown("a dedicated queue has none")
            } else {
                u64::from(queue.threshold).into()
            },
            priority: u64::from(queue.priority).into(),
            group: group(queue.group),
            clients: known(is_read, open().count() as u64),
            occupancy: if is_read { waiting(open()) } else { Value::unknown(UNREAD) },
            work: work(is_read, done.work),
            retries: known(is_read, done.retries),
            lost: known(is_read, done.lost),
        });
    }
    for engine in &device.engines {
        let number = engine.engine as usize;
        let name = format!("engine{}.{}", device.device, engine.engine);
        let work = work(is_whole, sum.engine(number));
        snapshot.engines.push(engine_row(source, name, group(engine.group), work, sum.times(number)));
    }
    let shown = clients.iter().filter(|client| client.is_shown);
    let processes = shown.map(|client| process(source, queue_name(device, client.wq), client));
    snapshot.processes.extend(processes);
    let closed = |closed: &Closed| closed_row(source, queue_name(device, closed.wq), closed);
    snapshot.processes.extend(reading.closed.iter().map(closed));
    snapshot.devices.push(DeviceRow {
        source: source.into(),
        device: format!("dsa{}", device.device),
        state: device.state.clone(),
        clients: known(is_whole, clients.len() as u64),
        work: work(is_whole, all.work),
        retries: known(is_whole, all.retries),
        lost: known(is_whole, all.lost),
        errors: known(is_whole, errors(sum)),
        shared_requests: known(is_whole, shared),
        dedicated_requests: known(is_whole, dedicated),
        operations: operations(sum),
        statuses: statuses(sum),
        logged: Value::unknown(reading.no_log),
        logged_codes: Vec::new(),
    });
}

/// Returns the descriptors of clients that wait in their queue; unknown if those of one are.
fn waiting<'a>(clients: impl Iterator<Item = &'a Client>) -> Value {
    let mut sum = 0_u64;
    for client in clients {
        match &client.occupancy {
            Value::Known(waiting) => sum = sum.saturating_add(*waiting),
            unknown @ Value::Unknown { .. } => return unknown.clone(),
        }
    }
    sum.into()
}

fn queue_name(device: &PublishedDevice, wq: u32) -> String {
    format!("wq{}.{wq}", device.device)
}

/// The numbers of a process row, or of a sum.
fn row(source: &str, queue: String, done: &Done) -> ProcessRow {
    ProcessRow {
        source: source.into(),
        queue,
        pid: Value::Known(0),
        command: String::new(),
        pasid: Value::Known(0),
        work: done.work.into(),
        retries: done.retries.into(),
        lost: done.lost.into(),
        record_faults: Value::unknown("the modelled driver does not count them by file"),
        numa_distance: Value::unknown("a modelled device is on no NUMA node"),
    }
}

fn process(source: &str, queue: String, client: &Client) -> ProcessRow {
    ProcessRow {
        pid: u64::from(client.process).into(),
        command: command(client.process),
        pasid: u64::from(client.pasid).into(),
        ..row(source, queue, &client.done)
    }
}

/// Returns the name of a process's program; empty if it has ended.
pub(crate) fn command(process: u32) -> String {
    // The kernel's names have at most 15 bytes.
    let mut name = [0; 64];
    let read =
        File::open(format!("/proc/{process}/comm")).and_then(|mut file| file.read(&mut name)).unwrap_or_default();
    // A program may put any characters into its name, also those that control a terminal.
    String::from_utf8_lossy(&name[..read]).trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
