//! Kuper et al., appendix C: a storage target over TCP whose replies have digests of their data.

use super::apps::{devices, of};
use super::measure::three;
use super::{Experiment, Found};
use crate::lab::Lab;
use telpher_sim::{App, DigestBy, ScenarioError, Storage, StorageCosts};

type Result<T = Found> = std::result::Result<T, ScenarioError>;

pub(super) const ALL: &[(&str, Experiment)] = &[
    ("K-096", latency_of_reads),
    ("K-097", |lab| saturated_without_digests_by_cores(lab, RANDOM)),
    ("K-098", |lab| saturated_without_digests_by_cores(lab, SEQUENTIAL)),
    ("K-099", |lab| saturated_with_digests_by_cores(lab, RANDOM)),
    ("K-100", |lab| saturated_with_digests_by_cores(lab, SEQUENTIAL)),
    ("K-102", latency_by_device_and_core),
    ("K-103", |lab| cores_by_core_over_device(lab, RANDOM)),
    ("K-104", |lab| cores_by_core_over_device(lab, SEQUENTIAL)),
];

/// Bytes of the two workloads' reads.
pub(crate) const RANDOM: u32 = 16 << 10;
pub(crate) const SEQUENTIAL: u32 = 128 << 10;

/// Cores at which the paper's target is saturated without digests, by workload.
const LATENCY_AT: [(u32, u32); 2] = [(RANDOM, 6), (SEQUENTIAL, 2)];

/// Cores of the target in the figure.
pub(crate) const CORES: std::ops::RangeInclusive<u32> = 1..=10;

/// More cores than any variant needs.
const MOST_CORES: u32 = 32;

/// "Saturated": more cores hardly increase the rate.
const SATURATED: f64 = 0.99;

/// Gigabytes a second of a core that computes the CRC of cached data. Source: ISA-L issue 404, CRC32 instruction, on
/// another vendor's core.
const CHECKSUM_GB_S: f64 = 7.92;

/// Nanoseconds of a core for each KiB of a send that copies. Source: measured over loopback on the development machine:
/// 58 µs for a read of 128 KiB less 9.2 µs for one of 16 KiB, without digests, with 4 and 8 replies a call.
const COPIED_KIB_NS: f64 = (58_000.0 - 9_200.0) / 112.0;

/// What computes digests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Digests {
    /// No digests.
    None,
    /// Four devices.
    Device,
    /// The cores; instructions overlap with the wait for memory.
    Core,
    /// The cores; each digest waits for memory and then runs instructions.
    CoreInTurn,
}

impl Digests {
    /// All of them, with their names.
    pub(crate) const ALL: [(&str, Digests); 4] = [
        ("no digests", Digests::None),
        ("by device", Digests::Device),
        ("by core", Digests::Core),
        ("by core, without overlap", Digests::CoreInTurn),
    ];

    fn by(self) -> DigestBy {
        match self {
            Digests::None => DigestBy::None,
            Digests::Device => DigestBy::Devices(devices()),
            Digests::Core | Digests::CoreInTurn => DigestBy::Core,
        }
    }
}

/// What a core does for sockets.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Sockets {
    /// The assumed costs times a factor.
    Assumed(f64),
    /// Sends copy, as `telpher_nvmf::Server` does.
    Copying,
}

/// The assumed costs.
pub(crate) const ASSUMED: Sockets = Sockets::Assumed(1.0);

/// A workload and how it is served.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Setup {
    pub(crate) bytes: u32,
    pub(crate) digests: Digests,
    pub(crate) sockets: Sockets,
}

impl Setup {
    fn of(bytes: u32, digests: Digests) -> Setup {
        Setup { bytes, digests, sockets: ASSUMED }
    }

    /// One number of the target with this number of cores.
    pub(crate) fn measure(self, lab: &Lab, cores: u32, measure: &str) -> Result<f64> {
        let costs = StorageCosts::default();
        let costs = match self.sockets {
            Sockets::Assumed(factor) => costs.with_sockets(factor),
            Sockets::Copying => StorageCosts { send_kib_ns: COPIED_KIB_NS, ..costs },
        };
        let in_turn = self.digests == Digests::CoreInTurn;
        let checksum_gb_s = if in_turn { CHECKSUM_GB_S } else { costs.checksum_gb_s };
        let costs = StorageCosts { checksum_gb_s, ..costs };
        // A multiple of the 512 reads in flight.
        let reads = if self.bytes < SEQUENTIAL { 4096 } else { 2048 };
        let storage =
            Storage { bytes: self.bytes, cores, digest: self.digests.by(), reads, costs, ..Storage::default() };
        of(lab, App::Storage(storage), measure)
    }

