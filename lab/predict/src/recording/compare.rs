//! A prediction compared with another recording of the program, for example with another input.

use super::costs::{float, ratio};
use super::figures::{device_work, times};
use super::options::PredictOptions;
use super::sample::{Call, FULL_DESCRIPTORS, Sample};
use super::study::{Policy, PredictionInput};
use crate::PredictError;
use std::collections::BTreeMap;
use telpher_recording::{Recording, Site};
use telpher_report::prediction::{ComparedValue, Comparison, Prediction, SitePolicy};

/// How the other recording is used.
const HOW: &str = "Its calls were replayed on the same machine, with the policy that was predicted from the first \
                   recording: call sites are the same if module, build-id and offset are.";

/// Compares a prediction with another recording. The options are those of the prediction.
///
/// # Errors
/// If the simulated devices refuse their configuration.
pub fn compare(
    prediction: &Prediction,
    other: &Recording,
    options: &PredictOptions,
) -> Result<Comparison, PredictError> {
    let study = PredictionInput::new(other, options);
    let sample = Sample::of(other, &study.costs, FULL_DESCRIPTORS);
    let (policy, unknown_sites) = policy_of(prediction, other);
    let replayed = study.simulate_policy(&sample, &policy)?;
    let by_cpu: Vec<f64> = sample.calls.iter().map(|call| study.cost(call).cpu_ns).collect();
    let offloaded = sample.times(&replayed);
    let (off, on): (f64, f64) = (by_cpu.iter().sum(), offloaded.iter().sum());
    let scale = study.all_calls(&sample);
    let recorded = study.recorded(&sample);
    let calls_as_recorded = times(sample.calls.iter().map(Call::copied_ns).collect(), scale);
    let (with_cpu, with_policy) = (times(by_cpu, scale), times(offloaded, scale));
    let work = device_work(&study, &sample, &policy, &replayed);
    let first = &prediction.recorded;
    let mean = |ns: f64, calls: u64| ratio(ns, float(calls));
    let program_gain = scale.and_then(|scale| study.program_gain(&sample, 0.0, off * scale, on * scale));
    let rows = [
        (
            "mean size of a long call",
            "B",
            mean(float(first.long_bytes), first.long_calls),
            mean(float(recorded.long_bytes), recorded.long_calls),
        ),
        ("share of long calls in the time", "%", first.long_share, recorded.long_share),
        ("cold share of bytes", "%", first.cold_share, recorded.cold_share),
        ("mean time, as recorded", "ns", prediction.as_recorded.mean_ns, calls_as_recorded.mean_ns),
        ("p99, as recorded", "ns", prediction.as_recorded.p99_ns, calls_as_recorded.p99_ns),
        ("mean time by CPU", "ns", prediction.by_cpu.mean_ns, with_cpu.mean_ns),
        ("mean time with the policy", "ns", prediction.offloaded.mean_ns, with_policy.mean_ns),
        ("p50 with the policy", "ns", prediction.offloaded.p50_ns, with_policy.p50_ns),
        ("p99 with the policy", "ns", prediction.offloaded.p99_ns, with_policy.p99_ns),
        ("share of bytes by device", "%", prediction.devices.share_of_bytes, work.share_of_bytes),
        ("gain of the long calls", "", prediction.gain_of_calls, ratio(off, on)),
        ("gain of the program", "", prediction.gain_of_program, program_gain),
    ];
    let rows = rows.into_iter().map(|(name, unit, predicted, other)| {
        let both = predicted.zip(other);
        let deviation = both.and_then(|(predicted, other)| match unit {
            "%" => Some(predicted - other),
            _ => ratio(predicted, other).map(|ratio| ratio - 1.0),
        });
        ComparedValue { name, unit, predicted, other, deviation }
    });
    Ok(Comparison { program: recorded.program, rows: rows.collect(), unknown_sites, how: HOW.into() })
}

/// The predicted policy for the sites of another recording, and the number of sites that it does not know.
fn policy_of(prediction: &Prediction, other: &Recording) -> (Policy, u64) {
    let key = |site: &SitePolicy| Some((site.module.clone()?, site.build_id.clone(), site.offset));
    let known: BTreeMap<_, bool> =
        prediction.sites.iter().filter_map(|site| Some((key(site)?, site.by == "device"))).collect();
    let of = |site: &Site| {
        let module = other.modules.get(site.module?)?;
        known.get(&(module.path.clone(), module.build_id.clone(), site.offset)).copied()
    };
    let found: Vec<Option<bool>> = other.sites.iter().map(of).collect();
    let unknown_sites = found.iter().filter(|known| known.is_none()).count() as u64;
    let by_site = found.into_iter().map(|by_device| by_device.unwrap_or(false));
    (Policy(by_site.chain([false]).collect()), unknown_sites)
}
