//! A sweep, or a file of loads, in simulated time.

use crate::config::ConfigFile;
use crate::options::SweepOptions;
use crate::point::point_of;
use crate::{PredictError, about_of};
use std::path::Path;
use telpher_abi::{DIF_TUPLE_BYTES, DifBlock, Opcode};
use telpher_device::{Bandwidth, Capabilities, Config, DeviceName, ModelSource, Preset, WqMode};
use telpher_mover::Policy;
use telpher_report::simulation::{App, CPU, DEVICE, Point, Refused, RunResult};
use telpher_sim::{
    Arrivals, BufferPlacement, ExecutedBy, Layout, LineLocation, Machine, MoverSettings, NamedValue, Outcome, QueueId,
    RefusedOperation, Scenario, ScenarioError, Stream, Wait, Workload, WorkloadHeader, is_synthetic, queue_ids,
};

/// Depth and batch of each default mode. The same as in `telpher bench`.
const MODES: [(u32, u32); 3] = [(1, 1), (32, 1), (2, 32)];

/// Most submissions of a point. Source: the largest value of --count.
const MANY: u64 = 100_000_000;

/// Devices and their queues.
pub(crate) struct Devices {
    /// Their name in outputs.
    name: String,
    capabilities: Capabilities,
    pub(crate) configs: Vec<Config>,
    /// The configuration file, if there is one.
    file: Option<ConfigFile>,
}

impl Devices {
    /// Converts an error, with the line of the configuration file if there is one.
    pub(crate) fn at_line(&self, error: ScenarioError) -> PredictError {
        match &self.file {
            Some(file) => file.at_line(error),
            None => error.into(),
        }
    }
}

