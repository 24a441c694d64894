//! Families of devices, queues, engines and their clients.

use super::definitions as of;
use super::family::{Definition, Families, Labels, Sample};
use super::kubelet::Grants;
use super::ledger::Ledger;
use super::owner::Owner;
use crate::device_rows::OTHER;
use crate::snapshot::{DeviceRow, EngineRow, ProcessRow, QueueRow, Snapshot, Value, Work};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The most reasons of unknown values. Source: chosen; a machine without counters has some thirty.
const MOST_REASONS: usize = 200;
/// The most characters of a label's value that is not a name of ours. Source: chosen.
const MOST_VALUE: usize = 120;

/// The families of the totals of clients, in the order of a client's totals.
const CLIENT_TOTALS: [Definition; 7] = [
    of::CLIENT_DESCRIPTORS,
    of::CLIENT_MEMBERS,
    of::CLIENT_READ,
    of::CLIENT_WRITTEN,
    of::CLIENT_FAULTS,
    of::CLIENT_RETRIES,
    of::CLIENT_DROPPED,
];

/// An open file's process at a queue, in a run.
type Client = (String, String, u64, u64);
/// A run, a queue and the owner of processes, with a process if that is wanted.
type ClientOwner = (String, String, Owner, Option<(u64, String)>);

/// What is remembered of devices between two readings.
#[derive(Debug, Default)]
pub(super) struct DeviceMemory {
    clients: Ledger<Client, ClientOwner>,
}

/// Collects samples, and the reasons of values that are unknown.
struct Collected<'a> {
    families: &'a mut Families,
    reasons: BTreeSet<(String, String, String)>,
    source: String,
}

impl Collected<'_> {
    /// Adds a number, or the reason why it is unknown.
    fn value(&mut self, definition: &Definition, labels: &Labels, value: &Value) {
        match value {
            Value::Known(value) => self.whole(definition, labels, *value),
            Value::Unknown { unknown } => self.unknown(definition, unknown),
        }
    }

    fn whole(&mut self, definition: &Definition, labels: &Labels, value: u64) {
        self.families.add(definition, labels.clone(), Sample::Whole(value));
    }

    fn info(&mut self, definition: &Definition, labels: Labels) {
        self.families.add(definition, labels, Sample::Info);
    }

    fn unknown(&mut self, definition: &Definition, reason: &str) {
        if self.reasons.len() < MOST_REASONS {
            self.reasons.insert((self.source.clone(), definition.name(), cut(reason)));
        }
    }

    /// Adds the work of a queue or an engine.
    fn work(&mut self, definitions: [&Definition; 5], labels: &Labels, work: &Work) {
        let Work { descriptors, members, read_bytes, written_bytes, faults } = work;
        let values = [descriptors, members, read_bytes, written_bytes, faults];
        definitions.into_iter().zip(values).for_each(|(definition, value)| self.value(definition, labels, value));
    }
}

fn cut(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).take(MOST_VALUE).collect()
}

fn label(name: &'static str, value: &str) -> (Cow<'static, str>, String) {
    (Cow::Borrowed(name), value.to_owned())
}

/// Returns the device of a queue or an engine: `dsa0` of `wq0.1`. The queue and the engine of devices without a row of
/// their own have the same name as their device.
fn device_of(name: &str) -> String {
    if name == OTHER {
        return name.to_owned();
    }
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    format!("dsa{}", digits.split('.').next().unwrap_or_default())
}

/// Returns a label with a number, if it is known.
fn known(name: &'static str, value: &Value) -> Option<(Cow<'static, str>, String)> {
    Some((Cow::Borrowed(name), value.known()?.to_string()))
}

