//! Plans: devices and their queues, and how each piece of work is done.

use super::WorkRequest;
use crate::machine::Machine;
use crate::places::BufferPlacement;
use crate::scenario::{Layout, Load, Scenario, Workload, queue_ids};
use crate::workload::{AccessPattern, Arrivals, ExecutedBy, QueueId, Stream, Wait};
use telpher_device::{Capabilities, Config, WqMode};

/// How one piece of work is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkPlan {
    /// True if a device does it, false if its own cores do.
    pub device: bool,
    /// Descriptors, or batches, in flight.
    pub depth: u32,
    /// Descriptors of a batch.
    pub batch: u32,
    /// How its threads wait.
    pub wait: Wait,
    /// Results go to the cache (Cache Control 1).
    pub cache: bool,
}

impl WorkPlan {
    /// Seconds for which the first operation of a batch waits for the last, if operations arrive at a rate.
    pub(super) fn gathering(&self, demand: &WorkRequest) -> f64 {
        let more = if self.device { self.batch.saturating_sub(1) } else { 0 };
        // Without a rate all operations of a batch are available at once.
        #[allow(clippy::cast_precision_loss, reason = "operations a second")]
        demand.rate.map_or(0.0, |rate| f64::from(more) / rate.max(1) as f64)
    }
}

/// How all pieces of work are done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// The machine's devices in the order in which they are used: the nearest first.
    pub devices: Vec<usize>,
    /// Number of devices in use.
    pub count: usize,
    /// Each piece of work has a group of its own.
    pub apart: bool,
    /// Engines of a group.
    pub engines: u32,
    /// Mode of the queues.
    pub mode: WqMode,
    /// Entries of each queue; `None` for an equal share of all entries.
    pub wq_size: Option<u32>,
    /// How each piece of work is done.
    pub ways: Vec<WorkPlan>,
}

/// Bytes of a simulated piece of work, and fewest and most operations of a thread that count. Source: chosen; a third
/// of a millisecond at a device's rate, and enough for a 99th percentile in steady state.
const BYTES: u64 = 10_000_000;
const FEWEST: u64 = 1000;
const MOST: u64 = 2048;

/// Fewest submissions of all threads together: with fewer batches there would be no 99th percentile. Source: chosen.
const SUBMISSIONS: u64 = 128;

/// Rounds of the operations in flight before results count. Source: chosen; after the first, the thread submits when
/// records are written.
const WARM_UP: u64 = 2;

/// Bytes of a long operation or batch. Source: chosen; a device needs 2 us for it, ten times the time of a retry.
const LONG: u64 = 65536;

/// Most operations in flight, or in a batch. Source: chosen; the entries of a device's queues.
pub(super) const MOST_IN_FLIGHT: u32 = 128;

impl Plan {
    /// All work is done by cores.
    pub(super) fn by_cores(demands: &[WorkRequest]) -> Plan {
        let way = WorkPlan { device: false, depth: 1, batch: 1, wait: Wait::Poll, cache: false };
        Plan {
            devices: Vec::new(),
            count: 0,
            apart: false,
            engines: 1,
            mode: WqMode::Dedicated,
            wq_size: None,
            ways: vec![way; demands.len()],
        }
    }

    /// One device, one engine, one operation at a time: the initial setting of all knobs.
    pub(super) fn simplest(machine: &Machine, demands: &[WorkRequest]) -> Plan {
        let devices = nearest_devices(machine, demands.first().map_or(0, |demand| demand.dst));
        let queues = demands.iter().map(|demand| demand.threads).sum::<u32>();
        let way = |demand: &WorkRequest| WorkPlan {
            device: true,
            depth: 1,
            batch: 1,
            wait: Wait::Poll,
            cache: demand.read_soon,
        };
        Plan {
            count: 1,
            // A device has eight dedicated queues; more threads share queues.
            mode: if queues > 8 { WqMode::Shared } else { WqMode::Dedicated },
            devices,
            apart: false,
            engines: 1,
            wq_size: None,
            ways: demands.iter().map(way).collect(),
        }
    }

