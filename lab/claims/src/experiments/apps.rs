//! Kuper et al., appendices A and B: messages between processes, sums of many, a cache.
//!
//! Four devices of one socket with a shared queue each: appendix B names four queues, and libfabric's shared-memory
//! provider opens as many in turn; A and C give no number. Ranks of MPI are spread over both sockets, as is the default
//! of Intel's library and necessary for training on whole sockets. The provider opens only devices of a rank's own
//! socket, so each socket has two of the four.
//!
//! Results of appendix A depend on the number of devices, which is not printed. So each of its experiments spans the
//! range from one device to eight.

use super::measure::{SIZES, core_alone, crossover, listed, three};
use super::vhost::measured;
use super::{Experiment, Found};
use crate::lab::Lab;
use crate::setups::{alone, asplos, one_by_one};
use telpher_abi::Opcode;
use telpher_device::WqMode;
use telpher_mover::{ColdBoundary, MemoryCallsPolicy};
use telpher_sim::machine::SoftwareOp;
use telpher_sim::{
    AllReduce, App, BufferPlacement, CacheBench, Copier, DtoVersion, ExecutedBy, Library, LineLocation, MessagePattern,
    Messages, QueueId, ScenarioError, SharedMemory, Stream, Workload,
};

type Result<T = Found> = std::result::Result<T, ScenarioError>;

pub(super) const ALL: &[(&str, Experiment)] = &[
    ("K-080", messages_from),
    ("K-081", |lab| largest(lab, MessagePattern::PingPong)),
    ("K-082", |lab| largest(lab, MessagePattern::Stream)),
    ("K-083", most),
    ("K-084", |lab| reduce(lab, 4)),
    ("K-085", |lab| reduce(lab, 8)),
    ("K-086", |lab| spanned(|inputs| training(lab, inputs, 2, "time per sum"), FREE)),
    ("K-087", |lab| spanned(|inputs| training(lab, inputs, 8, "time per sum"), FREE)),
    ("K-088", |lab| saved(lab, 2)),
    ("K-089", |lab| saved(lab, 8)),
    ("K-091", transparent_offload),
    ("K-094", cores_of_a_cache),
    ("K-095", tail_of_a_cache),
];

/// Devices of a socket.
pub(super) const DEVICES: u16 = 4;

/// One number of an application on a socket with four devices.
pub(super) fn of(lab: &Lab, app: App, measure: &str) -> Result<f64> {
    let scenario = asplos(DEVICES.into(), WqMode::Shared, 4).with("application", 1, Workload::App(app));
    Ok(measured(&*lab.run(&scenario)?, measure))
}

/// The same with processes and devices at `sockets` sockets.
pub(super) fn over(lab: &Lab, sockets: u32, app: App, measure: &str) -> Result<f64> {
    Inputs { sockets, ..Inputs::ASSUMED }.measure(lab, app, measure)
}

/// Inputs of appendix A that the paper does not print.
#[derive(Clone, Copy, Debug)]
struct Inputs {
    /// Sockets over which ranks and devices are spread.
    sockets: u32,
    /// Devices of all sockets together.
    devices: u16,
    /// A core's copy takes this many times as long as the profile's.
    copies: u64,
    /// Time of computing before each sum of a training step, as a multiple of the assumed one.
    computing: f64,
}

/// What [`Inputs::LEAST`] and [`Inputs::MOST`] differ in.
const FREE: &str = "one device at one socket to four at each of two; a core's copy up to three times as long";

/// The same and the time between sums.
const FREE_WITH_COMPUTING: &str = "one device at one socket to four at each of two; a core's copy up to three times as \
                                   long; computing between two sums four times as long to a quarter";

impl Inputs {
    const ASSUMED: Inputs = Inputs { sockets: RANKS_OVER, devices: DEVICES, copies: 1, computing: 1.0 };
    /// The same for two processes at one socket, which were started by hand.
    const NEAR: Inputs = Inputs { sockets: 1, ..Inputs::ASSUMED };
    /// The inputs that give the smallest gain, and the largest. Source: two sockets with four devices each are all that
    /// the machine has; the other two are chosen.
    const LEAST: Inputs = Inputs { sockets: 1, devices: 1, copies: 1, computing: 4.0 };
    const MOST: Inputs = Inputs { sockets: 2, devices: 2 * DEVICES, copies: 3, computing: 0.25 };

    fn measure(self, lab: &Lab, app: App, measure: &str) -> Result<f64> {
        let mut scenario = asplos(self.devices.into(), WqMode::Shared, 4).with("application", 1, Workload::App(app));
        let per_socket = usize::from(self.devices).div_ceil(self.sockets as usize);
        // The first two nodes of the profile belong to the two sockets.
        scenario.machine.devices = (0..usize::from(self.devices)).map(|device| device / per_socket).collect();
        if self.copies > 1 {
            let ops = &mut scenario.machine.software.ops;
            let copy = *ops.of(Opcode::MemoryMove);
            let slower = SoftwareOp { call: copy.call * self.copies, line: copy.line * self.copies, ..copy };
            *ops = ops.clone().with(Opcode::MemoryMove, slower);
        }
        Ok(measured(&*lab.run(&scenario)?, measure))
    }
}

