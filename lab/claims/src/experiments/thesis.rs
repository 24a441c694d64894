//! Fürst, §3: one device per node of a machine with HBM, shared queues, Intel's DML; copies one at a time per thread.
//!
//! Nodes 0 to 7 have DDR5 and a device each, 8 to 15 are their HBM; four of each on a socket. Several devices share one
//! copy in equal parts, and the slowest counts (§3.1).

use super::asplos_device::beside_faults;
use super::measure::{gigabytes, listed, never_falls, three};
use super::{Experiment, Found};
use crate::lab::Lab;
use crate::setups::{alone, on, threads, through};
use telpher_abi::Opcode;
use telpher_device::WqMode;
use telpher_sim::{AccessPattern, BufferPlacement, ExecutedBy, Library, Scenario, ScenarioError, Stream};

type Result<T = Found> = std::result::Result<T, ScenarioError>;

pub(super) const ALL: &[(&str, Experiment)] = &[
    ("T-010", single_submissions),
    ("T-011", batches_stay_ahead),
    ("T-012", small_batches),
    ("T-013", one_device),
    ("T-020", threads_with_large_copies),
    ("T-021", threads_with_copies_of_1_mib),
    ("T-022", larger_copies),
    ("T-031", peak),
    ("T-032", one_device_to_every_node),
    ("T-033", nearest_and_farthest),
    ("T-035", eight_devices_across_sockets),
    ("T-036", devices_of_the_other_socket),
    ("T-037", more_devices),
    ("T-038", push_and_pull),
    ("T-040", software_path),
    ("T-041", cores_between_sockets),
    ("T-042", core_or_device),
    ("T-043", below_1_mib),
    ("T-075", other_tasks_wait),
];

const COPY: Opcode = Opcode::MemoryMove;
const GIB: f64 = 1_073_741_824.0;
const LARGE: u32 = 1 << 30;
/// Destinations of §3.2.3: next to the source, the farthest of its socket, two of the other socket.
pub(crate) const DESTINATIONS: [usize; 4] = [8, 11, 12, 15];

fn machine(devices: usize) -> Scenario {
    let mut scenario = on("xeon-max-9468", devices, WqMode::Shared, 1);
    for group in scenario.devices.iter_mut().flat_map(|device| &mut device.groups) {
        for queue in &mut group.grouped_workqueues {
            queue.max_transfer_size = 1 << 30;
        }
    }
    scenario
}

/// One thread's copies from node 0 to a node, one at a time.
fn copies(size: u32, batch: u32, dst: usize) -> Stream {
    let submissions = if size >= LARGE { 3 } else { 200 };
    let (src, dst) = (BufferPlacement::on(0), BufferPlacement::on(dst));
    Stream { by: ExecutedBy::SHARED, library: Library::Dml, batch, submissions, src, dst, ..Stream::of(COPY, size) }
}

fn gibibytes(lab: &Lab, scenario: &Scenario) -> Result<f64> {
    Ok(gigabytes(lab, scenario)? * 1e9 / GIB)
}

/// GiB/s of one thread with one device, within node 0.
pub(crate) fn submitted(lab: &Lab, size: u32, batch: u32) -> Result<f64> {
    gibibytes(lab, &alone(machine(1), copies(size, batch, 0)))
}

fn single_submissions(lab: &Lab) -> Result {
    // The measured sizes: none between 8 KiB and 1 MiB.
    let first = |share: f64| {
        for size in [1 << 10, 2 << 10, 4 << 10, 8 << 10, 1 << 20, 4 << 20, 16 << 20] {
            if submitted(lab, size, 1)? >= share * submitted(lab, size, 50)? {
                return Ok(size.into());
            }
        }
        Ok(f64::INFINITY)
    };
    Ok(Found::Numbers(vec![("half".into(), first(0.5)?), ("three quarters".into(), first(0.75)?)]))
}

fn batches_stay_ahead(lab: &Lab) -> Result {
    let size = 4 << 20;
    Ok(Found::Number(submitted(lab, size, 50)? - submitted(lab, size, 1)?))
}

fn small_batches(lab: &Lab) -> Result {
    let mut pairs = Vec::new();
    for size in [1024, 2048, 4096, 8192] {
        pairs.push([submitted(lab, size, 50)?, submitted(lab, size, 1)?]);
    }
    let shown: Vec<String> = pairs.iter().map(|pair| listed(pair)).collect();
    Ok(Found::shape(
        pairs.iter().all(|[batch, single]| batch > single),
        format!("batches of 50 and single ones of 1, 2, 4, 8 KiB, GiB/s: {}", shown.join("; ")),
    ))
}

fn one_device(lab: &Lab) -> Result {
    Ok(Found::Number(submitted(lab, LARGE, 1)?))
}