    /// The initial plans: one device or all of them, one engine or four, one operation at a time or all available ones,
    /// single or as a batch, with polling or UMWAIT.
    pub(super) fn beginnings(machine: &Machine, demands: &[WorkRequest]) -> Vec<Plan> {
        let simplest = Plan::simplest(machine, demands);
        let mut plans = Vec::new();
        for (count, engines) in [(1, 1), (machine.devices.len(), 4)] {
            for wait in [Wait::Poll, Wait::Umwait] {
                for shape in [|_| (1, 1), |most| (most, 1), |most| (1, most)] {
                    let mut plan = Plan { count, engines, ..simplest.clone() };
                    for (way, demand) in plan.ways.iter_mut().zip(demands) {
                        way.wait = wait;
                        (way.depth, way.batch) = shape(1 << demand.in_flight.clamp(1, MOST_IN_FLIGHT).ilog2());
                    }
                    plans.push(plan);
                }
            }
        }
        plans
    }

    /// The scenario of the plan, if devices can be configured so.
    pub(super) fn scenario(
        &self,
        machine: &Machine,
        capabilities: Capabilities,
        demands: &[WorkRequest],
    ) -> Option<Scenario> {
        if self.overfills(&capabilities, demands) {
            return None;
        }
        let mut scenario = Scenario {
            machine: machine.clone(),
            capabilities,
            devices: self.configs(&capabilities, demands)?,
            loads: Vec::new(),
        };
        let all = queue_ids(&scenario.devices);
        let mut next = 0;
        for (number, (demand, way)) in demands.iter().zip(&self.ways).enumerate() {
            let group = if self.apart { number } else { 0 };
            let mine: Vec<QueueId> =
                all.iter().filter(|queue| self.group_of(queue.wq, demands) == group).copied().collect();
            let mut queues = Vec::new();
            if way.device {
                let threads = usize::try_from(demand.threads).ok()?;
                let first = if self.apart { 0 } else { next };
                if self.mode == WqMode::Dedicated {
                    queues = mine.get(first..first + threads)?.to_vec();
                    next += threads;
                } else {
                    queues = mine.into_iter().cycle().take(threads).collect();
                }
                queues.first()?;
            }
            scenario.loads.push(load(demand, *way, queues));
        }
        Some(scenario)
    }

    /// Queues of a group on each device.
    fn wqs(&self, threads: u32) -> u32 {
        match self.mode {
            WqMode::Dedicated => threads.div_ceil(u32::try_from(self.count.max(1)).unwrap_or(1)),
            WqMode::Shared => 1,
        }
    }

    /// Queues of each group: one group for all threads of the plan, or one for each piece of work.
    fn groups(&self, demands: &[WorkRequest]) -> Vec<u32> {
        let threads = |demand: &WorkRequest| demand.threads;
        if self.apart {
            demands.iter().map(|demand| self.wqs(demand.threads)).collect()
        } else {
            vec![self.wqs(demands.iter().map(threads).sum())]
        }
    }

    /// True if shared queues would be full of long operations. Threads would retry during these, which gains nothing,
    /// and each attempt is an event.
    fn overfills(&self, capabilities: &Capabilities, demands: &[WorkRequest]) -> bool {
        let queues: u32 = self.groups(demands).iter().sum();
        let size = self.wq_size.unwrap_or(u32::from(capabilities.wq_cap.total_entries()) / queues.max(1));
        let room = u64::from(size) * u64::from(queues) * self.count as u64;
        let pieces = || demands.iter().zip(&self.ways).filter(|(_, way)| way.device);
        let in_flight: u64 = pieces().map(|(demand, way)| u64::from(demand.threads) * u64::from(way.depth)).sum();
        self.mode == WqMode::Shared
            && in_flight > room
            && pieces().any(|(demand, way)| u64::from(demand.size) * u64::from(way.batch) > LONG)
    }

    fn group_of(&self, wq: usize, demands: &[WorkRequest]) -> usize {
        let mut left = wq;
        for (group, wqs) in self.groups(demands).into_iter().enumerate() {
            match left.checked_sub(wqs as usize) {
                None => return group,
                Some(rest) => left = rest,
            }
        }
        usize::MAX
    }

