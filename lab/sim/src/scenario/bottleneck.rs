//! The bottleneck of a load, and what would relieve it.
//!
//! The bottleneck is the resource of the load that is busy nearly all the time. Pipes come first: an engine whose bytes
//! wait for a full pipe is busy too. If nothing is busy, the load waits: each operation has its latency, and too few
//! are in flight.

use super::legal::{configured_queue, number};
use super::{LoadOutcome, Outcome, Scenario};
use crate::machine::Machine;
use crate::picos::Picos;
use crate::workload::{Arrivals, ExecutedBy, NamedValue, QueueId, Stream, Wait};
use crate::world::{Resource, TimeBreakdown};
use std::collections::BTreeSet;
use std::fmt;

/// The utilization from which on a resource counts as busy. Source: chosen; the begin and the end of a simulation, and
/// the pause between two descriptors, reduce it.
const BUSY: f64 = 0.85;

/// How much busier than a pipe an engine or a core must be to count as the bottleneck. Source: chosen; a resource that
/// waits for a full pipe is about as busy as the pipe.
const CLEARLY: f64 = 0.03;

/// The least share of its time that a thread sleeps if the sleep is what its work waits for. Source: chosen.
const ASLEEP: f64 = 0.5;

/// The utilization at which a pipe is full, so that cores wait for it. Source: chosen; random arrivals do not fill it
/// evenly.
const FULL: f64 = 0.95;

/// The least share of its time that a load spends at its devices if they are the bottleneck. Source: chosen.
const THERE: f64 = 0.5;

/// The kind of a bottleneck.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Limit {
    /// The cores that execute the operations.
    Cpu,
    /// The submitting cores: preparation and submission.
    Submitting,
    /// The submitting cores, in ENQCMD.
    Enqcmd,
    /// The queue's entries.
    Entries,
    /// The engines' front ends.
    FrontEnds,
    /// The engines' data paths.
    DataPaths,
    /// A device's read rate, write rate or read-to-write rate.
    Device,
    /// A memory node.
    Memory,
    /// A link between sockets.
    Link,
    /// Nothing is busy: latency, and the number of operations in flight.
    Latency,
    /// Nothing: operations arrive no faster.
    Arrivals,
}

impl NamedValue for Limit {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("cpu", Limit::Cpu),
        ("submitting", Limit::Submitting),
        ("enqcmd", Limit::Enqcmd),
        ("entries", Limit::Entries),
        ("front-ends", Limit::FrontEnds),
        ("data-paths", Limit::DataPaths),
        ("device", Limit::Device),
        ("memory", Limit::Memory),
        ("link", Limit::Link),
        ("latency", Limit::Latency),
        ("arrivals", Limit::Arrivals),
    ];
}

/// The bottleneck of a load.
#[derive(Clone, PartialEq, Debug)]
pub struct Bottleneck {
    /// Its kind.
    pub limit: Limit,
    /// The resource: `throughput of dsa0`.
    pub what: String,
    /// Its utilization, 0 to 1.
    pub share: f64,
    /// What would relieve it.
    pub help: String,
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit {
            Limit::Latency | Limit::Entries | Limit::Arrivals => f.write_str(&self.what)?,
            _ => write!(f, "{}, busy for {:.0} % of the time", self.what, self.share * 100.0)?,
        }
        write!(f, "; {}", self.help)
    }
}

/// An engine, as device and number.
type Engine = (usize, usize);

/// The groups of some queues, each as its engines.
fn groups(scenario: &Scenario, queues: &[QueueId]) -> BTreeSet<Vec<Engine>> {
    let mut behind = BTreeSet::new();
    for queue in queues {
        let device = usize::from(queue.device);
        for group in scenario.devices.get(device).into_iter().flat_map(|config| &config.groups) {
            if group.grouped_workqueues.iter().any(|wq| number(&wq.dev) == Some(queue.wq)) {
                let engines = group.grouped_engines.iter();
                behind.insert(engines.filter_map(|engine| Some((device, number(&engine.dev)?))).collect());
            }
        }
    }
    behind
}

