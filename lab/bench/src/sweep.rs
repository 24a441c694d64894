//! `telpher bench`: operation × size × mode, on the CPU path and on devices, modelled or real.

use super::BenchError;
use super::copy_route::{CopyRoute, DeviceRoute, Timings};
use super::devices::{self, Running, Shape};
use super::distance::{self, PING_PONG, RoundTrip};
use super::energy::{EnergyMeter, EnergyPerByte};
use super::measure::{Clock, Window, median, plausible};
use super::progress::{Budget, weight};
use super::results::{LOAD, Point, Route, Runner, SweepResult};
use super::simulated::Simulated;
use super::submitter::{BufferMemory, OperationSlots, buffer_bytes, refuses};
use super::waiting;
use crate::ffi;
use crate::options::Placement;
use crate::options::{Hint, SweepOptions};
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;
use telpher_abi::Opcode;
use telpher_portal::Portal;
use telpher_report::machine::Machine;
use telpher_report::units;

/// One route, with a submitter for each submitting thread.
struct RouteUnderTest {
    route: Route,
    copiers: Vec<CopyRoute>,
    engines: u32,
    operations: Option<telpher_abi::registers::OpCap>,
}

/// The device that the ways of waiting wait for: its name, and a queue.
type WaitedFor = (String, Arc<dyn Portal>);

/// The maximum number of engines behind a hardware queue: those of the largest device. Source: semantics-notes §13,
/// SPR's profile.
const MOST_ENGINES: u32 = 4;
/// Rounds over all routes at one size; the median is reported.
const ROUNDS: u32 = 3;
/// Maximum number of source bytes in flight, unless that is fewer than two transfers.
const MOST_IN_FLIGHT: usize = 16 << 20;
/// Minimum number of buffer slots, so that consecutive transfers do not touch the same bytes.
const FEWEST_PLACES: usize = 4;

/// The time for the energy of each way of waiting, as a part of the sweep's, which it prolongs. Source: chosen.
const WAITING: f64 = 0.25;

/// Warns of other load. Source: proc(5), `/proc/loadavg`.
fn busy(machine: &Machine) -> Option<String> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let (load, cores) = (text.split(' ').next()?.parse::<f64>().ok()?, machine.cores.len());
    (load > cores as f64).then(|| format!("{LOAD} {load} on {cores} cores: the numbers will be too low."))
}