/// Simulates every point of a sweep.
///
/// # Errors
/// If options contradict each other or the machine, or a device's name or file is not valid.
pub fn sweep(machine: &Machine, args: &SweepOptions) -> Result<RunResult, PredictError> {
    let (cpu, devices) = routes(args)?;
    for op in &args.ops {
        moves(args, *op)?;
    }
    for (what, node) in [
        ("--placement's source", args.placement.map_or(0, |(src, _)| src as usize)),
        ("--placement's destination", args.placement.map_or(0, |(_, dst)| dst as usize)),
        ("--core-node", args.core_node),
    ] {
        if node >= machine.nodes.len() {
            let (name, last) = (&machine.name, machine.nodes.len() - 1);
            return Err(PredictError::Not(format!(
                "{what} is node {node}, and the profile {name} has nodes 0 to {last}"
            )));
        }
    }
    no_batches(machine, args)?;
    let mut result = result_of(machine);
    result.remarks.extend(synthetic_remark(args.ops.iter().copied()));
    result.remarks.extend(sleeps_in_vain(machine, args));
    result.remarks.extend(more_threads_than_cores(machine, args.threads));
    for op in &args.ops {
        for size in &args.sizes {
            // Cannot lose bits: the largest size is 2 GiB.
            let stream = stream(args, *op, u32::try_from(*size).unwrap_or(u32::MAX));
            match cut_block(&stream) {
                Some(reason) if cpu => result.refused.push(refused_by_cpu(args, &stream, reason)),
                None if cpu => result.points.push(by_cpu(machine, args, stream)?),
                _ => {}
            }
            for (depth, batch) in modes(machine, args) {
                let Some(devices) = &devices else { continue };
                let stream = Stream { depth, batch, ..stream };
                match by_device(machine, args, devices, stream) {
                    Ok(point) => result.points.push(point),
                    Err(PredictError::Scenario(ScenarioError::Refused { refusal, .. })) => {
                        result.refused.push(refused(args, devices, &stream, refusal));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(result)
}

/// A remark if an operation's times are synthetic.
fn synthetic_remark(mut ops: impl Iterator<Item = Opcode>) -> Option<String> {
    ops.any(is_synthetic).then(|| {
        "synthetic: nothing is published about the times of these operations. Each has the costs of the published \
         operation that moves its bytes in the same directions; its bytes flow through the same limits."
            .to_owned()
    })
}

/// Returns a device's name in a point, which says whether its numbers are synthetic.
fn labelled(device: &str, op: Opcode) -> String {
    if is_synthetic(op) { format!("{device} (synthetic)") } else { device.to_owned() }
}

fn result_of(machine: &Machine) -> RunResult {
    let about = about_of(machine);
    let (remarks, points, refused, apps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    RunResult { kind: "sim run", about, workload: None, remarks, points, refused, apps }
}

/// A file of loads that run at the same time.
#[derive(Debug)]
pub struct WorkloadFile {
    name: String,
    text: String,
    header: WorkloadHeader,
}

impl WorkloadFile {
    /// Reads a file and parses its header.
    ///
    /// # Errors
    /// If the file cannot be read, or its header is not valid.
    pub fn load(path: &Path) -> Result<WorkloadFile, PredictError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| PredictError::Read { path: name.clone(), source })?;
        WorkloadFile::parse(name, text)
    }

    /// Parses the header of a text; `name` is its file.
    ///
    /// # Errors
    /// If the header is not valid.
    pub fn parse(name: String, text: String) -> Result<WorkloadFile, PredictError> {
        let header = WorkloadHeader::parse(&name, &text)?;
        Ok(WorkloadFile { name, text, header })
    }

    /// The profile of the machine that the file names, if it names one.
    #[must_use]
    pub fn profile(&self) -> Option<&str> {
        self.header.profile.as_deref()
    }
}

/// Simulates the loads of a file on a device, all in one scenario.
///
/// # Errors
/// If the file is not valid, or the machine or the device does not support its loads.
pub fn workload(file: WorkloadFile, machine: Machine, device: &str) -> Result<RunResult, PredictError> {
    let WorkloadFile { name, text, header } = file;
    let (capabilities, devices) = models(device)?;
    let configs = devices.as_ref().map(|devices| devices.configs.clone());
    let scenario = Scenario::parse(&name, &text, machine, capabilities, configs)?;
    let outcome = scenario.simulate().map_err(|error| match &devices {
        Some(devices) => devices.at_line(error),
        None => error.into(),
    })?;
    let mut result = RunResult { workload: Some(name), ..result_of(&scenario.machine) };
    result.remarks.push(header.why.split_whitespace().collect::<Vec<_>>().join(" "));
    if outcome.refused > 0 {
        let refused = outcome.refused;
        result
            .remarks
            .push(format!("A device refused {refused} descriptors of an application, and did nothing for them."));
    }
    let ops = scenario.loads.iter().filter_map(|load| match &load.what {
        Workload::Stream(stream) => Some(stream.op),
        _ => None,
    });
    result.remarks.extend(synthetic_remark(ops));
    for (load, of) in scenario.loads.iter().zip(&outcome.loads) {
        let Workload::Stream(stream) = &load.what else {
            let measures = of.measures.iter().map(|measure| (measure.name.clone(), measure.value, measure.unit));
            result.apps.push(App { load: load.name.clone(), measures: measures.collect() });
            continue;
        };
        let device = if stream.by == ExecutedBy::Cpu { CPU.to_owned() } else { labelled(DEVICE, stream.op) };
        let point = point_of(&outcome, of, stream, load.threads, device);
        if let (Some(expected), Some(found)) = (load.expect, &of.bottleneck)
            && expected != found.limit
        {
            let (name, expected) = (&load.name, expected.name());
            result
                .remarks
                .push(format!("The file expects {name} to be limited by: {expected}. On this machine it is not."));
        }
        result.points.push(point);
    }
    Ok(result)
}

/// The devices of a file of loads: their capabilities, and their configurations if a file has them.
pub(crate) fn models(device: &str) -> Result<(Capabilities, Option<Devices>), PredictError> {
    match device.parse::<DeviceName>()? {
        DeviceName::All => Ok((Preset::default().capabilities(), None)),
        DeviceName::Model(ModelSource::Preset(preset)) => Ok((preset.capabilities(), None)),
        DeviceName::Model(ModelSource::File(file)) => Ok((Preset::default().capabilities(), Some(from_file(&file)?))),
        other => Err(PredictError::Not(format!("a workload's work goes to models of devices, not to {other}"))),
    }
}

/// Returns whether to simulate the CPU, and the devices to simulate.
fn routes(args: &SweepOptions) -> Result<(bool, Option<Devices>), PredictError> {
    match args.device.parse::<DeviceName>()? {
        DeviceName::Cpu => Ok((true, None)),
        DeviceName::All => Ok((true, Some(from_options(args, Preset::default())?))),
        DeviceName::Model(ModelSource::Preset(preset)) => Ok((false, Some(from_options(args, preset)?))),
        DeviceName::Model(ModelSource::File(path)) => {
            let given = [
                ("--wq-mode", args.wq_mode.is_some()),
                ("--wq-size", args.wq_size.is_some()),
                ("--devices", args.devices.is_some()),
                ("--groups", args.groups.is_some()),
                ("--wqs", args.wqs.is_some()),
                ("--engines", args.engines.is_some()),
                ("--reads", args.bandwidth[0].is_some()),
                ("--writes", args.bandwidth[1].is_some()),
            ];
            if let Some((option, _)) = given.iter().find(|(_, given)| *given) {
                let file = path.display();
                return Err(PredictError::Not(format!("{file} has its own queues and engines; leave out {option}")));
            }
            Ok((false, Some(from_file(&path)?)))
        }
        DeviceName::Hardware(queue) => Err(PredictError::Not(format!(
            "hw:{queue} is hardware, and what is simulated has none; `telpher bench --device hw:{queue}` measures it"
        ))),
    }
}

fn from_file(path: &Path) -> Result<Devices, PredictError> {
    let file = ConfigFile::load(path)?;
    Ok(Devices {
        name: format!("model:{}", path.display()),
        capabilities: Preset::default().capabilities(),
        configs: file.configs.clone(),
        file: Some(file),
    })
}

fn from_options(args: &SweepOptions, preset: Preset) -> Result<Devices, PredictError> {
    let capabilities = preset.capabilities();
    let (devices, groups) = (args.devices.unwrap_or(1), args.groups.unwrap_or(1));
    let mode = args.wq_mode.unwrap_or(WqMode::Dedicated);
    let all_groups = u32::from(devices) * groups;
    let wqs = args.wqs.unwrap_or(if mode == WqMode::Dedicated { args.threads.div_ceil(all_groups) } else { 1 });
    let most = u32::from(capabilities.wq_cap.queues());
    if mode == WqMode::Dedicated && (wqs * all_groups < args.threads || args.wqs.is_none() && groups * wqs > most) {
        let has = (all_groups * args.wqs.unwrap_or(most / groups.max(1))).max(1);
        let threads = args.threads;
        return Err(PredictError::Not(format!(
            "{threads} threads need a dedicated queue each, and there are {has}; give at most {has} threads, more \
             --devices or --wqs, or --wq-mode shared"
        )));
    }
    let bandwidth = args.bandwidth.map(Option::unwrap_or_default);
    if bandwidth != [Bandwidth::All; 2] && !capabilities.grp_cap.bandwidth_limits() {
        return Err(PredictError::Not(format!(
            "groups of model:{} have no bandwidth limits; leave out --reads and --writes, or give --device \
             model:v3-full",
            preset.name()
        )));
    }
    let engines = args.engines.unwrap_or(1);
    let layout = Layout { devices, groups, wqs, engines, mode, wq_size: args.wq_size, bandwidth };
    Ok(Devices {
        name: format!("model:{}", preset.name()),
        capabilities,
        configs: layout.configs(&capabilities),
        file: None,
    })
}

/// Refuses batches for engines that take none.
fn no_batches(machine: &Machine, args: &SweepOptions) -> Result<(), PredictError> {
    let batch = args.batches.iter().flatten().find(|batch| **batch > 1);
    match batch {
        Some(batch) if !machine.device.batches => Err(PredictError::Not(format!(
            "--batch is {batch}, and the engines of {} take no batches; leave --batch out, or raise --in-flight",
            machine.name
        ))),
        _ => Ok(()),
    }
}

/// A remark if threads are to sleep until records that come sooner than a sleep ends.
fn sleeps_in_vain(machine: &Machine, args: &SweepOptions) -> Option<String> {
    let depth = modes(machine, args).into_iter().map(|(depth, _)| depth).max().filter(|depth| *depth > 1)?;
    (args.wait == Wait::Sleep).then(|| {
        format!(
            "--wait sleep with {depth} in flight: while a thread sleeps until one record, others are written and \
             nothing is submitted in their place; --in-flight 1 shows what a sleep costs one operation."
        )
    })
}

/// A remark if a socket has fewer cores than threads are simulated.
pub(crate) fn more_threads_than_cores(machine: &Machine, threads: u32) -> Option<String> {
    let cores = machine.software.cores.filter(|cores| *cores < threads)?;
    Some(format!(
        "{threads} threads are more than the cores of a socket of {}, {cores}: the simulation gives each thread a core \
         of its own; threads that share a core do less.",
        machine.name
    ))
}

/// Returns depth and batch of every mode.
fn modes(machine: &Machine, args: &SweepOptions) -> Vec<(u32, u32)> {
    let one = || vec![1];
    match (&args.depths, &args.batches) {
        (None, None) if args.policy.is_empty() && machine.device.batches => MODES.to_vec(),
        // A mover submits every operation separately, so there is no batch mode.
        (None, None) => vec![(1, 1), (32, 1)],
        (depth, batch) => {
            let depths = depth.clone().unwrap_or_else(one);
            let batches = batch.clone().unwrap_or_else(one);
            batches.iter().flat_map(|batch| depths.iter().map(|depth| (*depth, *batch))).collect()
        }
    }
}

/// Returns the mover's settings; `None` without `--policy`.
fn moves(args: &SweepOptions, op: Opcode) -> Result<Option<MoverSettings>, PredictError> {
    let mut policy = Policy::default();
    for setting in &args.policy {
        let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
        if !MoverSettings::SETTINGS.contains(&name) {
            let known = MoverSettings::SETTINGS.join(", ");
            return Err(PredictError::Not(format!("--policy takes NAME=VALUE with one of {known}, not '{setting}'")));
        }
        policy.set(name, value).map_err(|error| PredictError::Not(format!("--policy {setting}: {error}")))?;
    }
    Ok((!args.policy.is_empty()).then(|| MoverSettings::of(&policy, op)))
}

/// Returns the work of each thread, with depth and batch 1.
fn stream(args: &SweepOptions, op: Opcode, size: u32) -> Stream {
    let footprint = args.footprint.unwrap_or(0);
    let place = |node: u32| BufferPlacement { page: args.page_bytes, footprint, ..BufferPlacement::on(node as usize) };
    let (src, dst) = args.placement.unwrap_or((0, 0));
    let lines = if args.from_cache { LineLocation::Llc } else { LineLocation::Memory };
    Stream {
        submissions: args.count,
        core: args.core_node,
        src: BufferPlacement { lines, ..place(src) },
        dst: place(dst),
        cache_control: args.to_cache,
        wait: args.wait,
        library: args.library,
        walk: args.walk,
        through: args.through,
        arrivals: args.rate.map_or(Arrivals::Closed, Arrivals::Poisson),
        ..Stream::of(op, size)
    }
}

fn by_cpu(machine: &Machine, args: &SweepOptions, stream: Stream) -> Result<Point, PredictError> {
    let stream = Stream { by: ExecutedBy::Cpu, ..stream };
    let mut scenario = Scenario::on(machine.clone(), Config::single(WqMode::Dedicated, 1, 1));
    scenario.devices.clear();
    let (stream, outcome) =
        lasting(args, scenario.with(CPU, args.threads, Workload::Stream(stream)), stream, Into::into)?;
    Ok(point_of(&outcome, &outcome.loads[0], &stream, args.threads, CPU.into()))
}

fn by_device(machine: &Machine, args: &SweepOptions, devices: &Devices, stream: Stream) -> Result<Point, PredictError> {
    let all = queue_ids(&devices.configs);
    let dedicated = all.iter().filter(|queue| !queue.shared).count();
    if all.is_empty() || dedicated == all.len() && (args.threads as usize) > dedicated {
        let (name, threads) = (&devices.name, args.threads);
        return Err(PredictError::Not(format!(
            "{threads} threads need a queue each, and {name} has {dedicated} dedicated ones and none that is shared"
        )));
    }
    let (stream, queues) = match moves(args, stream.op)? {
        Some(moves) => (Stream { by: ExecutedBy::Mover(moves), ..stream }, all),
        None => (stream, taken(&all, args.threads as usize)),
    };
    let mut scenario = Scenario::on(machine.clone(), Config::single(WqMode::Dedicated, 1, 1));
    scenario.capabilities = devices.capabilities;
    scenario.devices.clone_from(&devices.configs);
    let scenario = scenario.with_lanes(DEVICE, args.threads, stream, queues);
    let (stream, outcome) = lasting(args, scenario, stream, |error| devices.at_line(error))?;
    Ok(point_of(&outcome, &outcome.loads[0], &stream, args.threads, labelled(&devices.name, stream.op)))
}

/// Returns what stands in place of a point that devices refuse.
fn refused(args: &SweepOptions, devices: &Devices, stream: &Stream, refusal: RefusedOperation) -> Refused {
    Refused {
        op: stream.op.short_name(),
        size: stream.size.into(),
        device: devices.name.clone(),
        depth: stream.depth,
        batch: stream.batch,
        threads: args.threads,
        status: refusal.status.to_string(),
        reason: refusal.why,
    }
}

/// Why a core does not execute an operation: it computes DIF of whole blocks only, and the time that a core takes for a
/// newer operation is not known. `None` for others.
fn cut_block(stream: &Stream) -> Option<String> {
    if is_synthetic(stream.op) {
        let op = stream.op.short_name();
        return Some(format!("profiles have no times of a core for {op}; `telpher bench ops` measures this machine's"));
    }
    // The simulated descriptors have no DIF flags, which means the smallest blocks.
    let data = DifBlock::from_code(0).bytes();
    let block = match stream.op {
        Opcode::DifInsert => data,
        Opcode::DifCheck | Opcode::DifStrip | Opcode::DifUpdate => data + DIF_TUPLE_BYTES,
        _ => return None,
    };
    let (op, size) = (stream.op.short_name(), stream.size);
    (!size.is_multiple_of(block))
        .then(|| format!("{op} of {size} bytes ends within a block, and blocks of its source have {block} bytes"))
}

/// Returns what stands in place of a point that the CPU does not execute.
fn refused_by_cpu(args: &SweepOptions, stream: &Stream, reason: String) -> Refused {
    let (op, size, threads) = (stream.op.short_name(), stream.size.into(), args.threads);
    Refused { op, size, device: CPU.into(), depth: 1, batch: 1, threads, status: "not executed".into(), reason }
}

/// Simulates a scenario with one load, for `--count` submissions or `--seconds`. Returns the stream that was submitted,
/// and the outcome.
fn lasting(
    args: &SweepOptions,
    mut scenario: Scenario,
    mut stream: Stream,
    error_of: impl Fn(ScenarioError) -> PredictError,
) -> Result<(Stream, Outcome), PredictError> {
    let outcome = scenario.simulate().map_err(&error_of)?;
    let Some(seconds) = args.seconds else { return Ok((stream, outcome)) };
    // Lost bits do not matter: larger counts are refused.
    #[allow(clippy::cast_precision_loss, clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a count")]
    let fill = (stream.submissions as f64 * seconds / outcome.loads[0].elapsed.as_secs_f64().max(1e-15)).ceil() as u64;
    if fill > MANY {
        let (op, size) = (stream.op.short_name(), stream.size);
        return Err(PredictError::Not(format!(
            "in {seconds} s each thread would submit {op} of {size} bytes {fill} times, and a point has {MANY} at \
             most; give fewer --seconds"
        )));
    }
    stream.submissions = fill.max(1);
    scenario.loads[0].what = Workload::Stream(stream);
    let outcome = scenario.simulate().map_err(error_of)?;
    Ok((stream, outcome))
}

/// Returns a queue for each thread. All queues are assigned in turn, dedicated ones only once.
fn taken(all: &[QueueId], threads: usize) -> Vec<QueueId> {
    let shared = all.iter().filter(|queue| queue.shared).copied();
    let again = shared.collect::<Vec<_>>();
    all.iter().copied().chain(again.into_iter().cycle()).take(threads).collect()
}