/// The bottleneck of a load of a scenario.
pub(super) fn of(scenario: &Scenario, outcome: &Outcome, number: usize, stream: &Stream) -> Bottleneck {
    let mut queues = scenario.queues_of(&scenario.loads[number]);
    let idle =
        |(device, engine): &Engine| outcome.share(Resource::FrontEnd { device: *device, engine: *engine }) == 0.0;
    if matches!(stream.by, ExecutedBy::Mover(_)) && groups(scenario, &queues).iter().flatten().all(idle) {
        // All operations stayed on the core.
        queues.clear();
    }
    let mut busiest = Bottleneck { limit: Limit::Latency, what: String::new(), share: 0.0, help: String::new() };
    let load = &outcome.loads[number];
    // Loads end at different times; shares are relative to this load's time.
    let longer = outcome.took.as_secs_f64() / load.elapsed.as_secs_f64().max(1e-15);
    let there = queues.is_empty() || scenario.loads.len() == 1 || spent_at_devices(&load.timeline) >= THERE;
    for mut found in candidates(scenario, outcome, number, stream, &queues) {
        let share = busiest.share;
        let before = match found.limit {
            // A core that executes operations is busy while its bytes wait, however narrow the pipe. It is the only
            // candidate unless it is idle: some threads may be done before others.
            Limit::Cpu => (stream.arrivals == Arrivals::Closed || found.share >= BUSY) && share < FULL,
            // A submitter that never waits for a record is its own bottleneck, however busy other resources are.
            Limit::Submitting | Limit::Enqcmd if never_waits(load, number, scenario) && found.share >= BUSY => true,
            // A submitter that a full queue refuses is busy with retries, whatever fills the queue.
            Limit::Submitting | Limit::Enqcmd if is_refused_often(load) => share < BUSY && found.share > share,
            Limit::Submitting | Limit::Enqcmd => found.share > share + CLEARLY,
            _ => {
                found.share = if there { (found.share * longer).min(1.0) } else { 0.0 };
                found.share > share + CLEARLY
            }
        };
        if before {
            busiest = found;
        }
    }
    if busiest.share >= BUSY || busiest.limit == Limit::Cpu {
        return busiest;
    }
    waiting(scenario, number, load, stream, &queues)
}

/// The share of its time that a load's work waits for devices. If it is small, the load is not affected by a device
/// that others keep busy.
fn spent_at_devices(timeline: &TimeBreakdown) -> f64 {
    let refused = if timeline.retries > 0 { timeline.submit } else { Picos::ZERO };
    let waits = timeline.queue + timeline.process + refused;
    waits.as_secs_f64() / timeline.latency().since(timeline.backlog).as_secs_f64().max(1e-15)
}

/// True if the threads of a load hardly ever wait for records.
fn never_waits(load: &LoadOutcome, number: usize, scenario: &Scenario) -> bool {
    let time = load.elapsed.as_secs_f64() * f64::from(scenario.loads[number].threads.max(1));
    !is_refused_often(load) && load.timeline.waiting.as_secs_f64() < CLEARLY * time
}

/// True if its queues are often full.
fn is_refused_often(load: &LoadOutcome) -> bool {
    load.timeline.retries > load.timeline.completed / 2
}

/// All resources that the load uses, pipes first.
fn candidates(
    scenario: &Scenario,
    outcome: &Outcome,
    number: usize,
    stream: &Stream,
    queues: &[QueueId],
) -> Vec<Bottleneck> {
    let machine = &scenario.machine;
    let pipe = |limit: Limit, what: Resource, help: &str| Bottleneck {
        limit,
        what: what.to_string(),
        share: outcome.share(what),
        help: help.to_owned(),
    };
    let nearer = "faster memory, or fewer users of it, would help";
    let mut found = vec![
        pipe(Limit::Memory, Resource::Node(stream.src.node), nearer),
        pipe(Limit::Memory, Resource::Node(stream.dst.node), nearer),
    ];
    for socket in 0..=machine.nodes.iter().map(|node| node.socket).max().unwrap_or(0) {
        if crosses(machine, stream, queues, socket) {
            let help = "buffers on the device's socket, or a device on theirs, would help";
            found.push(pipe(Limit::Link, Resource::Link(socket), help));
        }
    }
    let timeline = &outcome.loads[number].timeline;
    let cores = outcome.share(Resource::Cores(number));
    if queues.is_empty() {
        let help = "more threads would help, or a device".to_owned();
        found.push(Bottleneck { limit: Limit::Cpu, what: "the core that does the work".into(), share: cores, help });
        return found;
    }
    let devices: BTreeSet<usize> = queues.iter().map(|queue| usize::from(queue.device)).collect();
    for of in [Resource::DeviceThrough, Resource::DeviceReads, Resource::DeviceWrites] {
        found.push(device(machine, outcome, &devices, of));
    }
    found.extend(engines_behind(scenario, outcome, queues));
    found.push(submitting(timeline, queues, stream, cores));
    found
}

