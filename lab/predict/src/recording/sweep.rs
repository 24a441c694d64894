//! The gain with one threshold for all call sites, by threshold.

use super::costs::{float, opcode, ratio};
use super::sample::{Call, Cost, Execution, LARGEST, Sample};
use super::study::{PredictionInput, long_from, row_ns};
use crate::PredictError;
use telpher_recording::SizeRow;
use telpher_report::prediction::ThresholdGain;
use telpher_sim::{Picos, ReplayCall};

/// The thresholds: powers of two.
const LOGARITHMS: std::ops::RangeInclusive<u32> = 11..=20;

/// A threshold must gain this much, and a smaller one more than a larger one by this factor. Source: chosen; smaller
/// differences are below the error of the simulation.
const WORTH: f64 = 1.005;

/// Calls that are too short for the trace, of one operation and size class.
struct ShortCalls {
    from: u64,
    recorded_ns: f64,
    /// Their time by the CPU of the profile's machine, and by a device.
    cpu_ns: f64,
    device_ns: f64,
}

/// Returns the gain for each threshold.
pub(super) fn thresholds(
    study: &PredictionInput<'_>,
    sample: &Sample,
    costs: &[Cost],
) -> Result<Vec<ThresholdGain>, PredictError> {
    let short = short_calls(study)?;
    let scale = study.all_calls(sample).unwrap_or(0.0);
    let cpu_long: f64 = costs.iter().map(|cost| cost.cpu_ns).sum::<f64>() * scale;
    let cpu_short: f64 = short.iter().map(|calls| calls.cpu_ns).sum();
    let recorded_short: f64 = short.iter().map(|calls| calls.recorded_ns).sum();
    let off = cpu_long + cpu_short;
    // The time of long calls with the threshold before, and the calls that it left to the CPU.
    let mut before: Option<(usize, f64)> = None;
    let mut out = Vec::new();
    for bytes in LOGARITHMS.map(|log| 1_u64 << log) {
        let by_cpu = sample.calls.iter().filter(|call| call.bytes < bytes).count();
        let long = match before {
            Some((same, long)) if same == by_cpu => long,
            _ if by_cpu == sample.calls.len() => cpu_long,
            _ => {
                let execution =
                    |index: usize, call: &Call| Execution { cost: costs[index], by_device: call.bytes >= bytes };
                sample.times(&study.simulate(sample, execution)?).iter().sum::<f64>() * scale
            }
        };
        before = Some((by_cpu, long));
        let of_short = |calls: &ShortCalls| if calls.from >= bytes { calls.device_ns } else { calls.cpu_ns };
        let on = long + short.iter().map(of_short).sum::<f64>();
        out.push(ThresholdGain {
            bytes,
            gain_of_calls: ratio(off, on),
            gain_of_program: study.program_gain(sample, recorded_short, off, on),
            partly_estimated: short.iter().any(|calls| calls.from >= bytes),
        });
    }
    Ok(out)
}

/// The largest threshold with the highest gain, if one gains: calls of sizes that were not recorded stay on the CPU.
pub(super) fn best(thresholds: &[ThresholdGain]) -> Option<u64> {
    let gain = |threshold: &ThresholdGain| threshold.gain_of_calls.unwrap_or(0.0);
    let highest = thresholds.iter().map(gain).fold(0.0, f64::max);
    let is_as_good = |threshold: &&ThresholdGain| highest > WORTH && gain(threshold) * WORTH >= highest;
    thresholds.iter().rev().find(is_as_good).map(|threshold| threshold.bytes)
}

/// Calls from the smallest threshold to the size of long calls. Each size class has the CPU's mean time, and the time
/// of one simulated call without others.
fn short_calls(study: &PredictionInput<'_>) -> Result<Vec<ShortCalls>, PredictError> {
    let smallest = 1 << LOGARITHMS.start();
    let long_from = long_from(study.recording);
    let is_short = |row: &&SizeRow| row.from >= smallest && row.to < long_from && row.calls > 0 && row.timed_calls > 0;
    let rows: Vec<&SizeRow> = study.recording.sizes.iter().filter(is_short).collect();
    let bytes = |row: &SizeRow| (row.bytes / row.calls.max(1)).clamp(row.from, row.to).min(LARGEST);
    let call = |(index, row): (usize, &&SizeRow)| ReplayCall {
        index,
        ..ReplayCall::by_device(opcode(row.operation), bytes(row))
    };
    let calls = rows.iter().enumerate().map(call).collect();
    let took = study.replay(vec![vec![calls]])?.took;
    let of = |(row, took): (&&SizeRow, &Picos)| {
        let recorded_ns = row_ns(row);
        let mean = recorded_ns / float(row.calls);
        let temperature = study.costs.judge(row.operation, bytes(row), mean);
        let cpu_ns = recorded_ns * study.costs.scale(row.operation, bytes(row), temperature);
        let by_device = took.as_nanos_f64() * float(row.calls);
        let device_ns = if study.is_offloadable(row.operation, bytes(row)) { by_device } else { cpu_ns };
        ShortCalls { from: row.from, recorded_ns, cpu_ns, device_ns }
    };
    Ok(rows.iter().zip(&took).map(of).collect())
}