/// A number with the assumed inputs, and the range that the free ones span.
fn spanned(number: impl Fn(Inputs) -> Result<f64>, free: &'static str) -> Result {
    let [assumed, least, most] = [Inputs::ASSUMED, Inputs::LEAST, Inputs::MOST].map(number);
    let (assumed, least, most) = (assumed?, least?, most?);
    let ends = (least.min(most).min(assumed), least.max(most).max(assumed));
    Ok(Found::Spans { assumed, ends, free })
}

/// The same for several readings of a claim: the first is compared, the others are shown beside it, and the range is
/// over all of them.
fn spanned_readings<const N: usize>(
    names: [&str; N],
    assumed: Inputs,
    numbers: impl Fn(Inputs) -> Result<[f64; N]>,
) -> Result {
    let [assumed, least, most] = [assumed, Inputs::LEAST, Inputs::MOST].map(numbers);
    let (assumed, least, most) = (assumed?, least?, most?);
    let every = || [assumed, least, most].into_iter().flatten();
    let ends = (every().fold(f64::INFINITY, f64::min), every().fold(0.0, f64::max));
    let readings = names.into_iter().map(str::to_owned).zip(assumed).collect();
    Ok(Found::Spans { assumed: assumed[0], ends, free: FREE }.beside(readings))
}

pub(super) fn shared(sockets: u32) -> SharedMemory {
    SharedMemory { sockets, ..SharedMemory::default() }
}

/// Time of a message by cores over that by devices.
fn message_gain(lab: &Lab, inputs: Inputs, talk: MessagePattern, bytes: u64) -> Result<f64> {
    let time = |copier| {
        let messages = Messages { talk, bytes, copier, count: 20, shared: shared(inputs.sockets) };
        inputs.measure(lab, App::Messages(messages), "time per message")
    };
    Ok(time(Copier::Core)? / time(Copier::devices(inputs.devices))?)
}

fn messages_from(lab: &Lab) -> Result {
    let sizes: Vec<u32> = (10..=20).map(|power| 1 << power).collect();
    spanned_readings(["ping-pong", "remote access"], Inputs::NEAR, |inputs| {
        let from = |talk| crossover(&sizes, |size| message_gain(lab, inputs, talk, size.into()));
        Ok([from(MessagePattern::PingPong)?, from(MessagePattern::Stream)?])
    })
}

/// Sockets over which ranks of MPI are spread.
pub(super) const RANKS_OVER: u32 = 2;

/// The largest message of libfabric's own benchmarks (fabtests' table of sizes).
const LARGEST: u64 = 8 << 20;

fn largest(lab: &Lab, talk: MessagePattern) -> Result {
    spanned_readings(["of the largest", "the highest"], Inputs::NEAR, |inputs| {
        Ok([message_gain(lab, inputs, talk, LARGEST)?, highest(lab, inputs, talk)?])
    })
}

/// "As high as": of all messages above 1 MB.
fn highest(lab: &Lab, inputs: Inputs, talk: MessagePattern) -> Result<f64> {
    let gains = [1 << 20, 2 << 20, 4 << 20, LARGEST].map(|bytes| message_gain(lab, inputs, talk, bytes));
    Ok(gains.into_iter().collect::<Result<Vec<_>>>()?.into_iter().fold(0.0, f64::max))
}

fn most(lab: &Lab) -> Result {
    spanned(|inputs| highest(lab, inputs, MessagePattern::Stream), FREE)
}

fn reduce(lab: &Lab, ranks: u32) -> Result {
    let gain = |inputs: Inputs| {
        let mut best = 0.0_f64;
        for bytes in [2 << 20, 4 << 20, 16 << 20] {
            let time = |copier| {
                let shared = shared(inputs.sockets);
                let app = AllReduce { ranks, bytes, copier, count: 3, shared, ..AllReduce::default() };
                inputs.measure(lab, App::AllReduce(app), "time per sum")
            };
            best = best.max(time(Copier::Core)? / time(Copier::devices(inputs.devices))?);
        }
        Ok(best)
    };
    spanned(gain, FREE)
}

/// Time of a step of BERT's pretraining by cores over that by devices.
fn training(lab: &Lab, inputs: Inputs, ranks: u32, measure: &str) -> Result<f64> {
    let time = |copier| {
        let training = AllReduce::training(ranks, 3);
        let compute_ms = training.compute_ms * inputs.computing;
        let app = AllReduce { copier, shared: shared(inputs.sockets), compute_ms, ..training };
        inputs.measure(lab, App::AllReduce(app), measure)
    };
    Ok(time(Copier::Core)? / time(Copier::devices(inputs.devices))?)
}

/// Per cent that a step of the training takes longer by cores.
fn saved(lab: &Lab, ranks: u32) -> Result {
    spanned(|inputs| Ok((training(lab, inputs, ranks, "time per step")? - 1.0) * 100.0), FREE_WITH_COMPUTING)
}

