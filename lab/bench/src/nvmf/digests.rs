//! What data digests cost the target.

use super::driver::{DEPTH, Driver};
use super::target::{NAMESPACE_BYTES, RunningTarget};
use super::turns::{self, ServedHost, each};
use crate::BenchError;
use crate::goal::{Goal, Row};
use crate::interleaved::ratio;
use crate::measure::{Clock, median};
use crate::questions::Experiment;
use std::time::Duration;
use telpher_report::machine::Machine;
use telpher_report::units;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "digests",
    question: "What do data digests by the CPU cost the target?",
    cores: 2,
    weight: 4.0,
    measure,
};

/// Bytes of the cached data. The goals are for data in the core's cache, as in the measurement from which the issue has
/// them: one warm buffer. Otherwise the digest also fetches the data, which then costs the kernel's copy less.
const CACHED: u64 = 1 << 20;
/// Bytes of a read.
const SIZES: [u32; 4] = [4 << 10, 16 << 10, 64 << 10, 128 << 10];
/// Most CPU time with digests, by that without. Source: issue.
const MOST_RATIO: f64 = 1.15;
/// Largest share of the digests in the CPU time. Source: issue.
const MOST_SHARE: f64 = 0.1;

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let _ = telpher_os::run_on(&[machine.core(0)]);
    let clock = Clock::calibrate();
    let target = RunningTarget::start(machine.core(1))?;
    target.fill()?;
    let mut rows = Vec::new();
    for bytes in SIZES {
        let side = |span, data_digest| -> Result<ServedHost<'_>, BenchError> {
            let driver = Driver::connect(target.address, bytes, data_digest)?.within(span);
            Ok(ServedHost { driver, served: &target })
        };
        let mut sides =
            [side(CACHED, true)?, side(CACHED, false)?, side(NAMESPACE_BYTES, true)?, side(NAMESPACE_BYTES, false)?];
        let turns = turns::take(&mut sides, time / 4)?;
        let [with, without, far_with, far_without] = [0, 1, 2, 3].map(|side| each(&turns[side], |turn| turn.cpu_ns));
        let shares = turns[0].iter().map(|turn| clock.ns(1) * turn.digest_ticks / turn.cpu_ns);
        let share = median(&mut shares.collect::<Vec<_>>());
        let size = units::size(bytes.into());
        let how = |with: &[f64], without: &[f64]| {
            let time = |numbers: &[f64]| units::time(median(&mut numbers.to_vec()));
            let (with, without, count) = (time(with), time(without), with.len());
            format!("{with} with digests, {without} without; {DEPTH} random reads in flight; {count} turns")
        };
        rows.extend([
            Row::new(
                format!("{size} read of cached data: share of the digests in the target's CPU time"),
                share,
                "of the CPU time",
                Some(Goal::AtMost(MOST_SHARE)),
                format!("elapsed time of a digest, the median; {}", how(&with, &without)),
            ),
            Row::new(
                format!("{size} read of cached data: CPU time of the target with digests, by that without"),
                ratio(&with, &without),
                "times",
                Some(Goal::AtMost(MOST_RATIO)),
                how(&with, &without),
            ),
            Row::new(
                format!("{size} read of 32 MiB: CPU time of the target with digests, by that without"),
                ratio(&far_with, &far_without),
                "times",
                None,
                how(&far_with, &far_without),
            ),
        ]);
    }
    Ok(rows)
}