/// The busiest device in one respect: its threads finish last.
fn device(machine: &Machine, outcome: &Outcome, devices: &BTreeSet<usize>, of: fn(usize) -> Resource) -> Bottleneck {
    let shares = || devices.iter().map(|device| outcome.share(of(*device)));
    let (most, mean) = (shares().fold(0.0, f64::max), mean(shares()));
    let even = mean + CLEARLY >= most;
    let what = match devices.iter().find(|device| outcome.share(of(**device)) >= most) {
        Some(first) if devices.len() == 1 || !even => of(*first).to_string(),
        _ => format!("each device's {}", of(0).to_string().trim_end_matches(" of dsa0")),
    };
    let help = if !even {
        "the other devices have less work: an even distribution would help"
    } else if devices.len() < machine.devices.len() {
        "the device is at its maximum; another device would help"
    } else {
        "the device is at its maximum, and the machine has no other"
    };
    Bottleneck { limit: Limit::Device, what, share: most, help: help.into() }
}

#[allow(clippy::cast_precision_loss, reason = "a handful")]
fn mean(shares: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = shares.len().max(1);
    shares.sum::<f64>() / count as f64
}

/// The engines of the busiest group together: where one of them is idle, another is no limit.
fn engines_behind(scenario: &Scenario, outcome: &Outcome, queues: &[QueueId]) -> Vec<Bottleneck> {
    let behind = groups(scenario, queues);
    let all = usize::from(scenario.capabilities.eng_cap.engines());
    let of = |limit: Limit, part: &str, resource: fn(usize, usize) -> Resource, other: &str| {
        let shares =
            |group: &[Engine]| mean(group.iter().map(|(device, engine)| outcome.share(resource(*device, *engine))));
        let busiest = behind.iter().max_by(|one, other| shares(one).total_cmp(&shares(other)))?;
        // Groups that are equally busy are reported together.
        let alike: usize = behind.iter().filter(|group| shares(group) + CLEARLY >= shares(busiest)).map(Vec::len).sum();
        let what = match busiest.first() {
            Some((device, engine)) if alike == 1 => format!("{part} of engine{device}.{engine}"),
            _ => format!("{part}s of {alike} engines behind the queues"),
        };
        let more = if busiest.len() < all { "more engines in the group" } else { other };
        let help = if limit == Limit::FrontEnds && busiest.len() < all {
            format!("{more}, or larger transfers, would help")
        } else {
            format!("{more} would help")
        };
        Some(Bottleneck { limit, what, share: shares(busiest), help })
    };
    let front = |device, engine| Resource::FrontEnd { device, engine };
    let data = |device, engine| Resource::DataPath { device, engine };
    let front = of(Limit::FrontEnds, "front end", front, "larger transfers");
    let data = of(Limit::DataPaths, "data path", data, "nearer memory");
    front.into_iter().chain(data).collect()
}

