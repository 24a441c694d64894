//! A No-op through the inline model: without counts, with totals, and while a reader has subscribed to times.

use crate::BenchError;
use crate::ffi;
use crate::goal::{Goal, Row};
use crate::interleaved::{InterleavedLoad, rates_by_both, ratio};
use crate::measure::median;
use crate::questions::Experiment;
use std::sync::Arc;
use std::time::Duration;
use telpher_device::{Config, CountsIn, ModelDevice, ModelOptions, WqMode};
use telpher_os::monotonic_ns;
use telpher_portal::{Offer, Portal, RecordCell, Submission};
use telpher_report::machine::Machine;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "noop",
    question: "What do totals and recorded times cost a No-op?",
    cores: 1,
    weight: 1.0,
    measure,
};

/// Most time of a No-op with totals by that without, and while a reader has subscribed. Source: goals of telemetry.
const TOTALS: f64 = 1.05;
const TIMES: f64 = 1.5;
/// No-ops of a step.
const STEP: u64 = 64;

/// A device that counts in one way.
struct Counted {
    device: ModelDevice,
    portal: Arc<dyn Portal>,
    record: &'static RecordCell,
    nop: Submission,
    is_subscribed: bool,
}

impl Counted {
    fn start(counts: CountsIn, is_subscribed: bool) -> Result<Counted, BenchError> {
        let options = ModelOptions::default().with_config(Config::single(WqMode::Dedicated, 16, 1)).with_counts(counts);
        let device =
            ModelDevice::start(options).map_err(|source| BenchError::Start { name: "the model".into(), source })?;
        let portal = device.portal("wq0.0")?;
        // Leaked: the executing thread may access it at any time.
        let record: &'static RecordCell = Box::leak(Box::default());
        Ok(Counted { device, portal, record, nop: ffi::nop(record), is_subscribed })
    }

    fn step(&mut self) -> Result<u64, BenchError> {
        if let Some(counts) = self.device.counts().filter(|_| self.is_subscribed) {
            // As a reader does; the subscription ends ten seconds later.
            let now = monotonic_ns();
            counts.subscription().renew(now.saturating_add(telpher_device::LONGEST_NS), now);
        }
        for _ in 0..STEP {
            self.record.clear();
            while self.portal.offer(&self.nop) == Offer::Retry {}
            while self.record.status().is_none() {
                self.portal.drive();
            }
        }
        Ok(STEP)
    }
}

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let kinds = [(CountsIn::Nowhere, false), (CountsIn::Own, false), (CountsIn::Own, true)];
    let step = |counted: &mut Counted| counted.step();
    let mut contestants = Vec::new();
    for (counts, is_subscribed) in kinds {
        contestants.push(InterleavedLoad { states: vec![Counted::start(counts, is_subscribed)?], step: &step });
    }
    // By CPU time: another program that takes the core for a while does not count.
    let seen = rates_by_both(machine, time, &mut contestants)?;
    let seen: Vec<Vec<f64>> = seen.into_iter().map(|seen| seen.into_iter().map(|rate| rate.cpu).collect()).collect();
    for contestant in &contestants {
        let counted = &contestant.states[0];
        let totals = counted.device.counts().map(telpher_device::DeviceCounts::totals);
        // What is measured is counting, so it must have counted: every No-op, and times if they were wanted.
        let is_right = match totals {
            None => true,
            Some(totals) => totals.all().descriptors > STEP && totals.times(0).is_some() == counted.is_subscribed,
        };
        if !is_right {
            return Err(BenchError::Wrong { op: "noop".into(), route: "the counted model".into() });
        }
    }
    Ok(rows_of(&seen))
}

fn rows_of(seen: &[Vec<f64>]) -> Vec<Row> {
    let ns = |at: usize| 1e9 / median(&mut seen[at].clone());
    let how = format!("CPU time until its record is seen; median of {} turns", seen[0].len());
    let against = "times the one without counts, by CPU time; median over the turns, which alternate";
    vec![
        Row::new("No-op without counts", ns(0), "ns", None, how.as_str()),
        Row::new("No-op with totals", ns(1), "ns", None, how.as_str()),
        Row::new("No-op with recorded times", ns(2), "ns", None, how.as_str()),
        Row::new("totals", ratio(&seen[0], &seen[1]), "of the time", Some(Goal::AtMost(TOTALS)), against),
        Row::new("recorded times", ratio(&seen[0], &seen[2]), "of the time", Some(Goal::AtMost(TIMES)), against),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_times_by_that_without_counts() {
        let rows = rows_of(&[vec![1e7; 3], vec![0.99e7; 3], vec![0.5e7; 3]]);
        assert_eq!((rows[0].measured, rows[4].measured), (100.0, 2.0));
        assert_eq!([3, 4].map(|at| rows[at].reached()), [true, false]);
    }

    #[test]
    fn all_kinds_count_what_they_should() {
        let rows = measure(&Machine::read(), Duration::from_millis(20)).unwrap();
        assert!(rows.iter().all(|row| row.measured > 0.0), "{rows:?}");
    }
}