pub(crate) fn by_threads(lab: &Lab, size: u32) -> Result<Vec<f64>> {
    [1, 2, 12].into_iter().map(|count| gibibytes(lab, &threads(machine(1), count, copies(size, 1, 0)))).collect()
}

fn threads_with_large_copies(lab: &Lab) -> Result {
    let rates = by_threads(lab, LARGE)?;
    let ratio = |index: usize, name: &str| (name.to_owned(), rates[index] / rates[0]);
    Ok(Found::Numbers(vec![ratio(1, "2 threads"), ratio(2, "12 threads")]))
}

fn threads_with_copies_of_1_mib(lab: &Lab) -> Result {
    let rates = by_threads(lab, 1 << 20)?;
    Ok(Found::shape(
        rates[1] > rates[0] && never_falls(&rates, 0.0),
        format!("1, 2, 12 threads: {} GiB/s", listed(&rates)),
    ))
}

fn larger_copies(lab: &Lab) -> Result {
    let (large, small) = (submitted(lab, LARGE, 1)?, submitted(lab, 1 << 20, 1)?);
    Ok(Found::shape(large > small, format!("1 GiB {} GiB/s, 1 MiB {}", three(large), three(small))))
}

/// GiB/s of one copy of 1 GiB from node 0 shared by several devices.
fn shared_out(lab: &Lab, devices: &[u16], dst: usize) -> Result<f64> {
    let mut scenario = machine(8);
    let parts = u32::try_from(devices.len()).unwrap_or(1);
    for device in devices {
        let part = Stream { core: usize::from(*device), submissions: 3, ..copies(LARGE / parts, 1, dst) };
        scenario = alone(scenario, through(*device, 0, WqMode::Shared, part));
    }
    let outcome = lab.run(&scenario)?;
    Ok(3.0 * f64::from(LARGE) / GIB / outcome.took.as_secs_f64())
}

/// The devices: the source's; also the destination's ("push and pull"); those of the socket; all.
fn devices(count: usize, dst: usize) -> Vec<u16> {
    let beside = u16::try_from(dst - 8).unwrap_or(0);
    match count {
        1 => vec![0],
        // The nearest neighbour if source and destination are on the same node.
        2 => vec![0, beside.max(1)],
        4 => (0..4).collect(),
        _ => (0..8).collect(),
    }
}