fn submitting(timeline: &TimeBreakdown, queues: &[QueueId], stream: &Stream, share: f64) -> Bottleneck {
    let enqcmd = queues.iter().any(|queue| queue.shared) && timeline.submitting > timeline.prepare;
    let batches = if stream.batch > 1 { "larger batches" } else { "batches" };
    let (limit, what, help) = if enqcmd {
        let help = format!("a dedicated queue, {batches} or more threads would help");
        (Limit::Enqcmd, "the submitting core, in ENQCMD", help)
    } else if timeline.prepare > timeline.submitting {
        let help = "more threads, or descriptors that are reused, would help".to_owned();
        (Limit::Submitting, "the submitting core, preparing descriptors", help)
    } else {
        (Limit::Submitting, "the submitting core", format!("{batches} or more threads would help"))
    };
    Bottleneck { limit, what: what.into(), share, help }
}

/// True if bytes of the load leave this socket.
fn crosses(machine: &Machine, stream: &Stream, queues: &[QueueId], socket: usize) -> bool {
    let at = |node: usize| machine.nodes.get(node).map(|node| node.socket);
    let device = queues.first().and_then(|queue| machine.devices.get(usize::from(queue.device)));
    let own = at(*device.unwrap_or(&stream.core));
    let here = Some(socket);
    at(stream.src.node) != own && at(stream.src.node) == here || at(stream.dst.node) != own && own == here
}

/// Nothing is busy: what the load waits for.
fn waiting(scenario: &Scenario, number: usize, load: &LoadOutcome, stream: &Stream, queues: &[QueueId]) -> Bottleneck {
    let (timeline, threads) = (&load.timeline, scenario.loads[number].threads);
    if stream.arrivals != Arrivals::Closed {
        return Bottleneck {
            limit: Limit::Arrivals,
            what: "only the rate at which operations arrive".into(),
            share: 0.0,
            help: "the device or core could do more".into(),
        };
    }
    let size = queues.first().and_then(|queue| {
        let config = scenario.devices.get(usize::from(queue.device))?;
        Some(configured_queue(config, queue.wq)?.size)
    });
    // A descriptor that an engine has taken is no longer in a shared queue.
    let shared = queues.iter().any(|queue| queue.shared);
    let full = if shared { is_refused_often(load) } else { matches!(stream.by, ExecutedBy::Device(_)) };
    if let Some(size) = size.filter(|size| full && *size < stream.depth) {
        let full = if timeline.retries > 0 { ", which refuses further submissions" } else { "" };
        return Bottleneck {
            limit: Limit::Entries,
            what: format!("the queue's {size} entries{full}, for {} in flight", stream.depth),
            share: 1.0,
            help: "a larger queue would help".into(),
        };
    }
    let parts = [
        ("preparing", timeline.prepare),
        ("submitting", timeline.submit),
        ("the queue", timeline.queue),
        ("translating", timeline.translate),
        ("processing", timeline.process),
        ("completing", timeline.complete),
        ("noticing", timeline.notice),
    ];
    let (part, most) = parts.into_iter().max_by_key(|(_, time)| *time).unwrap_or(parts[0]);
    let share = most.as_secs_f64() / timeline.latency().as_secs_f64().max(1e-15);
    let flight = match (stream.depth, stream.batch) {
        (1, 1) => "one at a time".to_owned(),
        (depth, 1) => format!("{depth} in flight"),
        (1, batch) => format!("one batch of {batch} at a time"),
        (depth, batch) => format!("{depth} batches of {batch} in flight"),
    };
    // While the thread sleeps, records are written and nothing is submitted: more in flight would only be written, too.
    let time = load.elapsed.as_secs_f64() * f64::from(threads.max(1));
    let asleep = load.cycles.idle.as_secs_f64() / time.max(1e-15);
    if stream.wait == Wait::Sleep && stream.depth > 1 && asleep >= ASLEEP {
        return Bottleneck {
            limit: Limit::Latency,
            what: format!("the thread's sleep, {:.0} % of its time, with {flight}", asleep * 100.0),
            share: asleep,
            help: "waiting by polling or UMWAIT would help".into(),
        };
    }
    let help = match part {
        "preparing" => "a library that prepares descriptors faster, or more threads, would help",
        _ if size == Some(stream.depth) => "more in flight, in a larger queue, would help",
        _ => "more in flight would help",
    };
    Bottleneck {
        limit: Limit::Latency,
        what: format!("latency, with {flight}: {:.0} % of it is {part}", share * 100.0),
        share,
        help: help.into(),
    }
}
