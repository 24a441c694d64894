//! Tenants on configured devices, in simulated time: beside each other, and each alone.

use super::tenant::Tenant;
use crate::machine::Machine;
use crate::picos::Picos;
use crate::places::BufferPlacement;
use crate::scenario::{Load, LoadOutcome, Scenario, ScenarioError, Workload};
use crate::workload::{Arrivals, ExecutedBy, QueueId, Stream};
use telpher_device::{Capabilities, Config, WqConfig, WqMode};

/// Operations of a tenant with a limit of latency that arrive in the simulated time. Source: chosen; twenty are then
/// slower than the 99th percentile.
const FOR_A_PERCENTILE: f64 = 2000.0;
/// How often what the tenants have in flight is done in the simulated time. Source: chosen.
const FOR_A_RATE: f64 = 10.0;
/// Least and most simulated seconds. Source: chosen; a hundred copies of 1 MiB by a device, and some seconds of
/// computing.
const SHORTEST: f64 = 0.004;
const LONGEST: f64 = 0.04;
/// Submissions of a thread: more than it can have done by the end.
const MANY: u64 = 100_000_000;
/// Most descriptors, or batches, in flight of a thread: the entries of a device's queues.
const MOST_IN_FLIGHT: u64 = 128;

/// A tenant's results. Every number is simulated.
#[derive(Clone, Debug)]
pub struct TenantOutcome {
    /// Its name.
    pub name: String,
    /// Beside the other tenants.
    pub beside: LoadOutcome,
    /// Alone, with the same configuration.
    pub alone: LoadOutcome,
    /// The throughput that it loses beside the others, in per cent.
    pub loss_percent: f64,
    /// Its bounds hold.
    pub keeps: bool,
}

/// Simulates tenants on devices with these configurations. Each tenant uses the queue that has its name.
///
/// # Errors
/// A tenant has no queue, the machine lacks something, or a device refuses something.
pub fn simulate(
    machine: &Machine,
    capabilities: Capabilities,
    configs: &[Config],
    tenants: &[Tenant],
) -> Result<Vec<TenantOutcome>, ScenarioError> {
    let run = Run { machine, capabilities, tenants };
    let beside = run.beside(configs)?;
    let outcome = |(number, beside): (usize, LoadOutcome)| -> Result<TenantOutcome, ScenarioError> {
        let tenant = &tenants[number];
        let alone = run.alone(configs, number)?;
        let loss_percent = loss_percent(&beside, &alone);
        let keeps = excess(tenant, &beside, Some(&alone)) == 0.0;
        Ok(TenantOutcome { name: tenant.work.name.clone(), beside, alone, loss_percent, keeps })
    };
    beside.into_iter().enumerate().map(outcome).collect()
}

/// The throughput that a tenant loses beside others, in per cent.
pub(super) fn loss_percent(beside: &LoadOutcome, alone: &LoadOutcome) -> f64 {
    100.0 * (1.0 - beside.gigabytes_per_second() / alone.gigabytes_per_second().max(f64::MIN_POSITIVE)).max(0.0)
}

/// The latency that 99 % of a tenant's operations do not exceed. Of fewer than a hundred it is the longest.
#[must_use]
pub fn p99(outcome: &LoadOutcome) -> Option<Picos> {
    (outcome.latencies.count() > 0).then(|| outcome.latencies.at(0.99))
}

/// How far a tenant's bounds are exceeded: 0 if they hold, 1 if a latency is twice its limit, or all throughput is lost
/// where none may be.
pub(super) fn excess(tenant: &Tenant, beside: &LoadOutcome, alone: Option<&LoadOutcome>) -> f64 {
    let late = |limit: Picos| p99(beside).map_or(f64::INFINITY, |p99| p99.as_secs_f64() / limit.as_secs_f64() - 1.0);
    let late = tenant.bound.p99.map_or(0.0, late);
    let loss = match (tenant.bound.loss_percent, alone) {
        (Some(limit), Some(alone)) => (loss_percent(beside, alone) - limit) / 100.0,
        _ => 0.0,
    };
    late.max(loss).max(0.0)
}

/// Tenants of a machine.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) machine: &'a Machine,
    pub(super) capabilities: Capabilities,
    pub(super) tenants: &'a [Tenant],
}

