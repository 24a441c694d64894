//! The best policy: for each call site CPU or device, whichever takes less time.

use super::costs::{float, ratio};
use super::sample::{Cost, Execution, Sample};
use super::study::{Policy, PredictionInput};
use crate::PredictError;
use telpher_recording::{Site, Temperature};
use telpher_report::prediction::SitePolicy;

/// A device must be better by this factor; otherwise the CPU keeps the calls. Source: chosen; smaller differences are
/// below the error of the simulation.
const WORTH: f64 = 1.02;

/// A call site keeps the CPU if more than one in this many of its calls is fresh. Source: the rule for the offload
/// library; a fault costs about as much as a device saves.
const MOST_FRESH: u64 = 10;

/// Sums over the replayed calls of one call site.
#[derive(Clone, Copy, Default, Debug)]
struct SiteSum {
    calls: u64,
    bytes: f64,
    cold_bytes: f64,
    cpu_ns: f64,
    device_ns: f64,
    /// Calls that may be offloaded, and fresh ones.
    offloadable: u64,
    fresh: u64,
}

/// Sums by site, with these times of calls by devices; the last one is for calls whose site is not recorded.
fn sums(study: &PredictionInput<'_>, sample: &Sample, costs: &[Cost], by_device: &[f64]) -> Vec<SiteSum> {
    let mut sums = vec![SiteSum::default(); study.recording.sites.len() + 1];
    let unknown = sums.len() - 1;
    for ((call, cost), took) in sample.calls.iter().zip(costs).zip(by_device) {
        let sum = &mut sums[call.site.unwrap_or(unknown).min(unknown)];
        sum.calls += 1;
        sum.bytes += float(call.bytes);
        sum.cold_bytes += if cost.temperature == Some(Temperature::Cold) { float(call.bytes) } else { 0.0 };
        sum.fresh += u64::from(cost.temperature == Some(Temperature::Fresh));
        sum.offloadable += u64::from(study.is_offloadable(call.operation, call.bytes));
        sum.cpu_ns += cost.cpu_ns;
        sum.device_ns += took;
    }
    sums
}

impl SiteSum {
    fn is_better_by_device(&self) -> bool {
        self.offloadable > 0 && self.fresh * MOST_FRESH <= self.calls && self.cpu_ns > self.device_ns * WORTH
    }
}

/// Chooses the policy, and returns it and the times of the calls with it. `alone` are the times of calls by a device
/// without other calls.
///
/// It begins with all sites that gain while no others use the devices. As long as sites lose in a replay, because
/// devices are busy, the one that loses most goes back to the CPU; after `rounds`, all that lose do.
pub(super) fn choose(
    study: &PredictionInput<'_>,
    sample: &Sample,
    costs: &[Cost],
    alone: &[f64],
    rounds: u32,
) -> Result<(Policy, Vec<f64>), PredictError> {
    let gains = sums(study, sample, costs, alone).iter().map(SiteSum::is_better_by_device).collect();
    let mut policy = Policy(gains);
    for round in 0.. {
        let replayed = study
            .simulate(sample, |index, call| Execution { cost: costs[index], by_device: policy.is_device(call.site) })?;
        let times = sample.times(&replayed);
        let sums = sums(study, sample, costs, &times);
        let mut losing: Vec<(f64, usize)> = sums
            .iter()
            .enumerate()
            .filter(|(site, sum)| policy.0[*site] && sum.cpu_ns < sum.device_ns)
            .map(|(site, sum)| (sum.cpu_ns / sum.device_ns, site))
            .collect();
        if losing.is_empty() {
            return Ok((policy, times));
        }
        losing.sort_by(|a, b| a.0.total_cmp(&b.0));
        losing.truncate(if round < rounds { 1 } else { usize::MAX });
        losing.into_iter().for_each(|(_, site)| policy.0[site] = false);
    }
    unreachable!("each round takes a site away, and a replay without any has none that loses")
}

/// Describes the policy of each site, by the time that it saves in all long calls.
pub(super) fn describe(
    study: &PredictionInput<'_>,
    (part, costs): (&Sample, &[Cost]),
    (alone, with_policy): (&[f64], &[f64]),
    policy: &Policy,
    (full, took): (&Sample, &[f64]),
) -> Vec<SitePolicy> {
    let without_others = sums(study, part, costs, alone);
    let with_others = sums(study, part, costs, with_policy);
    let mut saved = vec![0.0; study.recording.sites.len()];
    for (call, took) in full.calls.iter().zip(took) {
        if let Some(saved) = call.site.and_then(|site| saved.get_mut(site)) {
            *saved += study.cost(call).cpu_ns - took;
        }
    }
    let all_calls = study.all_calls(full).unwrap_or(0.0);
    let of = |(index, site): (usize, &Site)| {
        let is_device = policy.is_device(Some(index));
        let sum = if is_device { with_others[index] } else { without_others[index] };
        let module = site.module.and_then(|module| study.recording.modules.get(module));
        let calls = float(sum.calls);
        SitePolicy {
            module: module.map(|module| module.path.clone()),
            build_id: module.map(|module| module.build_id.clone()).unwrap_or_default(),
            offset: site.offset,
            function: None,
            calls: site.calls,
            bytes: site.bytes,
            replayed_calls: sum.calls,
            cold_share: ratio(sum.cold_bytes, sum.bytes),
            cpu_ns: ratio(sum.cpu_ns, calls),
            device_ns: ratio(sum.device_ns, calls).filter(|_| sum.offloadable > 0),
            by: if is_device { "device" } else { "cpu" },
            gain: ratio(sum.cpu_ns, sum.device_ns).filter(|_| sum.offloadable > 0),
            saved_ns: if is_device { saved[index] * all_calls } else { 0.0 },
        }
    };
    let mut policies: Vec<SitePolicy> = study.recording.sites.iter().enumerate().map(of).collect();
    policies.sort_by(|a, b| b.saved_ns.total_cmp(&a.saved_ns).then(b.bytes.cmp(&a.bytes)));
    policies
}