fn transparent_offload(lab: &Lab) -> Result {
    // The whole call: the intercepting library builds the descriptor, too. CacheBench copies what it holds in the
    // cache, and nothing flushes it.
    let from = |lines| {
        let (src, dst) = (BufferPlacement { lines, ..BufferPlacement::on(0) }, BufferPlacement::on(0));
        let gain = |size: u32| {
            let single = one_by_one(Opcode::MemoryMove, size, 1);
            let copies = Stream { by: ExecutedBy::SHARED, library: Library::Lean, src, dst, ..single };
            let device = lab.run(&alone(asplos(1, WqMode::Shared, 4), copies))?.loads[0].mean_latency_ns();
            Ok(core_alone(lab, asplos(1, WqMode::Shared, 4), Opcode::MemoryMove, size, src, dst)? / device)
        };
        crossover(&SIZES, gain)
    };
    let flushed = vec![("flushed data".into(), from(LineLocation::Memory)?)];
    Ok(Found::Number(from(CacheBench::default().source)?).beside(flushed))
}

/// The copies that leave the core in the cache of appendix B.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CacheOffload {
    /// None.
    CoresOnly,
    /// Those that this version of DTO gives to the devices.
    Dto(DtoVersion),
    /// Those that `telpher offload` gives to the devices with its defaults.
    Telpher,
}

/// Cores of the simulated caches; each has two threads.
pub(crate) const CACHE_CORES: [u32; 5] = [2, 4, 8, 12, 16];

/// One number of a cache with this many cores and twice as many threads.
pub(crate) fn cache(lab: &Lab, cores: u32, offload: CacheOffload, measure: &str) -> Result<f64> {
    let copies = 160_000 / u64::from(2 * cores);
    let base = CacheBench { cores, threads: 2 * cores, copies, ..CacheBench::default() };
    let by_cores = CacheBench { queues: Vec::new(), ..base.clone() };
    let app = match offload {
        CacheOffload::CoresOnly => by_cores,
        CacheOffload::Dto(version) => {
            CacheBench { threshold: version.threshold(), retries: version.retries(), tuning: version.tuning(), ..base }
        }
        CacheOffload::Telpher if !counts_as_cold(lab, base.source)? => by_cores,
        // A refused copy is offered again to another queue; here to the same one.
        CacheOffload::Telpher => CacheBench {
            threshold: MemoryCallsPolicy::THRESHOLD,
            retries: MemoryCallsPolicy::OFFERS - 1,
            tuning: None,
            ..base
        },
    };
    of(lab, App::CacheBench(app), measure)
}

/// Whether `telpher offload` takes copies from lines at `source` into memory for copies of uncached data, by its own
/// rule.
pub(crate) fn counts_as_cold(lab: &Lab, source: LineLocation) -> Result<bool> {
    // Cannot be lost: it fits into a cache.
    let bytes = u32::try_from(ColdBoundary::BYTES).unwrap_or(u32::MAX);
    let time = |src, dst| {
        let at = |lines| BufferPlacement { lines, ..BufferPlacement::on(0) };
        core_alone(lab, asplos(1, WqMode::Shared, 4), Opcode::MemoryMove, bytes, at(src), at(dst))
    };
    let cached = time(LineLocation::Llc, LineLocation::Llc)?;
    let uncached = time(LineLocation::Memory, LineLocation::Memory)?;
    let boundary = ColdBoundary::between(cached, uncached);
    Ok(boundary.is_cold(ColdBoundary::BYTES, time(source, LineLocation::Memory)?))
}

/// DTO as the paper used it.
const PAPER: CacheOffload = CacheOffload::Dto(DtoVersion::V2023);

fn cores_of_a_cache(lab: &Lab) -> Result {
    let mut gains = Vec::new();
    for cores in CACHE_CORES {
        let rate = |offload| cache(lab, cores, offload, "copies");
        gains.push(rate(PAPER)? / rate(CacheOffload::CoresOnly)?);
    }
    let below = gains[..3].iter().copied().fold(0.0, f64::max);
    Ok(Found::shape(
        gains[3] < below && gains[4] < gains[3] && below > 1.0,
        format!("2, 4, 8, 12, 16 cores, with devices over without: {}", listed(&gains)),
    ))
}

fn tail_of_a_cache(lab: &Lab) -> Result {
    let (mut holds, mut shown) = (true, Vec::new());
    for cores in [4, 8] {
        let of = |offload| cache(lab, cores, offload, "latency, 99.999 %");
        let (device, core) = (of(PAPER)?, of(CacheOffload::CoresOnly)?);
        holds &= device < core;
        shown.push(format!("{cores} cores {} us instead of {}", three(device), three(core)));
    }
    Ok(Found::shape(holds, shown.join(", ")))
}

/// A shared queue on each device.
pub(super) fn devices() -> Vec<QueueId> {
    (0..DEVICES).map(|device| QueueId { device, wq: 0, shared: true }).collect()
}
