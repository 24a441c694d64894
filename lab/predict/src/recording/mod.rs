//! What a recorded program would gain by offloading its long copies, by replaying its trace.
//!
//! ```text
//! Recording ──► sample: sections of consecutive calls ──► telpher_sim::replay, once for each policy
//!    └─► costs: the CPU's time of a call, on the recorded machine and on the profile's
//! study: sample + costs + devices      sites, sweep, cold_shares: the policies      figures, words: the results
//! compare: the same policy on another recording
//! device_times: the times of single calls, for a modelled device
//! ```

mod cold_shares;
mod compare;
mod costs;
mod device_times;
mod figures;
mod options;
mod sample;
mod sites;
mod study;
mod sweep;
mod words;

use crate::{PredictError, about_of};
pub use compare::compare;
use costs::{float, ratio};
pub use device_times::device_times;
use figures::{device_work, times};
pub use options::PredictOptions;
use sample::{Call, Cost, Execution, FULL_DESCRIPTORS, SWEEP_DESCRIPTORS, Sample};
use study::{PredictionInput, long_calls};
use telpher_recording::Recording;
use telpher_report::prediction::{Prediction, ReplayCheck};

/// Rounds of the choice of the best policy. Source: chosen; programs have a few sites with most of their bytes.
const ROUNDS: u32 = 8;

/// Predicts what a recorded program would gain. Any recording has a prediction; what it cannot be computed from is
/// absent.
///
/// # Errors
/// If the simulated devices refuse their configuration.
pub fn predict(recording: &Recording, options: &PredictOptions) -> Result<Prediction, PredictError> {
    let study = PredictionInput::new(recording, options);
    let full = Sample::of(recording, &study.costs, FULL_DESCRIPTORS);
    let part = Sample::of(recording, &study.costs, SWEEP_DESCRIPTORS);
    let costs: Vec<Cost> = part.calls.iter().map(|call| study.cost(call)).collect();
    let alone = part.times(&study.simulate_alone(&part)?);
    let (policy, chosen) = sites::choose(&study, &part, &costs, &alone, ROUNDS)?;
    let best = study.simulate_policy(&full, &policy)?;
    let by_cpu: Vec<f64> = full.calls.iter().map(|call| study.cost(call).cpu_ns).collect();
    let offloaded = full.times(&best);
    let (off, on) = (by_cpu.iter().sum::<f64>(), offloaded.iter().sum::<f64>());
    let scale = study.all_calls(&full);
    let thresholds = sweep::thresholds(&study, &part, &costs)?;
    Ok(Prediction {
        kind: "record predict",
        about: about_of(&options.machine),
        recorded: study.recorded(&full),
        check: check(&study, &full)?,
        gain_of_calls: ratio(off, on),
        gain_of_program: scale.and_then(|scale| study.program_gain(&full, 0.0, off * scale, on * scale)),
        devices: device_work(&study, &full, &policy, &best),
        best_threshold: sweep::best(&thresholds),
        thresholds,
        sites: sites::describe(&study, (&part, &costs), (&alone, &chosen), &policy, (&full, &offloaded)),
        as_recorded: times(full.calls.iter().map(Call::copied_ns).collect(), scale),
        by_cpu: times(by_cpu, scale),
        offloaded: times(offloaded, scale),
        cold_shares: cold_shares::cold_shares(&study, &part, &alone)?,
        scaled: words::scaled(recording, options),
        assumptions: words::assumptions(recording, options),
        remarks: words::remarks(recording, &full, &part),
        against: None,
    })
}

/// Replays the sample without devices, as on the recorded machine.
fn check(study: &PredictionInput<'_>, sample: &Sample) -> Result<ReplayCheck, PredictError> {
    let recorded = |call: &Call| Cost { cpu_ns: call.copied_ns(), temperature: call.temperature };
    let replayed = study.simulate(sample, |_, call| Execution { cost: recorded(call), by_device: false })?;
    let sum: f64 = replayed.took.iter().map(|took| took.as_nanos_f64()).sum();
    let calls = ratio(float(long_calls(study.recording)), float(sample.calls.len() as u64));
    let replayed_ns = calls.map(|calls| sum * calls);
    // Only calls with a temperature have a curve.
    let curve = |call: &Call| {
        let by_curve = study.costs.by_curve(call.operation, call.bytes, call.temperature?)?;
        Some((by_curve, call.copied_ns()))
    };
    let judged = sample.calls.iter().filter_map(curve);
    let (by_curve, recorded) = judged.fold((0.0, 0.0), |sums, call| (sums.0 + call.0, sums.1 + call.1));
    Ok(ReplayCheck {
        replayed_calls: sample.calls.len() as u64,
        sections: sample.section_count() as u64,
        replayed_ns,
        error: replayed_ns.and_then(|replayed| ratio(replayed, study.long_ns)).map(|ratio| ratio - 1.0),
        section_error: sample.section_error(&replayed.sections),
        curve_error: ratio(by_curve, recorded).map(|ratio| ratio - 1.0),
    })
}
