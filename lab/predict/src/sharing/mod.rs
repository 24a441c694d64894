//! Tenants that share devices: whether their bounds hold on a configuration, and the configuration with which they do.

pub mod tables;

use crate::run::models;
use crate::{PredictError, about_of};
use serde::Serialize;
use telpher_device::{Config, Preset};
use telpher_report::about::About;
use telpher_sim::tenants::{self, SharingChoice, Tenant, TenantOutcome, Tenants};
use telpher_sim::{LoadOutcome, Machine, Picos};

/// Tenants on configured devices, as serialised.
#[derive(Clone, Debug, Serialize)]
pub struct SharingResult {
    /// `advise tenants`, or `sim tenants`.
    pub kind: &'static str,
    /// The header of the result.
    #[serde(flatten)]
    pub about: About,
    /// All bounds hold.
    pub keeps: bool,
    /// The tenants.
    pub tenants: Vec<TenantNumbers>,
    /// What was chosen, if the configuration is advice.
    pub advice: Option<SharingAdvice>,
    /// The configuration, for `accel-config load-config`.
    pub accel_config: Vec<Config>,
}

/// How the configuration was found.
#[derive(Clone, Debug, Serialize)]
pub struct SharingAdvice {
    /// Number of simulated plans.
    pub simulated_plans: usize,
    /// The tenants with the defaults: one group of one device.
    pub by_default: Vec<TenantNumbers>,
    /// The settings that differ from the defaults.
    pub choices: Vec<ChoiceNumbers>,
}

/// One tenant.
#[derive(Clone, Debug, Serialize)]
pub struct TenantNumbers {
    /// Its name.
    pub name: String,
    /// Beside the others.
    pub beside: Throughput,
    /// Alone, with the same configuration.
    pub alone: Throughput,
    /// The throughput that it loses beside the others, in per cent.
    pub loss_percent: f64,
    /// The most latency that it accepts for 99 % of its operations.
    pub p99_limit_ns: Option<f64>,
    /// The most loss that it accepts.
    pub loss_limit_percent: Option<f64>,
    /// Its bounds hold.
    pub keeps: bool,
}

/// What a tenant has.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Throughput {
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// The latency that 99 % of its operations do not exceed; of fewer than a hundred, the longest.
    pub p99_ns: Option<f64>,
}

/// A setting, and the plan without it.
#[derive(Clone, Debug, Serialize)]
pub struct ChoiceNumbers {
    /// What is set: `largest transfer of bulk`.
    pub what: String,
    /// Its value.
    pub chosen: String,
    /// The default.
    pub default: String,
    /// What it does.
    pub why: &'static str,
    /// Without it, all bounds hold, too.
    pub keeps_without: bool,
    /// The tenants, in their order, with the default instead; empty if that is not possible.
    pub without: Vec<Throughput>,
    /// By tenant: the throughput that the setting costs it, in per cent of what it has with the default; negative if it
    /// gains. Empty as above.
    pub costs_percent: Vec<f64>,
}

/// Finds the configuration with which the bounds of all tenants hold and their throughput is best.
///
/// # Errors
/// If the machine lacks something, or the tenants do not fit into one group of a device.
pub fn advise(machine: &Machine, tenants: &Tenants) -> Result<SharingResult, PredictError> {
    let advice = tenants::advise(machine, Preset::default().capabilities(), tenants)?;
    let numbers = |outcomes: &[TenantOutcome]| numbers(&tenants.tenants, outcomes);
    let how = SharingAdvice {
        simulated_plans: advice.simulated,
        by_default: numbers(&advice.by_default),
        choices: advice.choices.iter().map(|choice| ChoiceNumbers::of(choice, &advice.tenants)).collect(),
    };
    Ok(SharingResult {
        kind: "advise tenants",
        about: about_of(machine),
        keeps: advice.keeps(),
        tenants: numbers(&advice.tenants),
        advice: Some(how),
        accel_config: advice.configs,
    })
}

/// Simulates tenants on a device. Each uses the queue with its name. A preset's device has one group with all engines,
/// and a queue for each tenant.
///
/// # Errors
/// If the name of the device or its file is not valid, a tenant has no queue, or the machine lacks something.
pub fn check(machine: &Machine, device: &str, tenants: &Tenants) -> Result<SharingResult, PredictError> {
    let (capabilities, devices) = models(device)?;
    let configs = match &devices {
        Some(devices) => devices.configs.clone(),
        None => tenants::defaults(machine, capabilities, tenants)?,
    };
    let outcomes =
        tenants::simulate(machine, capabilities, &configs, &tenants.tenants).map_err(|error| match &devices {
            Some(devices) => devices.at_line(error),
            None => error.into(),
        })?;
    Ok(SharingResult {
        kind: "sim tenants",
        about: about_of(machine),
        keeps: outcomes.iter().all(|outcome| outcome.keeps),
        tenants: numbers(&tenants.tenants, &outcomes),
        advice: None,
        accel_config: configs,
    })
}

fn numbers(tenants: &[Tenant], outcomes: &[TenantOutcome]) -> Vec<TenantNumbers> {
    let of = |(tenant, outcome): (&Tenant, &TenantOutcome)| TenantNumbers {
        name: outcome.name.clone(),
        beside: Throughput::of(&outcome.beside),
        alone: Throughput::of(&outcome.alone),
        loss_percent: outcome.loss_percent,
        p99_limit_ns: tenant.bound.p99.map(Picos::as_nanos_f64),
        loss_limit_percent: tenant.bound.loss_percent,
        keeps: outcome.keeps,
    };
    tenants.iter().zip(outcomes).map(of).collect()
}

impl Throughput {
    fn of(load: &LoadOutcome) -> Self {
        let p99_ns = tenants::p99(load).map(Picos::as_nanos_f64);
        Throughput { bytes_per_s: load.gigabytes_per_second() * 1e9, p99_ns }
    }
}

impl ChoiceNumbers {
    fn of(choice: &SharingChoice, advised: &[TenantOutcome]) -> Self {
        let cost = |(without, with): (&LoadOutcome, &TenantOutcome)| {
            100.0 * (1.0 - with.beside.gigabytes_per_second() / without.gigabytes_per_second())
        };
        let costs_percent = choice.without.iter().zip(advised).map(cost).collect();
        ChoiceNumbers {
            what: choice.what.clone(),
            chosen: choice.chosen.clone(),
            default: choice.default.clone(),
            why: choice.why,
            keeps_without: choice.keeps_without,
            without: choice.without.iter().map(Throughput::of).collect(),
            costs_percent,
        }
    }
}