impl Run<'_> {
    /// The tenants beside each other, all for the same time.
    ///
    /// # Errors
    /// See [`simulate`].
    pub(super) fn beside(&self, configs: &[Config]) -> Result<Vec<LoadOutcome>, ScenarioError> {
        self.outcomes(configs, None)
    }

    /// A tenant alone, on the same devices.
    ///
    /// # Errors
    /// See [`simulate`].
    pub(super) fn alone(&self, configs: &[Config], tenant: usize) -> Result<LoadOutcome, ScenarioError> {
        Ok(self.outcomes(configs, Some(tenant))?.remove(0))
    }

    fn outcomes(&self, configs: &[Config], only: Option<usize>) -> Result<Vec<LoadOutcome>, ScenarioError> {
        let (machine, capabilities) = (self.machine.clone(), self.capabilities);
        let mut scenario = Scenario { machine, capabilities, devices: configs.to_vec(), loads: Vec::new() };
        for (number, tenant) in self.tenants.iter().enumerate() {
            if only.is_none_or(|only| only == number) {
                scenario.loads.push(load(tenant, configs)?);
            }
        }
        let time = self.time();
        let loads = scenario.simulate_until(Some(time))?.loads;
        match loads.iter().find(|load| load.latencies.count() == 0) {
            None => Ok(loads),
            Some(load) => {
                let milliseconds = time.as_secs_f64() * 1e3;
                let what = format!(
                    "none of its operations ended in {milliseconds} ms of simulated time; give shorter operations, \
                     fewer in flight, or a higher rate"
                );
                Err(ScenarioError::Load { load: load.name.clone(), what })
            }
        }
    }

    /// The simulated time: enough for each tenant's percentile and throughput.
    #[allow(clippy::cast_precision_loss, reason = "a time that is chosen")]
    fn time(&self) -> Picos {
        let costs = &self.machine.device;
        let slowest = costs.read.min(costs.write).min(costs.through).max(1) as f64;
        let in_flight = |Tenant { work, batch, .. }: &Tenant| {
            f64::from(work.threads) * f64::from(work.in_flight.max(*batch)) * f64::from(work.size)
        };
        let for_rates = FOR_A_RATE * self.tenants.iter().map(in_flight).sum::<f64>() / slowest;
        let seconds = |tenant: &Tenant| tenant.work.rate.map_or(0.0, |rate| FOR_A_PERCENTILE / rate.max(1) as f64);
        let longest = self.tenants.iter().map(seconds).fold(for_rates.max(SHORTEST), f64::max);
        Picos::from_nanos_f64(longest.min(LONGEST) * 1e9)
    }
}

/// The load of a tenant on the queue with its name.
fn load(tenant: &Tenant, configs: &[Config]) -> Result<Load, ScenarioError> {
    let work = &tenant.work;
    let wrong = |what: String| ScenarioError::Load { load: work.name.clone(), what };
    let (device, queue) = queue_of(&work.name, configs)
        .ok_or_else(|| wrong(format!("no queue of the devices has the name {}", work.name)))?;
    let wq = queue.dev.rsplit('.').next().and_then(|number| number.parse().ok());
    let wq = wq.ok_or_else(|| wrong(format!("its queue is {}, not of the form wq0.1", queue.dev)))?;
    let most = u32::try_from(queue.max_transfer_size.next_power_of_two()).unwrap_or(u32::MAX);
    if tenant.bound.p99.is_some() && work.size > most {
        let what = format!("its operations of {} bytes exceed max_transfer_size of {}, {most}", work.size, queue.dev);
        return Err(wrong(what));
    }
    let shared = queue.mode == WqMode::Shared;
    if work.threads > 1 && !shared {
        let what = format!("its {} threads need a shared queue, and {} is dedicated", work.threads, queue.dev);
        return Err(wrong(what));
    }
    let by = ExecutedBy::Device(QueueId { device, wq, shared });
    // Longer operations are submitted in pieces, longer batches as several.
    let size = work.size.min(most);
    let pieces = u64::from(work.size.div_ceil(size));
    let batch = tenant.batch.min(queue.max_batch_size.next_power_of_two());
    let depth = (u64::from(work.in_flight) * pieces / u64::from(batch)).clamp(1, MOST_IN_FLIGHT);
    let rate = |rate: u64| Arrivals::Poisson((rate * pieces / u64::from(batch)).max(1));
    let stream = Stream {
        // At most 128.
        depth: u32::try_from(depth).unwrap_or(1),
        batch,
        submissions: MANY,
        arrivals: work.rate.map_or(Arrivals::Closed, rate),
        by,
        src: BufferPlacement::on(work.src),
        dst: BufferPlacement::on(work.dst),
        cache_control: work.read_soon,
        ..Stream::of(work.op, size)
    };
    let queues = vec![QueueId { device, wq, shared }];
    Ok(Load { name: work.name.clone(), threads: work.threads, what: Workload::Stream(stream), queues, expect: None })
}

/// The queue with a name, and the number of its device.
fn queue_of<'a>(name: &str, configs: &'a [Config]) -> Option<(u16, &'a WqConfig)> {
    let queues = (0..).zip(configs).flat_map(|(device, config)| {
        config.groups.iter().flat_map(move |group| group.grouped_workqueues.iter().map(move |queue| (device, queue)))
    });
    let mut named = queues.filter(|(_, queue)| queue.name.as_deref() == Some(name));
    named.next()
}