    /// The smallest number of cores at which the target reaches this share of its rate with the most cores.
    fn reaching(self, lab: &Lab, share: f64) -> Result<f64> {
        let rate = |cores| self.measure(lab, cores, "bytes read");
        let enough = share * rate(MOST_CORES)?;
        // The rate rises with the cores up to that of the links.
        let (mut too_few, mut reached) = (0, MOST_CORES);
        while reached - too_few > 1 {
            let cores = (too_few + reached) / 2;
            if rate(cores)? >= enough {
                reached = cores;
            } else {
                too_few = cores;
            }
        }
        Ok(reached.into())
    }

    /// Number of cores that saturate the target.
    pub(crate) fn saturating(self, lab: &Lab) -> Result<f64> {
        self.reaching(lab, SATURATED)
    }
}

fn latency(lab: &Lab, bytes: u32, digests: Digests, cores: u32) -> Result<f64> {
    Setup::of(bytes, digests).measure(lab, cores, "mean latency")
}

fn named(bytes: u32, cores: u32) -> String {
    format!("{} KiB, {cores} cores", bytes >> 10)
}

fn latency_of_reads(lab: &Lab) -> Result {
    let ratio =
        |bytes, cores| Ok(latency(lab, bytes, Digests::Device, cores)? / latency(lab, bytes, Digests::None, cores)?);
    let of = |(bytes, cores)| Ok((named(bytes, cores), ratio(bytes, cores)?));
    let highest = |bytes: u32| {
        let ratios = CORES.map(|cores| ratio(bytes, cores)).collect::<Result<Vec<f64>>>()?;
        Ok((format!("{} KiB, the highest of 1 to 10 cores", bytes >> 10), ratios.into_iter().fold(0.0, f64::max)))
    };
    let beside = [RANDOM, SEQUENTIAL].into_iter().map(highest).collect::<Result<Vec<_>>>()?;
    Ok(Found::Numbers(LATENCY_AT.into_iter().map(of).collect::<Result<Vec<_>>>()?).beside(beside))
}

fn latency_by_device_and_core(lab: &Lab) -> Result {
    let (mut holds, mut shown) = (true, Vec::new());
    for (bytes, cores) in LATENCY_AT {
        let [device, core] = [Digests::Device, Digests::Core].map(|digests| latency(lab, bytes, digests, cores));
        let (device, core) = (device?, core?);
        holds &= device < core;
        shown.push(format!("{} {} us instead of {}", named(bytes, cores), three(device), three(core)));
    }
    Ok(Found::shape(holds, shown.join(", ")))
}

fn saturated_without_digests_by_cores(lab: &Lab, bytes: u32) -> Result {
    let cores = |share| {
        let of =
            |(name, digests): (&str, Digests)| Ok((name.to_owned(), Setup::of(bytes, digests).reaching(lab, share)?));
        Digests::ALL[..2].iter().copied().map(of).collect::<Result<Vec<_>>>()
    };
    let beside = cores(0.95)?.into_iter().map(|(name, cores)| (format!("{name}, at 95 %"), cores)).collect();
    Ok(Found::Numbers(cores(SATURATED)?).beside(beside))
}

fn saturated_with_digests_by_cores(lab: &Lab, bytes: u32) -> Result {
    let at_95 = Setup::of(bytes, Digests::Core).reaching(lab, 0.95)?;
    let cores = spanned_by_checksums(|digests| Setup::of(bytes, digests).saturating(lab))?;
    Ok(cores.beside(vec![("at 95 %, as assumed".into(), at_95)]))
}

fn cores_by_core_over_device(lab: &Lab, bytes: u32) -> Result {
    let cores = |digests| Setup::of(bytes, digests).saturating(lab);
    let device = cores(Digests::Device)?;
    spanned_by_checksums(|digests| Ok(cores(digests)? / device))
}

/// The input that the paper does not print, and what was tried.
const FREE: &str =
    "the rate of a core's CRC: as fast as the core reads memory, to 7.92 GB/s after each wait for memory";

/// A number with the assumed rate of a core's CRC, which is the highest, and the range down to the lowest rate.
fn spanned_by_checksums(number: impl Fn(Digests) -> Result<f64>) -> Result {
    let (assumed, slowest) = (number(Digests::Core)?, number(Digests::CoreInTurn)?);
    Ok(Found::Spans { assumed, ends: (assumed.min(slowest), assumed.max(slowest)), free: FREE })
}