pub(crate) fn with_devices(lab: &Lab, count: usize) -> Result<Vec<f64>> {
    DESTINATIONS.into_iter().map(|dst| shared_out(lab, &devices(count, dst), dst)).collect()
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn peak(lab: &Lab) -> Result {
    let rates = [with_devices(lab, 4)?, with_devices(lab, 8)?].concat();
    Ok(Found::Number(rates.into_iter().fold(0.0, f64::max)))
}

fn one_device_to_every_node(lab: &Lab) -> Result {
    let rates = with_devices(lab, 1)?;
    Ok(Found::Numbers(DESTINATIONS.iter().zip(rates).map(|(dst, rate)| (format!("node {dst}"), rate)).collect()))
}

fn nearest_and_farthest(lab: &Lab) -> Result {
    let (mut holds, mut shown) = (true, Vec::new());
    for count in [2, 4, 8] {
        let of = |dst| shared_out(lab, &devices(count, dst), dst);
        let rates = [of(8)?, of(11)?];
        holds &= rates[0] < rates[1] * 0.999;
        shown.push(format!("{count} devices {}", listed(&rates)));
    }
    Ok(Found::shape(holds, format!("to nodes 8 and 11, GiB/s: {}", shown.join("; "))))
}

fn eight_devices_across_sockets(lab: &Lab) -> Result {
    Ok(Found::Number(shared_out(lab, &devices(8, 15), 15)? / 65.56))
}

fn devices_of_the_other_socket(lab: &Lab) -> Result {
    let (mut holds, mut shown) = (true, Vec::new());
    for dst in [8, 11] {
        let rates = [shared_out(lab, &devices(4, dst), dst)?, shared_out(lab, &devices(8, dst), dst)?];
        holds &= rates[1] < rates[0] * 0.999;
        shown.push(format!("node {dst} {}", listed(&rates)));
    }
    Ok(Found::shape(holds, format!("4 and 8 devices, GiB/s: {}", shown.join("; "))))
}

fn more_devices(lab: &Lab) -> Result {
    let mut means = Vec::new();
    for count in [1, 2, 4, 8] {
        means.push(mean(&with_devices(lab, count)?));
    }
    let near_two = (1.8..=2.2).contains(&(means[1] / means[0]));
    Ok(Found::shape(
        near_two && means[2] / means[1] < 1.25 && means[2] >= means[1] && means[3] <= means[2],
        format!("1, 2, 4, 8 devices: {} GiB/s", listed(&means)),
    ))
}

fn push_and_pull(lab: &Lab) -> Result {
    let all = [with_devices(lab, 4)?, with_devices(lab, 8)?].concat();
    let peak = all.into_iter().fold(0.0, f64::max);
    Ok(Found::Number(mean(&with_devices(lab, 2)?) / peak))
}

/// Consecutive copies of 1 MiB by a core of a node, through node 0's memory.
fn by_core(core: usize, dst: usize) -> Stream {
    let walk = |node| BufferPlacement { footprint: 1 << 30, ..BufferPlacement::on(node) };
    Stream {
        by: ExecutedBy::Cpu,
        library: Library::Raw,
        walk: AccessPattern::Sequential,
        core,
        src: walk(0),
        dst: walk(dst),
        submissions: 50,
        ..copies(1 << 20, 1, dst)
    }
}

/// GiB/s of cores of node 0 that copy from it to a node.
pub(crate) fn by_cores(lab: &Lab, cores: u32, dst: usize) -> Result<f64> {
    gibibytes(lab, &threads(machine(1), cores, by_core(0, dst)))
}

/// GiB/s of one copy of 1 GiB by the library's software path: a thread for each device, at that device's node (§3.1,
/// Figure 3.8a: all nodes). The slowest counts.
pub(crate) fn by_software(lab: &Lab, devices: u32, dst: usize) -> Result<f64> {
    let mut scenario = machine(1);
    let submissions = u64::from(1024 / devices);
    for node in 0..devices as usize {
        scenario = alone(scenario, Stream { submissions, ..by_core(node, dst) });
    }
    Ok(1.0 / lab.run(&scenario)?.took.as_secs_f64())
}

fn software_path(lab: &Lab) -> Result {
    let of = |devices: u32| {
        let share = |dst: usize| Ok((format!("{devices} to {dst}"), by_software(lab, devices, dst)? / 65.56));
        DESTINATIONS.into_iter().map(share).collect::<Result<Vec<_>>>()
    };
    Ok(Found::Numbers(of(8)?).beside([of(1)?, of(2)?].concat()))
}

fn cores_between_sockets(lab: &Lab) -> Result {
    // The number of cores is not given.
    let (mut holds, mut shown) = (true, Vec::new());
    for cores in [1, 6, 12] {
        let (within, between) = (by_cores(lab, cores, 8)?, by_cores(lab, cores, 15)?);
        holds &= between < within * 0.99;
        shown.push(format!("{cores}: {} and {}", three(within), three(between)));
    }
    Ok(Found::shape(holds, format!("cores within the node and to the other socket, GiB/s: {}", shown.join("; "))))
}

fn core_or_device(lab: &Lab) -> Result {
    let cores = [by_cores(lab, 12, 8)?, by_cores(lab, 12, 15)?];
    let best = |dst| {
        let rates = [2, 4, 8].map(|count| shared_out(lab, &devices(count, dst), dst));
        Ok::<_, ScenarioError>(rates.into_iter().collect::<Result<Vec<_>>>()?.into_iter().fold(0.0, f64::max))
    };
    let device = [best(8)?, best(15)?];
    Ok(Found::shape(
        (device[0] / cores[0] - 1.0).abs() < 0.1 && device[1] > cores[1],
        format!("within the node and between sockets, GiB/s: devices {}, cores {}", listed(&device), listed(&cores)),
    ))
}

fn below_1_mib(lab: &Lab) -> Result {
    let peak = submitted(lab, LARGE, 1)?;
    let (mut holds, mut shown) = (true, Vec::new());
    for size in [1024, 4096, 8192] {
        let (single, batch) = (submitted(lab, size, 1)?, submitted(lab, size, 50)?);
        holds &= single < 0.5 * peak && batch > single && batch < 0.95 * peak;
        shown.push(format!("{} KiB {} and {}", size >> 10, three(single), three(batch)));
    }
    let recommended = submitted(lab, 1 << 20, 1)?;
    Ok(Found::shape(
        holds && recommended > 0.75 * peak,
        format!(
            "single and batch of 50, GiB/s: {}; 1 MiB {}, peak {}",
            shown.join(", "),
            three(recommended),
            three(peak)
        ),
    ))
}

fn other_tasks_wait(lab: &Lab) -> Result {
    let [one, _] = beside_faults(lab, |engines| on("xeon-max-9468", 1, WqMode::Dedicated, engines))?;
    Ok(Found::shape(
        one[1] > 2.0 * one[0],
        format!("4 KB copies without and beside faulting ones: {} and {} us", three(one[0]), three(one[1])),
    ))
}
