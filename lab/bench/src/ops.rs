//! `telpher bench ops`: every operation against the best alternative of this machine, then the costs around a
//! descriptor.

use super::BenchError;
use super::bandwidth;
use super::buffers::{Arena, Temperature};
use super::costs::{self, Cost};
use super::experiments::{ComparisonError, EXPERIMENTS, Experiment, Ring};
use super::measure::median;
use super::progress::{Budget, weight};
use super::results::MODEL_REMARK;
use crate::ffi::{self, Isal};
use crate::options::OpsOptions;
use serde::Serialize;
use std::time::Duration;
use telpher_abi::Opcode;
use telpher_report::machine::Machine;
use telpher_report::units;

/// One comparison at one size.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// telpher's operation.
    pub op: &'static str,
    /// The alternative.
    pub against: &'static str,
    /// Bytes of one transfer.
    pub size: u64,
    /// Whether the buffers are cached.
    pub temperature: Temperature,
    /// Nanoseconds of telpher's operation, median.
    pub ours_ns: f64,
    /// Nanoseconds of the alternative, median.
    pub theirs_ns: f64,
    /// Median ratio; above 1 telpher is faster.
    pub ratio: f64,
    /// The goal for the ratio at this size.
    pub goal: f64,
    /// Turns of each side.
    pub turns: usize,
}

impl Row {
    /// Returns true if this is the cold row of the same comparison as `warm`.
    pub fn is_cold_of(&self, warm: &Row) -> bool {
        self.temperature == Temperature::Cold
            && (self.op, self.against, self.size) == (warm.op, warm.against, warm.size)
    }

    /// Returns true if the ratio is below its goal.
    pub fn falls_short(&self) -> bool {
        self.ratio < self.goal
    }
}

/// Median ratio of one comparison over all sizes, warm and cold.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Overall {
    /// telpher's operation.
    pub op: &'static str,
    /// The alternative.
    pub against: &'static str,
    /// The median of the ratios.
    pub ratio: f64,
    /// The lowest ratio.
    pub lowest: f64,
    /// Number of rows that miss their goal.
    pub short: usize,
    /// Number of all rows.
    pub rows: usize,
}

/// Everything that `telpher bench ops` measured.
#[derive(Clone, Debug, Serialize)]
pub struct OpsResult {
    /// `ops`.
    pub kind: &'static str,
    /// The machine.
    pub machine: Machine,
    /// Remarks for the reader.
    pub remarks: Vec<String>,
    /// Every comparison at every size.
    pub rows: Vec<Row>,
    /// Medians by comparison.
    pub overall: Vec<Overall>,
    /// The costs around a descriptor.
    pub costs: Vec<Cost>,
}

/// Part of the time for the costs around a descriptor.
const COSTS_SHARE: f64 = 0.2;

/// Runs the whole benchmark.
pub fn run(args: &OpsOptions, machine: Machine) -> Result<OpsResult, BenchError> {
    let isal = Isal::open();
    let mut remarks =
        vec![format!("telpher's kernels: {}.", telpher_ops::dispatch::description()), MODEL_REMARK.to_owned()];
    if isal.is_none() {
        let library = ffi::ISAL_LIBRARY.to_string_lossy();
        remarks.push(format!("ISA-L is not installed ({library}; apt install libisal2): its rows are left out."));
    }
    // All of it runs on one core; the costs around a descriptor pin their own threads.
    let _ = telpher_os::run_on(&[machine.core(0)]);
    let total = Duration::from_secs_f64(args.seconds);
    let planned = plan(args, isal);
    let mut rows = Vec::with_capacity(planned.len());
    let mut budget = Budget::new(total.mul_f64(1.0 - COSTS_SHARE), planned.iter().map(|p| weight(p.1 as u64)).sum());
    if let Some(largest) = planned.iter().map(|p| p.1).max() {
        let cold = usize::try_from(machine.cold_bytes()).unwrap_or(usize::MAX);
        let mut arena = Arena::new(cold.max(2 * largest))?;
        for (contest, size, temperature) in planned {
            let what = format!(
                "{} against {}, {}, {}",
                contest.name,
                contest.against,
                units::size(size as u64),
                temperature.name()
            );
            let time = budget.step(&what, weight(size as u64));
            let mut ring = Ring { arena: &mut arena, size, temperature, time, isal };
            let duel = (contest.run)(&mut ring).map_err(|error| failed(contest, size, error))?;
            rows.push(Row {
                op: contest.name,
                against: contest.against,
                size: size as u64,
                temperature,
                ours_ns: duel.ours_ns,
                theirs_ns: duel.theirs_ns,
                ratio: duel.ratio,
                goal: (contest.goal)(size),
                turns: duel.turns,
            });
        }
    }
    budget.finish();
    let _ = telpher_os::run_on(&machine.cores);
    let costs = costs::run(&machine, total.mul_f64(COSTS_SHARE))?;
    let overall = overall(&rows);
    Ok(OpsResult { kind: "ops", machine, remarks, rows, overall, costs })
}

/// Returns the operations that have comparisons.
pub fn operations() -> impl Iterator<Item = Opcode> {
    EXPERIMENTS.iter().chain(bandwidth::EXPERIMENTS).map(|experiment| experiment.op)
}