    /// Configurations of the machine's devices up to the last one in use; unused devices before it have no groups.
    fn configs(&self, capabilities: &Capabilities, demands: &[WorkRequest]) -> Option<Vec<Config>> {
        if self.count == 0 {
            return Some(Vec::new());
        }
        let (groups, used) = (self.groups(demands), self.devices.get(..self.count)?);
        let queues: u32 = groups.iter().sum();
        let (engines, entries) =
            (u32::from(capabilities.eng_cap.engines()), u32::from(capabilities.wq_cap.total_entries()));
        let fits = self.engines * u32::try_from(groups.len()).ok()? <= engines
            && queues <= u32::from(capabilities.wq_cap.queues())
            && self.wq_size.is_none_or(|size| size * queues <= entries);
        if !fits || queues == 0 {
            return None;
        }
        let size = self.wq_size.unwrap_or(entries / queues);
        // Groups differ, so each is laid out as a device of one group and then numbered.
        let config = |device: usize| {
            let (mut wq, mut engine) = (0, 0);
            let of = |(number, wqs): (usize, &u32)| {
                let layout =
                    Layout { wqs: *wqs, engines: self.engines, wq_size: Some(size), ..Layout::single(self.mode) };
                let mut group = layout.configs(capabilities).remove(0).groups.remove(0);
                group.dev = format!("group{device}.{number}");
                for queue in &mut group.grouped_workqueues {
                    queue.dev = format!("wq{device}.{wq}");
                    queue.name = Some(format!("telpher-{wq}"));
                    wq += 1;
                }
                for member in &mut group.grouped_engines {
                    member.dev = format!("engine{device}.{engine}");
                    engine += 1;
                }
                group
            };
            let groups = if used.contains(&device) { groups.iter().enumerate().map(of).collect() } else { Vec::new() };
            Config { dev: format!("dsa{device}"), ..Config::of_groups(groups) }
        };
        Some((0..=used.iter().copied().max()?).map(config).collect())
    }
}

/// A machine's devices, those nearest to a memory node first.
pub(crate) fn nearest_devices(machine: &Machine, node: usize) -> Vec<usize> {
    let socket = |node: usize| machine.nodes.get(node).map(|node| node.socket);
    let mut devices: Vec<usize> = (0..machine.devices.len()).collect();
    devices.sort_by_key(|device| {
        let at = machine.devices[*device];
        (at != node, socket(at) != socket(node))
    });
    devices
}

/// The load of a piece of work.
fn load(demand: &WorkRequest, way: WorkPlan, queues: Vec<QueueId>) -> Load {
    let by = queues.first().map_or(ExecutedBy::Cpu, |queue| ExecutedBy::Device(*queue));
    let threads = u64::from(demand.threads.max(1));
    let (depth, batch) = if way.device { (way.depth, way.batch) } else { (1, 1) };
    let operations = (BYTES / u64::from(demand.size.max(1)) / threads).clamp(FEWEST, MOST);
    let counted = operations.div_ceil(u64::from(batch)).max(SUBMISSIONS.div_ceil(threads));
    // Cores begin as they go on.
    let warm_up = if way.device { WARM_UP * u64::from(depth) } else { 0 };
    let stream = Stream {
        depth,
        batch,
        submissions: warm_up + counted,
        warm_up,
        arrivals: demand.rate.map_or(Arrivals::Closed, |rate| Arrivals::Poisson((rate / u64::from(batch)).max(1))),
        by,
        // A core begins the next operation early if it need not wait for the last.
        walk: if demand.in_flight > 1 { AccessPattern::Random } else { AccessPattern::Alone },
        src: BufferPlacement::on(demand.src),
        dst: BufferPlacement::on(demand.dst),
        cache_control: way.cache,
        wait: way.wait,
        ..Stream::of(demand.op, demand.size)
    };
    Load { name: demand.name.clone(), threads: demand.threads, what: Workload::Stream(stream), queues, expect: None }
}
