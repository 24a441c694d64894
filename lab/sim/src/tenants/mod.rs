//! Tenants of the same devices, each with a bound on the interference that it accepts.
//!
//! ```text
//! Tenants ──► SharingPlan (groups, queues and their limits) ──► configurations ──simulate──► TenantOutcome
//!               ▲ starts from every place of the tenants; turns the knobs one after the other, keeps the best plan
//!               │ until nothing improves; then turns back each knob that is not needed
//! ```
//!
//! A plan is better if its bounds hold, or are exceeded by less; of plans whose bounds hold, if the geometric mean of
//! the tenants' throughput is higher.

mod knobs;
mod plan;
mod run;
mod tenant;
#[cfg(test)]
mod tests;

use crate::advise::WORTH;
use crate::machine::Machine;
use crate::scenario::{LoadOutcome, ScenarioError};
use knobs::{Context, KNOBS, Knob, Per};
use plan::SharingPlan;
use run::Run;
pub use run::{TenantOutcome, p99, simulate};
use telpher_device::{Capabilities, Config};
pub use tenant::{Bound, Tenant, Tenants};

/// Rounds over all knobs. Source: chosen; nothing improved after the third in all tried cases.
const ROUNDS: usize = 4;

/// A setting that differs from the driver's default, and the plan without it.
#[derive(Clone, Debug)]
pub struct SharingChoice {
    /// What is set, with the tenant or the group: `largest transfer of bulk`.
    pub what: String,
    /// Its value.
    pub chosen: String,
    /// The default.
    pub default: String,
    /// What it does.
    pub why: &'static str,
    /// The tenants' results with the default instead, all else as advised; empty if no device can be configured so.
    pub without: Vec<LoadOutcome>,
    /// Without it, all bounds hold, too.
    pub keeps_without: bool,
}

/// Advice for tenants. All numbers are simulated.
#[derive(Clone, Debug)]
pub struct SharingAdvice {
    /// Configurations of the devices in use; the queues have the tenants' names.
    pub configs: Vec<Config>,
    /// The settings that differ from the defaults.
    pub choices: Vec<SharingChoice>,
    /// The tenants with the advised configuration.
    pub tenants: Vec<TenantOutcome>,
    /// The tenants with the defaults: one group of one device.
    pub by_default: Vec<TenantOutcome>,
    /// Plans that were simulated.
    pub simulated: usize,
}

impl SharingAdvice {
    /// True if the bounds of all tenants hold.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.tenants.iter().all(|tenant| tenant.keeps)
    }
}

/// How good a plan is.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Score {
    /// By how much bounds are exceeded; 0 if they hold.
    excess: f64,
    /// The geometric mean of the tenants' throughput.
    throughput: f64,
}

impl Score {
    /// True if the difference is worth another setting.
    fn is_better_than(self, other: Score) -> bool {
        if self.excess > 0.0 || other.excess > 0.0 {
            return self.excess * WORTH < other.excess;
        }
        self.throughput > other.throughput * WORTH
    }
}

/// A search in progress.
struct Search<'a> {
    run: Run<'a>,
    context: Context<'a>,
    /// Simulated plans and their scores; `None` if a plan is not possible.
    tried: Vec<(SharingPlan, Option<Score>)>,
}

/// Finds the configuration with which the bounds of all tenants hold, and their throughput is best; or, if there is
/// none, with which the bounds are exceeded by least.
///
/// # Errors
/// The machine lacks something, a device refuses the operations, or has too few queues.
pub fn advise(
    machine: &Machine,
    capabilities: Capabilities,
    tenants: &Tenants,
) -> Result<SharingAdvice, ScenarioError> {
    let run = Run { machine, capabilities, tenants: &tenants.tenants };
    let context = Context { capabilities: &capabilities, tenants };
    let mut search = Search { run, context, tried: Vec::new() };
    let configs = defaults(machine, capabilities, tenants)?;
    let by_default = simulate(machine, capabilities, &configs, &tenants.tenants)?;
    let plan = search.best(SharingPlan::plain(tenants));
    let choices = search.choices(&plan);
    let configs = search.configs(&plan).unwrap_or_default();
    let outcomes = simulate(machine, capabilities, &configs, &tenants.tenants)?;
    let simulated = search.tried.iter().filter(|(_, score)| score.is_some()).count();
    Ok(SharingAdvice { configs, choices, tenants: outcomes, by_default, simulated })
}

/// The configuration without advice: one group of one device with all engines, a queue for each tenant, and the
/// driver's defaults.
///
/// # Errors
/// A device has too few queues.
pub fn defaults(
    machine: &Machine,
    capabilities: Capabilities,
    tenants: &Tenants,
) -> Result<Vec<Config>, ScenarioError> {
    SharingPlan::plain(tenants).configs(machine, &capabilities, tenants).ok_or_else(|| {
        let (count, queues) = (tenants.tenants.len(), capabilities.wq_cap.queues());
        let load = tenants.tenants.first().map(|tenant| tenant.work.name.clone()).unwrap_or_default();
        ScenarioError::Load { load, what: format!("{count} tenants need a queue each, and a device has {queues}") }
    })
}

