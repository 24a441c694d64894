//! Digests by a device, without the target: what the computing or submitting thread spends.

use crate::BenchError;
use crate::ffi::FreeDevice;
use crate::goal::{Goal, Row};
use crate::interleaved::{InterleavedLoad, rates_by_both, ratio};
use crate::measure::median;
use crate::questions::Experiment;
use std::sync::Arc;
use std::time::Duration;
use telpher_device::{OpenOptions, Runner, open};
use telpher_mover::{Channel, ChannelPolicy, Order};
use telpher_nvmf::DeviceEngine;
use telpher_nvmf::digest::digest;
use telpher_nvmf::engine::{CpuEngine, DigestEngine, FinishedJob, Job, JobId, Segment, Work};
use telpher_portal::Portal;
use telpher_report::machine::Machine;
use telpher_report::units;

/// The experiment.
pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "engines",
    question: "What does a digest by a device cost the submitting thread?",
    cores: 1,
    weight: 2.0,
    measure,
};

/// Jobs of one burst. Source: issue.
const JOBS: usize = 8;
/// Most time of the inline model, by that of the CPU. Source: issue.
const MOST_MODEL: f64 = 1.3;
/// Most nanoseconds of the submitting thread for 16 KiB. Source: issue.
const MOST_NS: f64 = 150.0;
/// Slots of a channel, and entries of its queue.
const SLOTS: u32 = 512;
/// Descriptors of a batch.
const BATCH: u32 = 32;

/// One burst in this many is timed by steps, so that the clock costs little.
const TIMED: u64 = 16;

/// An engine and the work of a burst.
struct Burst {
    engine: Box<dyn DigestEngine>,
    /// The segments of each job, which the engine gives back, as it does to a connection; and the right digest.
    jobs: Vec<(Vec<Segment>, Option<u32>)>,
    done: Vec<FinishedJob>,
    bursts: u64,
    /// Ticks of the timed bursts: to prepare the jobs, to submit them, to take the results.
    steps: [u64; 3],
}

impl Burst {
    /// A burst of jobs of `bytes`, each of segments of `part` bytes. With `checks`, the digests are compared.
    fn new(engine: Box<dyn DigestEngine>, bytes: usize, part: usize, checks: bool) -> Burst {
        let jobs = (0..JOBS).map(|job| {
            let data: Vec<u8> = (0..bytes).map(|at| ((at * (job + 3)) >> 3).to_le_bytes()[0]).collect();
            let expected = checks.then(|| digest(&data));
            let segments = data.chunks(part).map(|part| Segment::whole(part.to_vec())).collect();
            (segments, expected)
        });
        Burst { engine, jobs: jobs.collect(), done: Vec::new(), bursts: 0, steps: [0; 3] }
    }

    fn run(&mut self) -> Result<u64, BenchError> {
        self.bursts += 1;
        let is_timed = self.bursts.is_multiple_of(TIMED);
        let mut last = if is_timed { telpher_os::ticks() } else { 0 };
        let steps = &mut self.steps;
        let mut end_step = |step: usize| {
            if is_timed {
                let now = telpher_os::ticks();
                steps[step] += now - std::mem::replace(&mut last, now);
            }
        };
        for (slot, (segments, _)) in (0..).zip(&mut self.jobs) {
            let id = JobId { connection: 0, slot, generation: 0, part: 0 };
            self.engine.prepare(Job { id, work: Work::Digest(std::mem::take(segments)) });
        }
        end_step(0);
        self.engine.submit();
        end_step(1);
        while self.engine.pending() > 0 {
            self.engine.completed(&mut self.done);
        }
        end_step(2);
        let mut is_whole = self.done.len() == JOBS;
        for job in self.done.drain(..) {
            let (Some((place, expected)), Work::Digest(segments)) = (self.jobs.get_mut(job.id.slot as usize), job.work)
            else {
                is_whole = false;
                continue;
            };
            is_whole &= expected.is_none_or(|expected| expected == job.digest);
            *place = segments;
        }
        let wrong = || BenchError::Wrong { op: "digest".into(), route: EXPERIMENT.name.into() };
        if is_whole { Ok(JOBS as u64) } else { Err(wrong()) }
    }

