//! Baik et al.: pages moved by the kernel, on a machine with one device a socket.

use super::measure::three;
use super::vhost::measured;
use super::{Experiment, Found};
use crate::lab::Lab;
use crate::setups::on;
use telpher_abi::Opcode;
use telpher_device::{Config, WqMode};
use telpher_sim::{
    App, ExecutedBy, LoadOutcome, Migration, MigrationOffload, Picos, Promotion, QueueId, Scenario, ScenarioError,
    Stream, Workload,
};

type Result<T = Found> = std::result::Result<T, ScenarioError>;

pub(super) const ALL: &[(&str, Experiment)] =
    &[("P-010", break_even), ("P-012", compaction), ("P-013", promotion), ("P-015", engines_of_their_own)];

pub(crate) const KERNEL: QueueId = QueueId { device: 0, wq: 0, shared: false };

/// One device with one engine, of the machine's two.
fn machine() -> Scenario {
    on("gold-6430", 1, WqMode::Dedicated, 1)
}

pub(crate) fn of(lab: &Lab, app: App, measure: &str) -> Result<f64> {
    Ok(measured(&*lab.run(&machine().with("kernel", 1, Workload::App(app)))?, measure))
}

/// Time of the copies of one call, by the core over by the device.
fn gain(lab: &Lab, pages: u32) -> Result<f64> {
    let time = |offload| {
        let calls = Migration { together: pages, pages: 64 * u64::from(pages), offload, ..Migration::compacting() };
        of(lab, App::Migration(calls), "copies of a call")
    };
    Ok(time(None)? / time(Some(MigrationOffload { above: 0, queue: KERNEL }))?)
}

fn break_even(lab: &Lab) -> Result {
    // The largest number of pages for which the core is not slower.
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
    // The source gives neither the slowdown of the slow tier, nor the run time of the program, nor its pages.
    let small = Migration { pages: 1 << 15, to: 1, ..Migration::compacting() };
    let huge = Migration { pages: 1 << 6, page: 2 << 20, together: 1, ..small };
    let (mut least, mut most, mut assumed) = (f64::INFINITY, 0.0_f64, 0.0_f64);
    for migration in [small, huge] {
        let by_device = Migration { offload: Some(MigrationOffload { above: 0, queue: KERNEL }), ..migration };
        for slow_percent in [200, 300, 400] {
            for millis in [25, 50, 100, 200] {
                let time = |migration| {
                    let work = Picos::from_nanos(millis * 1_000_000);
                    of(lab, App::Promotion(Promotion { work, slow_percent, migration }), "execution")
                };
                let gain = (time(migration)? / time(by_device)? - 1.0) * 100.0;
                (least, most) = (least.min(gain), most.max(gain));
                // The best of pages of 4 KiB.
                assumed = if migration == small { assumed.max(gain) } else { assumed };
            }
        }
    }
    Ok(Found::Spans { assumed, ends: (least, most), free: PROMOTION })
}

/// What the slides do not print about their program.
const PROMOTION: &str = "pages of 4 KiB or 2 MiB, memory two to four times as slow, 25 to 200 ms of work";

/// A device with two queues before one engine, or two engines with a queue each: for the kernel and a user.
fn engines(groups: u32) -> Config {
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
    config
}

/// The use of the engines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sharing {
    /// The measured user is alone.
    Alone,
    /// Each has an engine of its own.
    OwnEngine,
    /// One engine for both.
    OneEngine,
}

/// Gigabytes a second of the user's copies, or of the kernel's, with both active; and by how many seconds the other
/// lasts longer.
pub(crate) fn shared(lab: &Lab, size: u32, sharing: Sharing, of_user: bool) -> Result<(f64, f64)> {
    // The measured user has work for a millisecond alone, the other for ten: a thread submits a copy in 90 ns, and no
    // engine copies more than 32 bytes a nanosecond.
    let copies = |nanos: f64| nanos / f64::from(size / 32).max(90.0);
    let pages = |nanos: f64| nanos / 128.0;
    let (user_nanos, kernel_nanos) = if of_user { (1e6, 1e7) } else { (1e7, 1e6) };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
    let (submissions, pages) = (copies(user_nanos) as u64, pages(kernel_nanos) as u64);
    let kernel = Migration { pages, besides: Picos::ZERO, ..Migration::compacting() }.by(KERNEL);
    let by = ExecutedBy::Device(QueueId { wq: 1, ..KERNEL });
    let user = Stream { by, depth: 32, submissions, ..Stream::of(Opcode::MemoryMove, size) };
    let mut scenario = machine();
    scenario.devices = vec![engines(if sharing == Sharing::OneEngine { 1 } else { 2 })];
    if of_user || sharing != Sharing::Alone {
        scenario = scenario.with("user", 1, Workload::Stream(user));
    }
    if !of_user || sharing != Sharing::Alone {
        scenario = scenario.with("kernel", 1, Workload::App(App::Migration(kernel)));
    }
    let outcome = lab.run(&scenario)?;
    let ends = |load: &LoadOutcome| {
        let moved = load.measures.iter().find(|measure| measure.name == "migration");
        moved.map_or(load.elapsed.as_secs_f64(), |ends| ends.value / 1e3)
    };
    let (mine, others) = outcome.loads.iter().partition::<Vec<_>, _>(|load| (load.name == "user") == of_user);
    let rate = mine.iter().map(|load| {
        let moved = load.measures.iter().find(|measure| measure.name == "moved");
        moved.map_or(load.gigabytes_per_second(), |moved| moved.value)
    });
    let begun = mine.iter().map(|load| ends(load)).sum::<f64>();
    let longer = others.iter().map(|load| ends(load) - begun).fold(f64::INFINITY, f64::min);
    Ok((rate.sum(), longer))
}

fn engines_of_their_own(lab: &Lab) -> Result {
    const SIZE: u32 = 1024;
    let rates =
        |sharing| Ok::<_, ScenarioError>([shared(lab, SIZE, sharing, false)?.0, shared(lab, SIZE, sharing, true)?.0]);
    let (one, own) = (rates(Sharing::OneEngine)?, rates(Sharing::OwnEngine)?);
    Ok(Found::shape(
        own[0] + own[1] >= one[0] + one[1] && own[1] >= one[1],
        format!(
            "kernel and user, GB/s: an engine each {} and {}, one for both {} and {}",
            three(own[0]),
            three(own[1]),
            three(one[0]),
            three(one[1])
        ),
    ))
}