/// Runs the sweep.
pub fn run(args: &SweepOptions, machine: Machine) -> Result<SweepResult, BenchError> {
    if let Some(placement) = args.placement {
        nodes_exist(placement, &machine.nodes)?;
    }
    let clock = Clock::calibrate();
    let mut remarks = Vec::new();
    let load = busy(&machine);
    let (mut contestants, waited_for) = contestants(args, &machine, &mut remarks)?;
    remarks.extend(load);
    if machine.cores.len() <= args.threads as usize {
        remarks.push(format!(
            "Only {} core(s) for {} submitting thread(s) and the engines: they take turns, and threaded numbers mean \
             little.",
            machine.cores.len(),
            args.threads
        ));
    }
    let (mut planned, mut refused) = (Vec::new(), Vec::new());
    for &op in &args.ops {
        for &size in &args.sizes {
            match refuses(op, size) {
                None => planned.push((op, size)),
                Some(why) => refused.push(format!("{} {why}; other sizes are left out.", op.short_name())),
            }
        }
    }
    refused.dedup();
    remarks.extend(refused);
    let most = contestants.iter().map(|c| c.route.depth * c.route.batch).max().unwrap_or(1) as usize;
    let places = |bytes: usize| most.max(FEWEST_PLACES).min((MOST_IN_FLIGHT / bytes).max(2));
    let length = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
    let needs = |&(_, size): &(Opcode, u64)| buffer_bytes(length(size)).saturating_mul(places(length(size)));
    let bytes = planned.iter().map(needs).max().unwrap_or(0).saturating_mul(args.threads as usize);
    let memory = BufferMemory::new(args.pages, args.placement, bytes)?;
    let mut budget = Budget::new(Duration::from_secs_f64(args.seconds), planned.iter().map(|p| weight(p.1)).sum());
    let mut points = Vec::new();
    let mut energy = EnergyMeter::open(Path::new("/sys"));
    remarks.extend(energy.remark());
    for (op, size) in planned {
        let time = budget.step(&format!("{} {}", op.short_name(), units::size(size)), weight(size));
        let bytes = length(size);
        let mut works = (0..args.threads)
            .map(|_| OperationSlots::new(op, bytes, places(bytes), &memory))
            .collect::<Result<Vec<_>, BenchError>>()?;
        let mut able = Vec::new();
        for contestant in &mut contestants {
            if contestant.operations.is_none_or(|ops| ops.contains(op)) {
                able.push(contestant);
            } else {
                let remark = format!("{} does not offer {}.", contestant.route.device, op.short_name());
                if !remarks.contains(&remark) {
                    remarks.push(remark);
                }
            }
        }
        points.extend(at_size(op, size, &mut able, &mut works, time, &machine, &clock, &mut energy)?);
    }
    budget.finish();
    let waiting = || {
        let device = waited_for.as_ref().map(|(name, portal)| (name.as_str(), portal));
        let time = Duration::from_secs_f64(args.seconds * WAITING);
        waiting::energy(device, time, &mut energy, &machine)
    };
    let waiting = args.waits.then(waiting).transpose()?;
    let simulated = Simulated::of(&args.ops, &args.sizes);
    Ok(SweepResult { simulated, waiting, ..SweepResult::new(machine, remarks, points) })
}

/// Refuses nodes that do not exist.
fn nodes_exist(placement: Placement, nodes: &[u32]) -> Result<(), BenchError> {
    match [placement.src, placement.dst].into_iter().find(|node| !nodes.contains(node)) {
        None => Ok(()),
        Some(missing) => {
            let list: Vec<String> = nodes.iter().map(u32::to_string).collect();
            let there = match list.as_slice() {
                [one] => format!("only node {one}"),
                many => format!("nodes {}", many.join(", ")),
            };
            Err(BenchError::NotHere(format!("NUMA node {missing} does not exist; this machine has {there}")))
        }
    }
}

/// Returns the depth and the batch size of each mode.
fn modes(args: &SweepOptions) -> Vec<(u32, u32)> {
    if args.depths.is_none() && args.batches.is_none() {
        return vec![(1, 1), (32, 1), (2, 32)];
    }
    let or_one = |counts: &Option<Vec<u32>>| counts.clone().unwrap_or_else(|| vec![1]);
    let (depths, batches) = (or_one(&args.depths), or_one(&args.batches));
    batches.iter().flat_map(|&batch| depths.iter().map(move |&depth| (depth, batch))).collect()
}