/// Returns the comparisons that `--op` and `--size` select and that this machine can run.
fn plan(args: &OpsOptions, isal: Option<Isal>) -> Vec<(&'static Experiment, usize, Temperature)> {
    let sizes: Vec<usize> = args.sizes.iter().filter_map(|s| usize::try_from(*s).ok()).collect();
    let mut all = Vec::new();
    let mut add = |contest: &'static Experiment, sizes: Vec<usize>| {
        let sizes = sizes.into_iter().filter(|size| (contest.takes)(*size));
        all.extend(sizes.flat_map(|size| [Temperature::Warm, Temperature::Cold].map(|t| (contest, size, t))));
    };
    let chosen = |c: &&Experiment| args.ops.contains(&c.op);
    for contest in EXPERIMENTS.iter().filter(chosen).filter(|c| !c.isal || isal.is_some()) {
        add(contest, sizes.clone());
    }
    for contest in bandwidth::EXPERIMENTS.iter().filter(chosen) {
        add(contest, apart(sizes.iter().copied().filter(|size| (contest.takes)(*size))));
    }
    all
}

/// Returns the sizes that are at least sixteen times the one before: there are many comparisons with copies, and sizes
/// in the same level of the caches differ little.
fn apart(sizes: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut sizes: Vec<usize> = sizes.collect();
    sizes.sort_unstable();
    let mut least = 0;
    sizes.retain(|size| {
        let far = *size >= least;
        if far {
            least = size.saturating_mul(16);
        }
        far
    });
    sizes
}

fn failed(contest: &Experiment, size: usize, error: ComparisonError) -> BenchError {
    let (op, size) = (contest.name, size as u64);
    match error {
        ComparisonError::Mismatch(offset) => {
            BenchError::Mismatch { op: op.into(), route: contest.against.into(), size, offset: offset as u64 }
        }
        ComparisonError::Implausible(source) => {
            BenchError::Implausible { what: format!("{op} of {}", units::size(size)), source }
        }
    }
}

fn overall(rows: &[Row]) -> Vec<Overall> {
    let mut all: Vec<Overall> = Vec::new();
    for row in rows {
        if all.iter().any(|o| o.op == row.op && o.against == row.against) {
            continue;
        }
        let same = || rows.iter().filter(|r| r.op == row.op && r.against == row.against);
        let mut ratios: Vec<f64> = same().map(|r| r.ratio).collect();
        all.push(Overall {
            op: row.op,
            against: row.against,
            ratio: median(&mut ratios),
            lowest: ratios[0],
            short: same().filter(|r| r.falls_short()).count(),
            rows: ratios.len(),
        });
    }
    all
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn row(op: &'static str, size: u64, temperature: Temperature, ratio: f64) -> Row {
        Row {
            op,
            against: "memcpy",
            size,
            temperature,
            ours_ns: 10.0,
            theirs_ns: 10.0 * ratio,
            ratio,
            goal: 0.9,
            turns: 15,
        }
    }

    /// Two operations; one row misses its goal.
    pub(crate) fn sample() -> OpsResult {
        let ratios = [("move", 256, 1.2), ("move", 4096, 0.8), ("move", 65536, 1.1), ("fill", 256, 2.0)];
        let both = |(op, size, ratio)| {
            [row(op, size, Temperature::Warm, ratio), row(op, size, Temperature::Cold, ratio + 0.4)]
        };
        let rows: Vec<Row> = ratios.into_iter().flat_map(both).collect();
        let overall = overall(&rows);
        OpsResult { kind: "ops", machine: Machine::read(), remarks: vec!["r".into()], rows, overall, costs: Vec::new() }
    }

    #[test]
    fn comparisons_with_copies_take_every_sixteenth_size() {
        assert_eq!(apart([4 << 20, 64 << 10, 256 << 10, 1 << 20, 16 << 20].into_iter()), [64 << 10, 1 << 20, 16 << 20]);
        assert_eq!(apart([4 << 20].into_iter()), [4 << 20]);
        let ops = vec![Opcode::CrcGeneration, Opcode::GatherCopy];
        let args = OpsOptions { ops, sizes: vec![4096, 64 << 10, 1 << 20], seconds: 1.0 };
        let planned = plan(&args, None);
        let sizes =
            |name| planned.iter().filter(|(c, ..)| c.name == name).map(|(_, size, _)| *size).collect::<Vec<_>>();
        assert_eq!(sizes("crc64"), [64 << 10, 64 << 10, 1 << 20, 1 << 20]);
        assert_eq!(sizes("gather 64 B"), sizes("crc64"));
        assert_eq!(sizes("crc").len(), 6);
        assert!(planned.iter().all(|(c, ..)| args.ops.contains(&c.op)));
    }

    #[test]
    fn the_overall_result_has_the_median_and_the_lowest_ratio() {
        let overall = sample().overall;
        assert_eq!((overall[0].op, overall[0].lowest, overall[0].short), ("move", 0.8, 1));
        assert!((overall[0].ratio - 1.2).abs() < 1e-9);
        assert_eq!((overall[1].op, overall[1].rows), ("fill", 2));
    }
}
