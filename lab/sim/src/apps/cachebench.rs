//! A cache under load whose long copies are made by a device while the thread waits: CacheLib's CacheBench over DTO,
//! which intercepts `memcpy` (KUPER appendix B).
//!
//! Threads take turns on cores. An operation is some work, some short copies, and sometimes a long one. A long copy
//! goes to a shared queue, the queues in turn; a full queue is retried a few times, then the core copies. A waiting
//! thread may yield its core to another. `dto.rs` has the versions of DTO, which differ in retries and tuning.

use super::cache_load::CacheLoad;
use super::dto::{DtoTuning, DtoVersion, Knobs};
use super::{Report, measure};
use crate::picos::Picos;
use crate::places::{BufferPlacement, LineLocation};
use crate::rng::Rng;
use crate::workload::{QueueId, Wait};
use crate::world::{Core, Semaphore, World};
use std::cell::RefCell;
use std::rc::Rc;
use telpher_abi::{Descriptor, Opcode};

/// The cache and its load.
#[derive(Clone, PartialEq, Debug)]
pub struct CacheBench {
    /// Number of cores.
    pub cores: u32,
    /// Number of threads on them.
    pub threads: u32,
    /// Copies of each thread.
    pub copies: u64,
    /// Queues for long copies, used in turn; if empty, cores copy.
    pub queues: Vec<QueueId>,
    /// Smallest size of a long copy.
    pub threshold: u64,
    /// Number of long copies among ten thousand copies.
    pub long_of_10_000: u32,
    /// Sizes of long copies, each with its weight.
    pub long: Vec<(u32, u32)>,
    /// Location of the copied bytes.
    pub source: LineLocation,
    /// Mean size of a short copy.
    pub short_bytes: u64,
    /// Retries of a full queue before the core copies.
    pub retries: u32,
    /// How DTO tunes the threshold and the core's part of a long copy; `None`: the threshold is fixed, and the device
    /// makes the whole copy.
    pub tuning: Option<DtoTuning>,
    /// Nanoseconds of work around each copy: lookup, hashing, locking.
    pub work_ns: f64,
    /// Nanoseconds for a thread to yield its core to another; `None`: it polls for its record instead.
    pub switch_ns: Option<f64>,
    /// Seed of the random choices.
    pub seed: u64,
}

impl Default for CacheBench {
    /// Four cores, eight threads, four shared queues, one on each of four devices; DTO as the paper used it.
    fn default() -> Self {
        CacheBench {
            cores: 4,
            threads: 8,
            copies: 20_000,
            queues: (0..CacheLoad::PAPER.queues)
                // Cannot be lost: a socket has a few devices.
                .map(|device| QueueId { device: u16::try_from(device).unwrap_or(u16::MAX), wq: 0, shared: true })
                .collect(),
            threshold: CacheLoad::PAPER.threshold,
            long_of_10_000: CacheLoad::PAPER.long_of_10_000,
            long: CacheLoad::PAPER.long.to_vec(),
            source: LineLocation::Llc,
            short_bytes: CacheLoad::PAPER.short_bytes.into(),
            retries: DtoVersion::V2023.retries(),
            tuning: DtoVersion::V2023.tuning(),
            work_ns: 100.0,
            switch_ns: None,
            seed: 1,
        }
    }
}

/// The next copy of a thread.
#[derive(Clone, Copy)]
struct Job {
    bytes: u64,
    queue: Option<QueueId>,
    /// Bytes at the front that the core copies while the device copies the rest.
    by_core: u64,
}

struct Shared {
    tally: Tally,
    next_queue: usize,
    knobs: Knobs,
}

#[derive(Default)]
struct Tally {
    until: Picos,
    done: u64,
    by_device: u64,
    long_bytes: u64,
    bytes: u64,
    /// Latencies of the copies of gets.
    of_gets: Vec<Picos>,
    /// Latencies of the copies of sets.
    of_sets: Vec<Picos>,
}

struct Thread {
    app: Rc<CacheBench>,
    rng: Rng,
    /// Decides which copies are those of sets. Separate, so that the sizes do not depend on it.
    kinds: Rng,
    shared: Rc<RefCell<Shared>>,
    /// A permit for each core.
    cores: Semaphore,
    src: (BufferPlacement, u64),
    dst: (BufferPlacement, u64),
}

impl Thread {
    fn next(&mut self) -> Job {
        let app = &self.app;
        let long = self.rng.below(10_000) < u64::from(app.long_of_10_000);
        let weights: u64 = app.long.iter().map(|(_, weight)| u64::from(*weight)).sum();
        if !long || weights == 0 {
            return Job { bytes: app.short_bytes, queue: None, by_core: 0 };
        }
        let mut at = self.rng.below(weights);
        let size = app.long.iter().find(|(_, weight)| {
            let here = at < u64::from(*weight);
            at = at.saturating_sub(u64::from(*weight));
            here
        });
        let bytes = size.map_or(app.short_bytes, |(bytes, _)| u64::from(*bytes));
        let shared = &mut self.shared.borrow_mut();
        let queue = (bytes >= shared.knobs.threshold()).then(|| app.queues.get(shared.next_queue).copied()).flatten();
        if queue.is_some() {
            shared.next_queue = (shared.next_queue + 1) % app.queues.len();
        }
        Job { bytes, queue, by_core: shared.knobs.by_core(bytes) }
    }