impl Search<'_> {
    fn configs(&self, plan: &SharingPlan) -> Option<Vec<Config>> {
        plan.configs(self.run.machine, self.context.capabilities, self.context.tenants)
    }

    /// The results of a plan beside each other; `None` if it is not possible.
    fn outcomes(&self, plan: &SharingPlan) -> Option<(Vec<Config>, Vec<LoadOutcome>)> {
        let configs = self.configs(plan)?;
        let outcomes = self.run.beside(&configs).ok()?;
        Some((configs, outcomes))
    }

    /// The score of a plan; `None` if it is not possible.
    fn try_out(&mut self, plan: &SharingPlan) -> Option<Score> {
        if let Some((_, score)) = self.tried.iter().find(|(tried, _)| tried == plan) {
            return *score;
        }
        let score = self.outcomes(plan).map(|(configs, outcomes)| self.score(&configs, &outcomes));
        self.tried.push((plan.clone(), score));
        score
    }

    fn score(&self, configs: &[Config], outcomes: &[LoadOutcome]) -> Score {
        let mut score = Score { excess: 0.0, throughput: 0.0 };
        let mut logarithms = 0.0;
        for (number, (tenant, beside)) in self.run.tenants.iter().zip(outcomes).enumerate() {
            // Alone only if a bound needs it.
            let alone = tenant.bound.loss_percent.and_then(|_| self.run.alone(configs, number).ok());
            score.excess += run::excess(tenant, beside, alone.as_ref());
            logarithms += beside.gigabytes_per_second().max(f64::MIN_POSITIVE).ln();
        }
        #[allow(clippy::cast_precision_loss, reason = "a few tenants")]
        let count = outcomes.len().max(1) as f64;
        score.throughput = (logarithms / count).exp();
        score
    }

    /// All knobs of a plan, each with the group or the queue that it belongs to.
    fn turns(plan: &SharingPlan) -> Vec<(&'static Knob, usize)> {
        let count = |per| match per {
            Per::Plan => 1,
            Per::Group => plan.groups.len(),
            Per::Queue => plan.queues.len(),
        };
        KNOBS.iter().flat_map(|knob| (0..count(knob.per)).map(move |at| (knob, at))).collect()
    }

    /// The best plan found.
    fn best(&mut self, plain: SharingPlan) -> SharingPlan {
        let places = (KNOBS[0].choices)(self.context, &plain, 0);
        let mut best: Option<(SharingPlan, Score)> = None;
        // The plainer places first: another one must be better.
        for place in places {
            if let Some((plan, score)) = self.improve(place)
                && best.as_ref().is_none_or(|(_, known)| score.is_better_than(*known))
            {
                best = Some((plan, score));
            }
        }
        match best {
            Some((plan, score)) => self.simplify(plan, score),
            None => plain,
        }
    }

    /// Turns knobs until nothing improves; `None` if the plan is not possible.
    fn improve(&mut self, mut plan: SharingPlan) -> Option<(SharingPlan, Score)> {
        let mut best = self.try_out(&plan)?;
        for _ in 0..ROUNDS {
            let before = plan.clone();
            for (knob, at) in Search::turns(&plan).into_iter().filter(|(knob, _)| knob.per != Per::Plan) {
                for candidate in (knob.choices)(self.context, &plan, at) {
                    if let Some(score) = self.try_out(&candidate)
                        && score.is_better_than(best)
                    {
                        (plan, best) = (candidate, score);
                    }
                }
            }
            if plan == before {
                break;
            }
        }
        Some((plan, best))
    }

    /// Turns knobs back to their defaults while the plan stays as good.
    fn simplify(&mut self, mut plan: SharingPlan, best: Score) -> SharingPlan {
        loop {
            let before = plan.clone();
            for (knob, at) in Search::turns(&plan).into_iter().filter(|(knob, _)| knob.per != Per::Plan) {
                for simpler in (knob.choices)(self.context, &plan, at) {
                    if simpler == plan {
                        break;
                    }
                    if self.try_out(&simpler).is_some_and(|score| !best.is_better_than(score)) {
                        plan = simpler;
                        break;
                    }
                }
            }
            // A knob that is turned back can make another one needless.
            if plan == before {
                return plan;
            }
        }
    }

    /// The settings of a plan that differ from the defaults, each with the results of the plan without it.
    fn choices(&mut self, plan: &SharingPlan) -> Vec<SharingChoice> {
        let mut choices = Vec::new();
        for (knob, at) in Search::turns(plan) {
            let Some(default) = (knob.choices)(self.context, plan, at).into_iter().next() else { continue };
            if default == *plan {
                continue;
            }
            let (keeps_without, without) = match self.outcomes(&default) {
                Some((configs, outcomes)) => (self.score(&configs, &outcomes).excess == 0.0, outcomes),
                None => (false, Vec::new()),
            };
            let name = |tenant: usize| self.run.tenants[tenant].work.name.clone();
            let whose = match knob.per {
                Per::Plan => String::new(),
                Per::Group => format!(" of {}", plan.members(at).map(name).collect::<Vec<_>>().join(" and ")),
                Per::Queue => format!(" of {}", name(at)),
            };
            choices.push(SharingChoice {
                what: format!("{}{whose}", knob.what),
                chosen: (knob.describe)(self.context, plan, at),
                default: (knob.describe)(self.context, &default, at),
                why: knob.why,
                without,
                keeps_without,
            });
        }
        choices
    }
}