fn contestants(
    args: &SweepOptions,
    machine: &Machine,
    remarks: &mut Vec<String>,
) -> Result<(Vec<RouteUnderTest>, Option<WaitedFor>), BenchError> {
    let hint = match args.hint {
        Hint::Cache => telpher_mover::Hint::Cache,
        Hint::Memory => telpher_mover::Hint::Memory,
    };
    let threads = args.threads;
    let mut all = vec![RouteUnderTest {
        route: Route { device: "cpu".into(), runner: None, depth: 1, batch: 1, threads },
        copiers: (0..threads).map(|_| CopyRoute::Cpu(hint)).collect(),
        engines: 0,
        operations: None,
    }];
    let chosen = args.depths.is_some() || args.batches.is_some();
    let mut waited_for = None;
    for Running { name, runner, portals } in devices::beside_the_cpu(&args.device, Shape::of(args), machine, remarks)? {
        // An inline device has executed when the submission returns. Hardware comes last.
        if runner != Runner::Inline {
            waited_for = Some((name.clone(), Arc::clone(&portals[0])));
        }
        for (depth, batch) in modes(args) {
            // An inline submission completes at once, so a depth without batches has no effect.
            if runner == Runner::Inline && depth > 1 && batch == 1 && !chosen {
                continue;
            }
            let info = portals[0].info();
            if batch > info.max_batch {
                let why = if info.max_batch > 1 {
                    format!("{name} takes batches of at most {}", info.max_batch)
                } else {
                    format!("{name} takes no batches from this program")
                };
                if chosen {
                    return Err(BenchError::NotHere(why));
                }
                remarks.push(format!("{why}: batches of {batch} are left out."));
                continue;
            }
            let route = Route { device: name.clone(), runner: Some(runner), depth, batch, threads };
            let copiers = portals
                .iter()
                .map(|portal| Ok(CopyRoute::Device(Box::new(DeviceRoute::new(portal.clone(), &route, hint)?))))
                .collect::<Result<Vec<_>, BenchError>>()?;
            let engines = match runner {
                Runner::Inline => 0,
                Runner::Threaded => args.engines.unwrap_or(1),
                Runner::Hardware => MOST_ENGINES,
            };
            all.push(RouteUnderTest { operations: Some(info.operations), route, copiers, engines });
        }
    }
    Ok((all, waited_for))
}

/// Measures all routes at one size: each is checked first, then they take turns.
#[allow(clippy::too_many_arguments, reason = "gathers what one size needs")]
fn at_size(
    op: Opcode,
    size: u64,
    contestants: &mut [&mut RouteUnderTest],
    works: &mut [OperationSlots],
    time: Duration,
    machine: &Machine,
    clock: &Clock,
    energy: &mut EnergyMeter,
) -> Result<Vec<Point>, BenchError> {
    for contestant in &mut *contestants {
        let label = contestant.route.label();
        on_threads(&mut contestant.copiers, works, machine, |copier, work| {
            if let CopyRoute::Device(copier) = copier {
                copier.reset();
            }
            copier.verify(op, work, &label)
        })?;
    }
    let rounds = if size >= 16 << 20 { ROUNDS - 1 } else { ROUNDS };
    // Each round has two kinds of windows.
    let slice = time / (2 * rounds * u32::try_from(contestants.len().max(1)).unwrap_or(u32::MAX));
    let threads = works.len();
    let distance =
        (machine.cores.len() > 1).then(|| distance::measure(machine.core(0), machine.core(1), PING_PONG)).flatten();
    let mut windows = vec![Vec::<Window>::new(); contestants.len()];
    let mut timings: Vec<Option<Timings>> = vec![None; contestants.len()];
    let mut energies = vec![EnergyPerByte::default(); contestants.len()];
    for _ in 0..rounds {
        for (i, contestant) in contestants.iter_mut().enumerate() {
            let window = energies[i].around(energy, size as f64, || {
                let copy = |copier: &mut CopyRoute, work: &mut OperationSlots| copier.throughput(op, work, slice);
                on_threads(&mut contestant.copiers, works, machine, copy).map(|seen| together(&seen))
            })?;
            plausible(&window, size, contestant.route.threads, contestant.route.threads + contestant.engines)
                .map_err(|source| implausible(op, size, &contestant.route, source))?;
            let ns = window.ns_per_op() * threads as f64;
            windows[i].push(window);
            let seen = on_threads(&mut contestant.copiers, works, machine, |copier, work| {
                copier.latency(op, work, slice, clock, ns)
            })?;
            for timing in seen {
                match &mut timings[i] {
                    Some(all) if all.total.group == timing.total.group => all.merge(&timing),
                    Some(_) => {}
                    none => *none = Some(timing),
                }
            }
        }
    }
    let mut points = Vec::new();
    for (((contestant, windows), timings), energy) in contestants.iter().zip(windows).zip(timings).zip(energies) {
        for work in works.iter() {
            work.check(&contestant.route.label())?;
        }
        let timings = timings.expect("every route was timed");
        let point = point(op, size, contestant, &works[0], &windows, &timings, clock, distance);
        points.push(Point { joules_per_gb: energy.joules_per_gb(), ..point });
    }
    Ok(points)
}

