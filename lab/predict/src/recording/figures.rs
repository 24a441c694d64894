//! Times and shares over the replayed calls.

use super::costs::{float, ratio};
use super::sample::{Call, Sample};
use super::study::{Policy, PredictionInput, long_calls};
use telpher_report::prediction::{CallTimes, DeviceWork};
use telpher_sim::{Replayed, enough};

/// Calls for a 99.999th percentile. Source: chosen; ten calls lie beyond it.
const CALLS_FOR_99_999: u64 = 1_000_000;

/// The times of calls; sums are scaled to all long calls.
pub(super) fn times(mut calls: Vec<f64>, scale: Option<f64>) -> CallTimes {
    calls.sort_unstable_by(f64::total_cmp);
    let sum: f64 = calls.iter().sum();
    let count = calls.len() as u64;
    let at = |part: usize, of: usize| {
        let rank = (calls.len() * part).div_ceil(of).saturating_sub(1);
        calls.get(rank).copied().filter(|_| enough(count, part as f64 / of as f64))
    };
    CallTimes {
        total_ns: scale.map(|scale| sum * scale),
        mean_ns: ratio(sum, float(count)),
        p50_ns: at(1, 2),
        p99_ns: at(99, 100),
        p99_999_ns: at(99_999, 100_000).filter(|_| count >= CALLS_FOR_99_999),
    }
}

pub(super) fn device_work(
    study: &PredictionInput<'_>,
    sample: &Sample,
    policy: &Policy,
    replayed: &Replayed,
) -> DeviceWork {
    let calls = float(sample.calls.len() as u64);
    let bytes: f64 = sample.calls.iter().map(|call| float(call.bytes)).sum();
    let is_device = |call: &&Call| policy.is_device(call.site) && study.is_offloadable(call.operation, call.bytes);
    let device_bytes: f64 = sample.calls.iter().filter(is_device).map(|call| float(call.bytes)).sum();
    let times = sample.times(replayed);
    let device_ns: f64 = sample.calls.iter().zip(times).filter(|(call, _)| is_device(call)).map(|(_, ns)| ns).sum();
    // From the replayed calls to all; 1 if all were replayed.
    let scale = ratio(float(long_calls(study.recording)), calls);
    DeviceWork {
        devices: study.devices.configs.len() as u64,
        calls: scale.map(|scale| float(replayed.by_device) * scale),
        bytes: scale.map(|scale| device_bytes * scale),
        calls_ns: scale.map(|scale| device_ns * scale),
        share_of_calls: ratio(float(replayed.by_device), calls),
        share_of_bytes: ratio(device_bytes, bytes),
        queue_full: ratio(float(replayed.queue_full), calls),
        faults: ratio(float(replayed.faults), calls),
    }
}
