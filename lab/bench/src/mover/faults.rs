//! Reactions to page faults: copies into memory with absent pages, under each fault policy.
//!
//! The model checks the page tables and faults like hardware without Block On Fault. With Block On Fault it asks the
//! operating system for the page and waits. "All pages missing" is memory fresh from the operating system; "one page
//! missing" stands for memory after its first use. The pages are discarded before each copy under every policy, so all
//! policies pay for that.

use super::Experiment;
use super::interleaved::{InterleavedLoad, rates, ratio};
use crate::BenchError;
use crate::buffers::fill_known;
use crate::goal::Row;
use crate::measure::median;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use telpher_device::{Config, ModelDevice, ModelOptions, Residency, WqMode};
use telpher_mem::{PageSize, Region};
use telpher_mover::{Mover, OnFault, Policy, Threshold};
use telpher_portal::Portal;
use telpher_report::machine::Machine;
use telpher_report::units;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "faults",
    question: "Which reaction to absent pages is best: finish on the CPU, touch and continue, or let the device wait?",
    cores: 1,
    weight: 1.0,
    measure,
};

/// Pages in a copy.
const PAGES: usize = 64;
const PAGE: usize = 4 << 10;
const BYTES: usize = PAGES * PAGE;
/// The absent ranges: all pages, and one page in the middle.
const MISSING: [(&str, Range<usize>); 2] =
    [("all pages missing", 0..BYTES), ("one page of 64 missing", BYTES / 2..BYTES / 2 + PAGE)];
/// The policies; the others are compared with the first.
const POLICIES: [(&str, OnFault); 3] = [
    ("finished on the CPU", OnFault::FinishOnCpu),
    ("touched and sent again", OnFault::TouchAndResubmit { limit: 4 }),
    ("waited for by the device", OnFault::Block),
];

/// One policy, and buffers whose range `missing` is discarded before each copy.
struct FaultCase {
    mover: Mover,
    missing: Range<usize>,
    /// Source and destination; `None` while a copy runs.
    buffers: Option<(Vec<u8>, Region)>,
}

impl FaultCase {
    fn new(portal: &Arc<dyn Portal>, on_fault: OnFault, missing: Range<usize>) -> Result<Self, BenchError> {
        let policy = Policy { on_fault, threshold: Threshold::DEVICE, ..Policy::default() };
        let mut src = vec![0; BYTES];
        fill_known(&mut src, 1);
        let dst = Region::new(BYTES, PageSize::Small)?;
        Ok(FaultCase { mover: Mover::new([Arc::clone(portal)], policy), missing, buffers: Some((src, dst)) })
    }

    fn copy(&mut self) -> Result<u64, BenchError> {
        let (src, mut dst) = self.buffers.take().expect("the buffers came back");
        dst.discard(self.missing.clone())?;
        let (result, src, dst) = self.mover.copy(src, dst).wait().into_parts();
        self.buffers = Some((src, dst));
        EXPERIMENT.done(result).map(|()| 1)
    }

    fn check(&self) -> Result<(), BenchError> {
        let (src, dst) = self.buffers.as_ref().expect("the buffers came back");
        EXPERIMENT.arrived(src, dst)
    }
}

/// Creates an inline device that faults on absent pages, and returns its queue.
fn queue() -> Result<Arc<dyn Portal>, BenchError> {
    let options = ModelOptions::default().with_config(Config::single(WqMode::Shared, 64, 1));
    let device = ModelDevice::start(options.with_residency(Residency::Strict));
    let device = device.map_err(|source| BenchError::Start { name: "model:spr".into(), source })?;
    Ok(device.portal("wq0.0")?)
}

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let portal = queue()?;
    let mut rows = Vec::new();
    for (what, missing) in MISSING {
        let side = |(_, on_fault)| FaultCase::new(&portal, on_fault, missing.clone());
        let sides = POLICIES.into_iter().map(side).collect::<Result<Vec<_>, _>>()?;
        let mut sides: Vec<_> =
            sides.into_iter().map(|side| InterleavedLoad { states: vec![side], step: &FaultCase::copy }).collect();
        let seen = rates(machine, time / 2, &mut sides)?;
        sides.iter().flat_map(|side| &side.states).try_for_each(FaultCase::check)?;
        let took = |side: usize| units::time(1e9 / median(&mut seen[side].clone()));
        for (number, (name, _)) in POLICIES.into_iter().enumerate().skip(1) {
            rows.push(Row::new(
                format!("{} copies, {what}: {name}, against {}", units::size(BYTES as u64), POLICIES[0].0),
                ratio(&seen[number], &seen[0]),
                "of its speed",
                None,
                format!("one at a time, inline, strict residency; {} against {} a copy", took(number), took(0)),
            ));
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_mover::Via;

    #[test]
    fn each_policy_handles_absent_pages_as_documented() {
        let portal = queue().unwrap();
        for (_, missing) in MISSING {
            for (_, on_fault) in POLICIES {
                let mut side = FaultCase::new(&portal, on_fault, missing.clone()).unwrap();
                side.copy().unwrap();
                side.check().unwrap();
                let (src, mut dst) = side.buffers.take().unwrap();
                dst.discard(missing.clone()).unwrap();
                let done = side.mover.copy(src, dst).wait();
                assert_eq!(done.via != Via::Device, on_fault == OnFault::FinishOnCpu, "{on_fault:?}: {:?}", done.via);
            }
        }
    }
}