fn implausible(op: Opcode, size: u64, route: &Route, source: super::measure::Implausible) -> BenchError {
    let what = format!("{} of {} ({})", op.short_name(), units::size(size), route.label());
    BenchError::Implausible { what, source }
}

/// Adds up the windows of threads that ran at the same time.
fn together(seen: &[Window]) -> Window {
    Window {
        ops: seen.iter().map(|w| w.ops).sum(),
        wall: seen.iter().map(|w| w.wall).max().unwrap_or_default(),
        cpu: seen.iter().map(|w| w.cpu).sum(),
    }
}

#[allow(clippy::too_many_arguments, reason = "gathers what one point consists of")]
fn point(
    op: Opcode,
    size: u64,
    contestant: &RouteUnderTest,
    work: &OperationSlots,
    windows: &[Window],
    timings: &Timings,
    clock: &Clock,
    distance: Option<RoundTrip>,
) -> Point {
    let middle = |f: fn(&Window) -> f64| median(&mut windows.iter().map(f).collect::<Vec<_>>());
    let ns = middle(Window::ns_per_op);
    let route = &contestant.route;
    let several = route.threads > 1 || route.runner == Some(Runner::Threaded);
    Point {
        op: op.short_name(),
        size,
        route: route.clone(),
        in_flight: contestant.copiers[0].in_flight(work),
        bytes_per_s: size as f64 / ns * 1e9,
        ops_per_s: 1e9 / ns,
        p50_ns: timings.total.percentile(clock, 0.5),
        p99_ns: timings.total.percentile(clock, 0.99),
        p999_ns: timings.total.percentile(clock, 0.999),
        timed_together: timings.total.group,
        samples: timings.total.count(),
        cpu_ns_per_op: middle(Window::cpu_ns_per_op),
        joules_per_gb: None,
        breakdown: timings.breakdown(clock),
        distance: distance.filter(|_| several),
    }
}

/// Runs `body` on each copier with its work at the same time, each on its own thread and core.
fn on_threads<T: Send>(
    copiers: &mut [CopyRoute],
    works: &mut [OperationSlots],
    machine: &Machine,
    body: impl Fn(&mut CopyRoute, &mut OperationSlots) -> Result<T, BenchError> + Sync,
) -> Result<Vec<T>, BenchError> {
    let start = Barrier::new(copiers.len());
    thread::scope(|scope| {
        let (body, start) = (&body, &start);
        let running: Vec<_> = copiers
            .iter_mut()
            .zip(works)
            .enumerate()
            .map(|(i, (copier, work))| {
                scope.spawn(move || {
                    let _ = telpher_os::run_on(&[machine.core(i)]);
                    ffi::wake_exactly();
                    start.wait();
                    body(copier, work)
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().expect("copiers report their errors")).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_about_a_missing_node_lists_the_existing_nodes() {
        let message = nodes_exist(Placement { src: 0, dst: 1 }, &[0]).unwrap_err().to_string();
        assert_eq!(message, "NUMA node 1 does not exist; this machine has only node 0");
        let message = nodes_exist(Placement { src: 7, dst: 1 }, &[0, 1]).unwrap_err().to_string();
        assert_eq!(message, "NUMA node 7 does not exist; this machine has nodes 0, 1");
        assert!(nodes_exist(Placement { src: 1, dst: 0 }, &[0, 1]).is_ok());
    }

    #[test]
    fn threads_of_one_window_add_up() {
        let window = |ops, ms| Window { ops, wall: Duration::from_millis(ms), cpu: Duration::from_millis(ms) };
        let all = together(&[window(10, 5), window(20, 6)]);
        assert_eq!((all.ops, all.wall, all.cpu), (30, Duration::from_millis(6), Duration::from_millis(11)));
    }
}