/// Returns labels with what Linux shows of an object of hardware: attributes that are words.
fn attributes(sys: &Path, source: &str, object: &str, attributes: &[(&'static str, &str)]) -> Labels {
    if source != crate::sysfs::HARDWARE {
        return Labels::new();
    }
    let folder = sys.join("bus/dsa/devices").join(object);
    let read = |(name, attribute): &(&'static str, &str)| {
        let text = std::fs::read_to_string(folder.join(attribute)).ok()?;
        let text = text.trim();
        // The driver shows -1 for a device without a node, and (null) for a queue without a name.
        (!matches!(text, "" | "-1" | "(null)")).then(|| (Cow::Borrowed(*name), cut(text)))
    };
    attributes.iter().filter_map(read).collect()
}

impl DeviceMemory {
    /// Adds the families of a snapshot. `sys` is `/sys` except in tests; `look_up` returns the owner of a process.
    pub(super) fn add(
        &mut self,
        families: &mut Families,
        snapshot: &Snapshot,
        per_process: bool,
        sys: &Path,
        look_up: &dyn Fn(u64) -> Owner,
    ) {
        let mut to = Collected { families, reasons: BTreeSet::new(), source: String::new() };
        for device in &snapshot.devices {
            add_device(&mut to, device, sys);
        }
        for queue in &snapshot.queues {
            add_queue(&mut to, queue, sys);
        }
        for engine in &snapshot.engines {
            add_engine(&mut to, engine);
        }
        self.add_clients(&mut to, snapshot, per_process, look_up);
        for (source, metric, reason) in std::mem::take(&mut to.reasons) {
            let labels = vec![label("source", &source), label("metric", &metric), label("reason", &reason)];
            to.info(&of::UNKNOWN, labels);
        }
    }

    /// Adds the totals of clients. What no known client has done is in a sample without an owner, so that the sum is
    /// that of the queue.
    fn add_clients(
        &mut self,
        to: &mut Collected<'_>,
        snapshot: &Snapshot,
        per_process: bool,
        look_up: &dyn Fn(u64) -> Owner,
    ) {
        let mut owners: BTreeMap<u64, Owner> = BTreeMap::new();
        let mut now: BTreeMap<Client, (ClientOwner, Vec<u64>)> = BTreeMap::new();
        let mut closed: BTreeMap<(&str, &str), Vec<u64>> = BTreeMap::new();
        // A queue of which a file cannot be read: its totals would be wrong, and its processes seem to have ended.
        let unread = snapshot.queues.iter().filter(|queue| queue.work.descriptors.known().is_none());
        let unread: BTreeSet<_> = unread.map(|queue| (queue.source.as_str(), queue.queue.as_str())).collect();
        let mut distances: BTreeSet<Labels> = BTreeSet::new();
        for row in &snapshot.processes {
            to.source.clone_from(&row.source);
            let place = (row.source.as_str(), row.queue.as_str());
            if per_process && let Some(pid) = row.pid.known() {
                let mut labels = place_labels(&row.source, &row.queue);
                labels.extend(process_labels(pid, &row.command));
                // Faults of all files of the queue are added up; a distance is the same for each of them.
                if let Value::Known(faults) = row.record_faults {
                    to.whole(&of::RECORD_FAULTS, &labels, faults);
                }
                if let Value::Known(distance) = row.numa_distance
                    && distances.insert(labels.clone())
                {
                    to.whole(&of::NUMA_DISTANCE, &labels, distance);
                }
            }
            let totals = match client_totals(row) {
                Ok(totals) => totals,
                Err(reason) => {
                    CLIENT_TOTALS.iter().for_each(|definition| to.unknown(definition, reason));
                    continue;
                }
            };
            let Some(pid) = row.pid.known() else {
                closed.insert(place, totals);
                continue;
            };
            let key = (row.source.clone(), row.queue.clone(), pid, row.pasid.known().unwrap_or_default());
            // An open file keeps its owner: to look it up takes two files of /proc.
            let of_client = self.clients.owner(&key).cloned().unwrap_or_else(|| {
                let owner = owners.entry(pid).or_insert_with(|| look_up(pid)).clone();
                let process = per_process.then(|| (pid, row.command.clone()));
                (row.source.clone(), row.queue.clone(), owner, process)
            });
            let sum = now.entry(key).or_insert_with(|| (of_client, vec![0; CLIENT_TOTALS.len()]));
            sum.1.iter_mut().zip(totals).for_each(|(sum, more)| *sum = sum.saturating_add(more));
        }
        let queues: BTreeSet<_> =
            snapshot.queues.iter().map(|queue| (queue.source.as_str(), queue.queue.as_str())).collect();
        let is_kept = |owner: &ClientOwner| queues.contains(&(owner.0.as_str(), owner.1.as_str()));
        // Processes of an unread queue stay as they were.
        now.extend(self.clients.kept(|client| unread.contains(&(client.0.as_str(), client.1.as_str()))));
        let sums = self.clients.update(now, is_kept);
        let mut unowned: BTreeMap<(&str, &str), Vec<u64>> = closed;
        for ((source, queue, ..), totals) in self.clients.ended() {
            let Some(closed) = unowned.get_mut(&(source.as_str(), queue.as_str())) else { continue };
            closed.iter_mut().zip(totals).for_each(|(closed, ended)| *closed = closed.saturating_sub(*ended));
        }
        let owned = sums.iter().map(|((source, queue, owner, process), totals)| {
            let mut labels = owner.labels();
            labels.extend(process.iter().flat_map(|(pid, command)| process_labels(*pid, command)));
            ((source.as_str(), queue.as_str()), labels, totals)
        });
        let unowned = unowned.iter().map(|(place, totals)| (*place, Labels::new(), totals));
        for ((source, queue), more, totals) in owned.chain(unowned) {
            if unread.contains(&(source, queue)) {
                continue;
            }
            let labels = [place_labels(source, queue), more].concat();
            for (definition, total) in CLIENT_TOTALS.iter().zip(totals) {
                to.whole(definition, &labels, *total);
            }
        }
    }
}

/// Adds the queues that the kubelet has given to containers, or why they are unknown.
pub(super) fn add_grants(families: &mut Families, grants: &Result<Grants, String>) {
    let source = crate::sysfs::HARDWARE;
    let mut unknown = |reason: &str| {
        let labels = [("source", source), ("metric", &of::WQ_GRANTED.name()), ("reason", &cut(reason))];
        families.add(&of::UNKNOWN, labels.map(|(name, value)| label(name, value)).into(), Sample::Info);
    };
    match grants {
        Ok(grants) => {
            grants.missing().iter().for_each(|reason| unknown(reason));
            for grant in &grants.listed {
                let mut labels = place_labels(source, &grant.queue);
                labels.extend([label("namespace", &grant.namespace), label("pod", &grant.pod)]);
                labels.extend([label("container_name", &grant.container), label("resource", &grant.resource)]);
                families.add(&of::WQ_GRANTED, labels, Sample::Info);
            }
        }
        Err(reason) => unknown(reason),
    }
}

fn place_labels(source: &str, queue: &str) -> Labels {
    vec![label("source", source), label("device", &device_of(queue)), label("wq", queue)]
}

fn process_labels(pid: u64, command: &str) -> Labels {
    vec![label("pid", &pid.to_string()), label("command", &cut(command))]
}

/// Returns the totals of a process, or why they are unknown.
fn client_totals(row: &ProcessRow) -> Result<Vec<u64>, &str> {
    let Work { descriptors, members, read_bytes, written_bytes, faults } = &row.work;
    let values = [descriptors, members, read_bytes, written_bytes, faults, &row.retries, &row.lost];
    let mut totals = Vec::with_capacity(values.len());
    for value in values {
        match value {
            Value::Known(total) => totals.push(*total),
            Value::Unknown { unknown } => return Err(unknown),
        }
    }
    Ok(totals)
}

fn add_device(to: &mut Collected<'_>, row: &DeviceRow, sys: &Path) {
    to.source.clone_from(&row.source);
    let labels = vec![label("source", &row.source), label("device", &row.device)];
    let more = attributes(sys, &row.source, &row.device, &[("version", "version"), ("numa_node", "numa_node")]);
    to.info(&of::DEVICE, [labels.clone(), more].concat());
    add_state(to, &of::DEVICE_ENABLED, &labels, &row.state);
    to.value(&of::DEVICE_CLIENTS, &labels, &row.clients);
    to.value(&of::DEVICE_ERRORS, &labels, &row.errors);
    to.value(&of::DEVICE_RETRIES, &labels, &row.retries);
    to.value(&of::DEVICE_DROPPED, &labels, &row.lost);
    let work =
        [&of::DEVICE_DESCRIPTORS, &of::DEVICE_MEMBERS, &of::DEVICE_READ, &of::DEVICE_WRITTEN, &of::DEVICE_FAULTS];
    to.work(work, &labels, &row.work);
    match &row.logged {
        Value::Unknown { unknown } => to.unknown(&of::DEVICE_LOGGED, unknown),
        Value::Known(_) => {
            for (code, number) in &row.logged_codes {
                to.whole(&of::DEVICE_LOGGED, &[labels.clone(), vec![label("code", &cut(code))]].concat(), *number);
            }
        }
    }
    for (definition, key, counts) in
        [(&of::OPERATIONS, "opcode", &row.operations), (&of::COMPLETIONS, "status", &row.statuses)]
    {
        if let Value::Unknown { unknown } = &row.work.descriptors {
            to.unknown(definition, unknown);
            continue;
        }
        if row.source == crate::sysfs::HARDWARE {
            to.unknown(definition, "a device has too few perf counters for each operation and status");
        }
        for (name, count) in counts {
            to.whole(definition, &[labels.clone(), vec![label(key, name)]].concat(), *count);
        }
    }
}

/// Adds 1 for an object that is enabled, and 0 for one in another state that is known.
fn add_state(to: &mut Collected<'_>, definition: &Definition, labels: &Labels, state: &str) {
    match state {
        "unknown" => to.unknown(definition, "the state cannot be read"),
        state => to.whole(definition, labels, u64::from(state == "enabled")),
    }
}

fn add_queue(to: &mut Collected<'_>, row: &QueueRow, sys: &Path) {
    to.source.clone_from(&row.source);
    let labels = place_labels(&row.source, &row.queue);
    let mut more = vec![label("mode", &row.mode)];
    more.extend(known("group", &row.group));
    more.extend(attributes(sys, &row.source, &row.queue, &[("type", "type"), ("name", "name")]));
    to.info(&of::WQ, [labels.clone(), more].concat());
    add_state(to, &of::WQ_ENABLED, &labels, &row.state);
    for (definition, value) in [
        (&of::WQ_SIZE, &row.size),
        (&of::WQ_PRIORITY, &row.priority),
        (&of::WQ_CLIENTS, &row.clients),
        (&of::WQ_OCCUPANCY, &row.occupancy),
        (&of::WQ_RETRIES, &row.retries),
        (&of::WQ_DROPPED, &row.lost),
    ] {
        to.value(definition, &labels, value);
    }
    if row.mode != "dedicated" {
        to.value(&of::WQ_THRESHOLD, &labels, &row.threshold);
    }
    let work = [&of::WQ_DESCRIPTORS, &of::WQ_MEMBERS, &of::WQ_READ, &of::WQ_WRITTEN, &of::WQ_FAULTS];
    to.work(work, &labels, &row.work);
}

fn add_engine(to: &mut Collected<'_>, row: &EngineRow) {
    to.source.clone_from(&row.source);
    let labels =
        vec![label("source", &row.source), label("device", &device_of(&row.engine)), label("engine", &row.engine)];
    let group = known("group", &row.group);
    to.info(&of::ENGINE, labels.iter().cloned().chain(group).collect());
    let work =
        [&of::ENGINE_DESCRIPTORS, &of::ENGINE_MEMBERS, &of::ENGINE_READ, &of::ENGINE_WRITTEN, &of::ENGINE_FAULTS];
    to.work(work, &labels, &row.work);
    match &row.busy_ns {
        Value::Known(ns) => {
            let busy = seconds(*ns);
            to.families.add(&of::ENGINE_BUSY, labels.clone(), Sample::Real(busy));
            if !row.times.is_empty() {
                to.families.add(&of::EXECUTION, labels, histogram(busy, &row.times));
            }
        }
        Value::Unknown { unknown } => {
            to.unknown(&of::ENGINE_BUSY, unknown);
            to.unknown(&of::EXECUTION, unknown);
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Returns the histogram of times by their number of bits in nanoseconds.
fn histogram(sum: f64, times: &[u64]) -> Sample {
    // Prometheus' ranges include the ones below. Hostile words may have a sum beyond the type.
    let mut total = 0_u64;
    let mut fitting = |number: u64| {
        let fits = number.min(u64::MAX - total);
        total += fits;
        fits
    };
    let last = times.len().saturating_sub(1);
    let limit = |bits: usize| {
        if bits == last { f64::INFINITY } else { (2_f64.powi(i32::try_from(bits).unwrap_or(64)) - 1.0) / 1e9 }
    };
    Sample::Histogram {
        sum,
        buckets: times.iter().enumerate().map(|(bits, number)| (limit(bits), fitting(*number))).collect(),
    }
}
