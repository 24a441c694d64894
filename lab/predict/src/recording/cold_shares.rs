//! The gain if another share of the data were cold.

use super::costs::{float, ratio};
use super::sample::{Call, Cost, Sample};
use super::sites;
use super::study::PredictionInput;
use crate::PredictError;
use telpher_recording::Temperature;
use telpher_report::prediction::ColdShareGain;

/// Changes of the share, in percentage points; small changes first.
const POINTS: [i32; 5] = [0, 10, 25, -10, -25];

/// Rounds of the choice of each policy. Source: chosen, to limit the work.
const ROUNDS: u32 = 2;

/// Returns the gain for each change; nothing if no call was judged. `alone` are the times of calls by a device without
/// other calls.
pub(super) fn cold_shares(
    study: &PredictionInput<'_>,
    sample: &Sample,
    alone: &[f64],
) -> Result<Vec<ColdShareGain>, PredictError> {
    let [hot, cold, fresh] = Temperature::ALL.map(|temperature| sample.bytes(temperature));
    let judged = hot + cold + fresh;
    let (Some(scale), true) = (study.all_calls(sample), judged > 0.0) else { return Ok(Vec::new()) };
    let order = shuffled(sample.calls.len());
    let mut out: Vec<ColdShareGain> = Vec::new();
    for points in POINTS {
        let target = (cold + f64::from(points) / 100.0 * judged).clamp(0.0, hot + cold);
        let temperatures = changed(sample, &order, target - cold);
        let is_cold = |(temperature, call): (&Option<Temperature>, &Call)| {
            if *temperature == Some(Temperature::Cold) { float(call.bytes) } else { 0.0 }
        };
        let cold_share = temperatures.iter().zip(&sample.calls).map(is_cold).sum::<f64>() / judged;
        if out.iter().any(|known| known.cold_share == cold_share) {
            // All data is cold already, or none is.
            continue;
        }
        let costs: Vec<Cost> = sample
            .calls
            .iter()
            .zip(&temperatures)
            .map(|(call, temperature)| study.cost_at(call, *temperature))
            .collect();
        let (_, times) = sites::choose(study, sample, &costs, alone, ROUNDS)?;
        let off: f64 = costs.iter().map(|cost| cost.cpu_ns).sum::<f64>() * scale;
        let on: f64 = times.iter().sum::<f64>() * scale;
        out.push(ColdShareGain {
            points,
            cold_share,
            by_cpu_ns: off,
            offloaded_ns: on,
            saved_ns: off - on,
            gain_of_calls: ratio(off, on),
            gain_of_program: study.program_gain(sample, 0.0, off, on),
        });
    }
    out.sort_by_key(|share| share.points);
    Ok(out)
}

/// The temperatures of all calls after `bytes` of hot calls became cold, or the reverse if negative. A larger change
/// changes the calls of a smaller one, too.
fn changed(sample: &Sample, order: &[usize], bytes: f64) -> Vec<Option<Temperature>> {
    let mut temperatures: Vec<Option<Temperature>> = sample.calls.iter().map(|call| call.temperature).collect();
    let (from, to) =
        if bytes > 0.0 { (Temperature::Hot, Temperature::Cold) } else { (Temperature::Cold, Temperature::Hot) };
    let mut left = bytes.abs();
    for index in order.iter().copied().filter(|index| sample.calls[*index].temperature == Some(from)) {
        // The last call counts if more than half of it is needed.
        let size = float(sample.calls[index].bytes);
        if left <= size / 2.0 {
            break;
        }
        left -= size;
        temperatures[index] = Some(to);
    }
    temperatures
}

/// The numbers below `len` in a random order that is always the same.
fn shuffled(len: usize) -> Vec<usize> {
    let mut random = telpher_os::Random::new(1);
    let mut keys: Vec<(u64, usize)> = (0..len).map(|index| (random.next(), index)).collect();
    keys.sort_unstable();
    keys.into_iter().map(|(_, index)| index).collect()
}