    /// The parts of the time that the steps of a burst take.
    fn shares(&self) -> String {
        let all = self.steps.iter().sum::<u64>().max(1) as f64;
        let [prepare, submit, results] = self.steps.map(|ticks| ticks as f64 / all * 100.0);
        format!("{prepare:.0} % to prepare, {submit:.0} % to submit, {results:.0} % to take the results")
    }
}

fn device(portal: Arc<dyn Portal>) -> Result<Box<dyn DigestEngine>, BenchError> {
    let policy = ChannelPolicy { order: Order::Arrival, ..ChannelPolicy::default() };
    Ok(Box::new(DeviceEngine::new(Channel::new(portal, SLOTS, policy)?, 0)))
}

fn model() -> Result<Box<dyn DigestEngine>, BenchError> {
    let name = "model:spr".parse()?;
    let opened = open(&name, OpenOptions { runner: Runner::Inline })?;
    let policy = ChannelPolicy { order: Order::Arrival, ..ChannelPolicy::default() };
    let slots = opened.portals[0].info().size.min(SLOTS);
    Ok(Box::new(DeviceEngine::new(Channel::new(Arc::clone(&opened.portals[0]), slots, policy)?, 0)))
}

fn measure(machine: &Machine, time: Duration) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    for bytes in [16 << 10, 128 << 10] {
        rows.push(by_the_model(machine, time / 4, bytes)?);
    }
    for (part, layout) in [(16 << 10, "one segment"), (4 << 10, "four blocks of 4 KiB")] {
        rows.push(by_a_free_device(machine, time / 4, part, layout)?);
    }
    Ok(rows)
}

fn by_the_model(machine: &Machine, time: Duration, bytes: usize) -> Result<Row, BenchError> {
    let bursts = [model()?, Box::new(CpuEngine::default())].map(|engine| Burst::new(engine, bytes, bytes, true));
    let mut sides = bursts.map(|burst| InterleavedLoad { states: vec![burst], step: &Burst::run });
    let seen = rates_by_both(machine, time, &mut sides)?;
    let cpu = |side: usize| seen[side].iter().map(|rate| rate.cpu).collect::<Vec<_>>();
    let micros = |side: usize| 1e6 / median(&mut cpu(side));
    Ok(Row::new(
        format!("digest of {} by the inline model, by the CPU's time", units::size(bytes as u64)),
        ratio(&cpu(1), &cpu(0)),
        "times",
        Some(Goal::AtMost(MOST_MODEL)),
        format!(
            "{:.2} µs by the model, {:.2} µs by the CPU; thread CPU time; bursts of {JOBS}; {} turns",
            micros(0),
            micros(1),
            seen[0].len()
        ),
    ))
}

fn by_a_free_device(machine: &Machine, time: Duration, part: usize, layout: &str) -> Result<Row, BenchError> {
    const BYTES: usize = 16 << 10;
    let free = || device(Arc::new(FreeDevice::new(SLOTS, BATCH)));
    let bursts =
        [Burst::new(free()?, BYTES, part, false), Burst::new(Box::new(CpuEngine::default()), BYTES, part, true)];
    let mut sides = bursts.map(|burst| InterleavedLoad { states: vec![burst], step: &Burst::run });
    let seen = rates_by_both(machine, time, &mut sides)?;
    let nanos = |side: usize| 1e9 / median(&mut seen[side].iter().map(|rate| rate.cpu).collect::<Vec<_>>());
    Ok(Row::new(
        format!("digest of 16 KiB in {layout}: CPU time of the submitting thread"),
        nanos(0),
        "ns",
        Some(Goal::AtMost(MOST_NS)),
        format!(
            "{}; the CPU's digest takes {:.0} ns; a queue without a device, which writes each record within the \
             submission; bursts of {JOBS} as batches of {BATCH}; {} turns",
            sides[0].states[0].shares(),
            nanos(1),
            seen[0].len()
        ),
    ))
}
