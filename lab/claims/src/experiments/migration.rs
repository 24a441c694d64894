//! Baik et al.: pages moved by the kernel, on a machine with one device a socket.

use super::measure::three;
use super::vhost::measured;
use super::{Experiment, Found};
use crate::lab::Lab;
use crate::setups::on;
use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_sim::{App, By, Lane, Migration, Offload, Promotion, Ps, Scenario, ScenarioError, Stream, What};

type Result<T = Found> = std::result::Result<T, ScenarioError>;

pub(super) const ALL: &[(&str, Experiment)] =
    &[("P-010", break_even), ("P-012", compaction), ("P-013", promotion), ("P-015", engines_of_their_own)];

const KERNEL: Lane = Lane { device: 0, wq: 0, shared: false };

fn machine() -> Scenario {
    on("gold-6430", 1, WqMode::Dedicated, 1)
}

fn of(lab: &Lab, app: App, measure: &str) -> Result<f64> {
    Ok(measured(&*lab.run(&machine().with("kernel", 1, What::App(app)))?, measure))
}

/// Time of the copies of one call, by the core over by the device.
fn gain(lab: &Lab, pages: u32) -> Result<f64> {
    let time = |offload| {
        let calls = Migration { together: pages, pages: 64 * u64::from(pages), offload, ..Migration::compacting() };
        of(lab, App::Migration(calls), "copies of a call")
    };
    Ok(time(None)? / time(Some(Offload { above: 0, lane: KERNEL }))?)
}

fn break_even(lab: &Lab) -> Result {
    // The most pages for which the core is not slower.
    let (mut core, mut device) = (1, 1024);
    while device - core > 1 {
        let middle = u32::midpoint(core, device);
        *(if gain(lab, middle)? > 1.0 { &mut device } else { &mut core }) = middle;
    }
    Ok(Found::Number(core.into()))
}

fn compaction(lab: &Lab) -> Result {
    let time = |migration| of(lab, App::Migration(migration), "migration");
    Ok(Found::Number(time(Migration::compacting())? / time(Migration::compacting().by(KERNEL))?))
}

fn promotion(lab: &Lab) -> Result {
    // Neither how slow the slow tier was nor how long the program ran is printed: the most that any of them gains.
    let mut best = 0.0_f64;
    let migration = Migration { pages: 1 << 15, to: 1, ..Migration::compacting() };
    for slow_percent in [200, 300, 400] {
        for millis in [25, 50, 100, 200] {
            let time = |migration| {
                let work = Ps::from_nanos(millis * 1_000_000);
                of(lab, App::Promotion(Promotion { work, slow_percent, migration }), "execution")
            };
            best = best.max(time(migration)? / time(migration.by(KERNEL))? - 1.0);
        }
    }
    Ok(Found::Number(best * 100.0))
}

/// The kernel's and a user's copies, GB/s, in one group of one engine or each in its own.
fn together(lab: &Lab, groups: u32) -> Result<(f64, f64)> {
    let group = |number: u32| {
        let mut of = Config::single(WqMode::Dedicated, 64, 1).groups.remove(0);
        of.dev = format!("group0.{number}");
        of.grouped_workqueues[0].dev = format!("wq0.{number}");
        of.grouped_engines[0].dev = format!("engine0.{number}");
        of
    };
    let mut config = Config::of_groups((0..2).map(group).collect());
    if groups == 1 {
        let other = config.groups.remove(1);
        config.groups[0].grouped_workqueues.extend(other.grouped_workqueues);
    }
    let user = By::Device(Lane { wq: 1, ..KERNEL });
    let user = Stream { by: user, depth: 32, submissions: 20_000, ..Stream::of(Opcode::MemoryMove, 1024) };
    let kernel = Migration { besides: Ps::ZERO, ..Migration::compacting() }.by(KERNEL);
    let mut scenario =
        machine().with("kernel", 1, What::App(App::Migration(kernel))).with("user", 1, What::Stream(user));
    scenario.devices = vec![config];
    let outcome = lab.run(&scenario)?;
    Ok((measured(&outcome, "moved"), outcome.loads[1].gigabytes_per_second()))
}

fn engines_of_their_own(lab: &Lab) -> Result {
    let (shared, own) = (together(lab, 1)?, together(lab, 2)?);
    Ok(Found::shape(
        own.0 + own.1 >= shared.0 + shared.1 && own.1 >= shared.1,
        format!(
            "kernel and user, GB/s: an engine each {} and {}, one for both {} and {}",
            three(own.0),
            three(own.1),
            three(shared.0),
            three(shared.1)
        ),
    ))
}