    async fn copy(&self, core: &Core, Job { bytes, queue, by_core }: Job) {
        let Some(queue) = queue else {
            core.software(Opcode::MemoryMove, bytes, self.src.0, self.dst.0).await;
            return;
        };
        let by_device = u32::try_from(bytes - by_core).unwrap_or(u32::MAX);
        let copy: Descriptor =
            World::descriptor(Opcode::MemoryMove, self.src.1 + by_core, self.dst.1 + by_core, by_device);
        let mut given = core.try_submit(queue, copy).await;
        for _ in 0..self.app.retries {
            if given.is_none() {
                given = core.try_submit(queue, copy).await;
            }
        }
        let Some(ticket) = given else {
            core.software(Opcode::MemoryMove, bytes, self.src.0, self.dst.0).await;
            return;
        };
        if by_core > 0 {
            core.software(Opcode::MemoryMove, by_core, self.src.0, self.dst.0).await;
        }
        let waits_from = core.now();
        let Some(switch) = self.app.switch_ns else {
            core.wait(&ticket, Wait::Poll).await;
            let waited = ticket.done_at().map_or(Picos::ZERO, |done| done.since(waits_from));
            self.shared.borrow_mut().knobs.has_waited(waited);
            return;
        };
        // sched_yield until the record is written: the next thread in line gets this core.
        while !ticket.is_done() {
            if core.waiting(self.cores) == 0 {
                core.wait(&ticket, Wait::Poll).await;
                break;
            }
            core.busy(Picos::from_nanos_f64(switch)).await;
            core.give(self.cores);
            core.until(self.cores).await;
        }
    }

    async fn run(mut self, core: Core) {
        core.until(self.cores).await;
        for _ in 0..self.app.copies {
            let job = self.next();
            core.busy(Picos::from_nanos_f64(self.app.work_ns)).await;
            let start = core.now();
            self.copy(&core, job).await;
            let took = core.now().since(start);
            let tally = &mut self.shared.borrow_mut().tally;
            tally.done += 1;
            tally.bytes += job.bytes;
            tally.by_device += u64::from(job.queue.is_some());
            if job.bytes > self.app.short_bytes {
                tally.long_bytes += job.bytes;
            }
            if CacheLoad::PAPER.draws_set(&mut self.kinds) {
                tally.of_sets.push(took);
            } else {
                tally.of_gets.push(took);
            }
        }
        core.give(self.cores);
        let tally = &mut self.shared.borrow_mut().tally;
        tally.until = tally.until.max(core.now());
    }
}

impl CacheBench {
    pub(super) fn start(&self, world: &mut World) -> Report {
        let app = Rc::new(CacheBench { cores: self.cores.max(1), ..self.clone() });
        let shared = Rc::new(RefCell::new(Shared {
            tally: Tally::default(),
            next_queue: 0,
            knobs: Knobs::new(app.threshold, app.tuning),
        }));
        let cores = world.signal(app.cores.into());
        let mut at = |place| (place, world.places.add(place));
        let src = at(BufferPlacement { lines: app.source, ..BufferPlacement::on(0) });
        let dst = at(BufferPlacement::on(0));
        for number in 0..app.threads {
            let rng = Rng::new(app.seed, number.into());
            let kinds = Rng::new(app.seed, (1 << 32) | u64::from(number));
            let thread = Thread { app: app.clone(), rng, kinds, shared: shared.clone(), cores, src, dst };
            world.spawn(0, |core| thread.run(core));
        }
        Box::new(move |_| shared.borrow_mut().tally.measures())
    }
}

impl Tally {
    #[allow(clippy::cast_precision_loss, reason = "for display")]
    fn measures(&mut self) -> Vec<crate::scenario::Measure> {
        self.of_gets.sort_unstable();
        self.of_sets.sort_unstable();
        let mut all = [&*self.of_gets, &*self.of_sets].concat();
        all.sort_unstable();
        let seconds = self.until.as_secs_f64().max(1e-12);
        let millions = |number: usize| number as f64 / seconds / 1e6;
        vec![
            measure("copies", self.done as f64 / seconds / 1e6, "M/s"),
            measure("bytes copied", self.bytes as f64 / seconds / 1e9, "GB/s"),
            measure("copies by device", self.by_device as f64 / self.done.max(1) as f64 * 100.0, "%"),
            measure("bytes in long copies", self.long_bytes as f64 / self.bytes.max(1) as f64 * 100.0, "%"),
            measure("latency, median", quantile(&all, 1, 2), "us"),
            measure("latency, 99.9 %", quantile(&all, 999, 1000), "us"),
            measure("latency, 99.999 %", quantile(&all, 99_999, 100_000), "us"),
            measure("gets", millions(self.of_gets.len()), "M/s"),
            measure("sets", millions(self.of_sets.len()), "M/s"),
            measure("latency of gets, 99.999 %", quantile(&self.of_gets, 99_999, 100_000), "us"),
            measure("latency of sets, 99.999 %", quantile(&self.of_sets, 99_999, 100_000), "us"),
        ]
    }
}

/// Returns the quantile `part / of` of sorted latencies in microseconds; `NaN` if there are too few.
#[allow(clippy::cast_precision_loss, reason = "for display")]
fn quantile(sorted: &[Picos], part: usize, of: usize) -> f64 {
    let rank = (sorted.len() * part).div_ceil(of).saturating_sub(1);
    // The largest of thousands stands for 99.999 %, as in the published figures.
    let is_enough = crate::enough(sorted.len() as u64, (part as f64 / of as f64).min(0.999));
    sorted.get(rank).filter(|_| is_enough).map_or(f64::NAN, |time| time.as_nanos_f64() / 1e3)
}
