//! The load on one cache in this process, in turns; latencies and counts over all turns.

use super::config::CacheConfig;
use super::draw::{Draw, Operation, largest_value};
use super::store::Store;
use super::value::{fill, first_wrong};
use crate::measure::{Clock, Latencies};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;
use telpher_os::ticks;

/// What a process is to run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) config: CacheConfig,
    /// The CPUs for all threads.
    pub(super) cpus: Vec<usize>,
    /// Copies of this many bytes or more are counted as long.
    pub(super) threshold: u64,
}

/// The rates of one turn.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Turn {
    /// By the time of each thread without that of preparing and checking values and of refused sets.
    pub(super) timed: Rates,
    /// By elapsed time.
    pub(super) elapsed: Rates,
}

/// Rates of all threads together.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Rates {
    /// Gets per second, each with one read of the value.
    pub(super) gets: f64,
    /// Sets per second that stored a value.
    pub(super) sets: f64,
}

impl Rates {
    fn add(&mut self, other: Rates) {
        self.gets += other.gets;
        self.sets += other.sets;
    }
}

/// Copies of values in the filling of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Filling {
    /// Copies of at least the threshold.
    pub long_copies: u64,
    /// Their bytes.
    pub long_bytes: u64,
}

/// Counts over all turns; the filling of the cache is not among them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Gets.
    pub gets: u64,
    /// Gets that found a value.
    pub hits: u64,
    /// Sets that stored a value, with those that followed a get.
    pub sets: u64,
    /// Sets for which the cache had no room.
    pub refused_sets: u64,
    /// Deletions.
    pub deletions: u64,
    /// Values that were removed to make room.
    pub evictions: u64,
    /// Copies of values.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Copies of at least the threshold.
    pub long_copies: u64,
    /// Their bytes.
    pub long_bytes: u64,
    /// Values read with a wrong byte.
    pub wrong: u64,
    /// The first of these, as a sentence.
    pub first_wrong: Option<String>,
}

/// Percentiles of latencies in nanoseconds; a percentile with too few samples is `None`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Percentiles {
    /// Number of samples.
    pub samples: u64,
    /// The percentiles, in the order of [`QUANTILES`].
    pub ns: [Option<f64>; 5],
}

/// The percentiles that are reported, with their names.
pub const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999), ("p99.999", 0.99999)];

/// Samples that must lie beyond a percentile. Source: chosen; p99.999 needs a million samples.
const BEYOND: f64 = 10.0;

/// What a process reports at its end.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) counts: Counts,
    pub(super) gets: Percentiles,
    pub(super) sets: Percentiles,
    /// What is not in `counts`.
    pub(super) filling: Filling,
}

impl Percentiles {
    fn of(latencies: &Latencies, clock: &Clock) -> Self {
        let samples = latencies.count();
        let ns =
            QUANTILES.map(|(_, quantile)| has_enough(samples, quantile).then(|| latencies.quantile(clock, quantile)));
        Percentiles { samples, ns }
    }
}

/// Returns whether enough samples lie beyond a quantile.
fn has_enough(samples: u64, quantile: f64) -> bool {
    // `1.0 - 0.99999` is slightly less than a hundred thousandth.
    samples as f64 * (1.0 - quantile) >= BEYOND - 1e-6
}

impl Counts {
    fn add(&mut self, other: Counts) {
        let Counts {
            gets,
            hits,
            sets,
            refused_sets,
            deletions,
            evictions,
            copies,
            bytes,
            long_copies,
            long_bytes,
            wrong,
            first_wrong,
        } = other;
        self.gets += gets;
        self.hits += hits;
        self.sets += sets;
        self.refused_sets += refused_sets;
        self.deletions += deletions;
        self.evictions += evictions;
        self.copies += copies;
        self.bytes += bytes;
        self.long_copies += long_copies;
        self.long_bytes += long_bytes;
        self.wrong += wrong;
        self.first_wrong = self.first_wrong.take().or(first_wrong);
    }
}

/// A thread of the load.
struct Worker<'a> {
    job: &'a Job,
    store: &'a Store<'a>,
    draw: Draw<'a>,
    /// The value of the next set.
    source: Vec<u8>,
    /// The value of the last get.
    target: Vec<u8>,
    /// The generation of the next value: the thread's number in the upper bits, so that no two values are equal.
    generation: u64,
    counts: Counts,
    gets: Latencies,
    sets: Latencies,
    /// Ticks in which values were prepared and checked, and of refused sets.
    aside: u64,
    filling: Filling,
}

impl<'a> Worker<'a> {
    fn new(job: &'a Job, store: &'a Store<'a>, number: u64) -> Self {
        let largest = largest_value(&job.config);
        Worker {
            job,
            store,
            draw: Draw::new(&job.config, number),
            source: vec![0; largest],
            target: vec![0; largest],
            generation: number << 40,
            counts: Counts::default(),
            gets: Latencies::new(1),
            sets: Latencies::new(1),
            aside: 0,
            filling: Filling::default(),
        }
    }

    fn count_copy(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        self.counts.copies += 1;
        self.counts.bytes += bytes;
        if bytes >= self.job.threshold {
            self.counts.long_copies += 1;
            self.counts.long_bytes += bytes;
        }
    }

    /// Sets a new value of a key. Returns the ticks of the set; `None` if the cache has no room.
    fn set(&mut self, pool: usize, key: u64) -> Option<u64> {
        let start = ticks();
        self.generation += 1;
        let value = &mut self.source[..self.job.config.distribution(pool).sizes.of_key(key)];
        fill(value, key, self.generation);
        let prepared = ticks();
        let has_room = self.store.set(pool, key, self.generation, value);
        let took = ticks().wrapping_sub(prepared);
        let len = value.len();
        self.aside += prepared.wrapping_sub(start);
        if !has_room {
            self.counts.refused_sets += 1;
            self.aside += took;
            return None;
        }
        self.counts.sets += 1;
        self.count_copy(len);
        Some(took)
    }

    /// Sets a new value of a key, and records the latency.
    fn timed_set(&mut self, pool: usize, key: u64) {
        if let Some(took) = self.set(pool, key) {
            self.sets.record(took);
        }
    }

    /// Gets the value of a key, reads it once, and checks it. The check is not in the latency. Returns false if the
    /// cache does not have the value.
    fn get(&mut self, pool: usize, key: u64) -> bool {
        let start = ticks();
        let found = self.store.get(pool, key, &mut self.target);
        if let Some(found) = found {
            // Each get pays for the read, so that a device that writes to memory does not get it for free.
            black_box(read_each_line(&self.target[..found.len]));
        }
        let done = ticks();
        self.gets.record(done.wrapping_sub(start));
        self.counts.gets += 1;
        let Some(found) = found else { return false };
        self.counts.hits += 1;
        self.count_copy(found.len);
        if let Some(at) = first_wrong(&self.target[..found.len], key, found.generation) {
            self.counts.wrong += 1;
            let (len, generation) = (found.len, found.generation);
            self.counts.first_wrong.get_or_insert_with(|| {
                format!("byte {at} of the value of {len} bytes of key {key}, generation {generation:#x}, is wrong")
            });
        }
        self.aside += ticks().wrapping_sub(done);
        true
    }

    /// Executes operations.
    fn work(&mut self, operations: u64) {
        for _ in 0..operations {
            let (pool, key, operation) = self.draw.next();
            match operation {
                Operation::Get => {
                    if !self.get(pool, key) && self.job.config.lookaside {
                        self.timed_set(pool, key);
                    }
                }
                Operation::Set => self.timed_set(pool, key),
                Operation::Delete => {
                    self.store.delete(pool, key);
                    self.counts.deletions += 1;
                }
            }
        }
    }

    /// Sets its part of the keys that fit into the cache. Only the copies are counted.
    fn fill(&mut self, thread: u64) {
        let config = &self.job.config;
        for pool in 0..config.pools.len() {
            for key in config.filling(pool, thread) {
                self.set(pool, key);
            }
        }
        let Counts { long_copies, long_bytes, .. } = std::mem::take(&mut self.counts);
        self.filling = Filling { long_copies, long_bytes };
        self.aside = 0;
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Reads a byte of each cache line of a value, as the least that its consumer does. Returns their exclusive or.
fn read_each_line(value: &[u8]) -> u8 {
    // The value may begin within a line, so its last byte may be in a line of its own.
    let last = value.last().copied().unwrap_or(0);
    value.iter().step_by(LINE).fold(last, |all, byte| all ^ byte)
}

/// The load on one cache.
pub(super) struct Load<'a> {
    job: &'a Job,
    store: &'a Store<'a>,
    clock: Clock,
    workers: Vec<Worker<'a>>,
    evicted_by_filling: u64,
}

impl<'a> Load<'a> {
    pub(super) fn new(job: &'a Job, store: &'a Store<'a>) -> Self {
        let workers = (0..u64::from(job.config.threads)).map(|number| Worker::new(job, store, number)).collect();
        Load { job, store, clock: Clock::calibrate(), workers, evicted_by_filling: 0 }
    }

    /// Lets all threads do something at once; returns what each returned.
    fn together<T: Send>(&mut self, work: impl Fn(u64, &mut Worker<'a>) -> T + Sync) -> Vec<T> {
        let (barrier, work, cpus) = (&Barrier::new(self.workers.len()), &work, &self.job.cpus);
        std::thread::scope(|scope| {
            let thread = |(number, worker): (u64, &'_ mut Worker<'a>)| {
                // Without the right to choose CPUs the threads run where the system puts them.
                let _ = telpher_os::run_on(cpus);
                barrier.wait();
                work(number, worker)
            };
            let threads: Vec<_> =
                (0..).zip(self.workers.iter_mut()).map(|each| scope.spawn(move || thread(each))).collect();
            threads.into_iter().map(|thread| thread.join().expect("the load does not panic")).collect()
        })
    }

    /// Sets as many keys as fit once.
    pub(super) fn fill(&mut self) {
        self.together(|number, worker| worker.fill(number));
        self.evicted_by_filling = self.store.evictions();
    }

    /// Lets each thread execute this many operations.
    pub(super) fn turn(&mut self, operations: u64) -> Turn {
        let clock = self.clock;
        let rates = self.together(|_, worker| {
            let (before, aside) = ((worker.counts.gets, worker.counts.sets), worker.aside);
            let start = Instant::now();
            worker.work(operations);
            let elapsed = crate::measure::to_ns(start.elapsed());
            let done = (worker.counts.gets - before.0, worker.counts.sets - before.1);
            let rates = |ns: f64| {
                let rate = |number: u64| number as f64 * 1e9 / ns.max(1.0);
                Rates { gets: rate(done.0), sets: rate(done.1) }
            };
            Turn { timed: rates(elapsed - clock.ns(worker.aside - aside)), elapsed: rates(elapsed) }
        });
        let mut all = Turn::default();
        for turn in rates {
            all.timed.add(turn.timed);
            all.elapsed.add(turn.elapsed);
        }
        all
    }

    /// Returns what was measured in all turns.
    pub(super) fn measured(&self) -> Measured {
        let mut counts = Counts::default();
        let (mut gets, mut sets) = (Latencies::new(1), Latencies::new(1));
        let mut filling = Filling::default();
        for worker in &self.workers {
            filling.long_copies += worker.filling.long_copies;
            filling.long_bytes += worker.filling.long_bytes;
            counts.add(worker.counts.clone());
            gets.merge(&worker.gets);
            sets.merge(&worker.sets);
        }
        counts.evictions = self.store.evictions() - self.evicted_by_filling;
        let of = |latencies: &Latencies| Percentiles::of(latencies, &self.clock);
        Measured { counts, gets: of(&gets), sets: of(&sets), filling }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// A load of some thousand operations on a cache that cannot hold all values.
    pub(in super::super) fn small() -> Job {
        let mut config = CacheConfig { keys: 3000, threads: 2, cache_bytes: 64 << 20, ..CacheConfig::paper() };
        config.set_gets(3000);
        Job { config, cpus: telpher_os::allowed_cpus().unwrap(), threshold: 8192 }
    }

    pub(in super::super) fn with_load<T>(job: &Job, test: impl FnOnce(&mut Load<'_>) -> T) -> T {
        let mut memory = vec![0; usize::try_from(job.config.cache_bytes).unwrap()];
        let store = Store::new(&job.config, &mut memory);
        test(&mut Load::new(job, &store))
    }

    #[test]
    fn every_operation_is_counted_and_every_value_is_right() {
        let job = small();
        let measured = with_load(&job, |load| {
            load.fill();
            assert_eq!(load.measured().counts, Counts::default(), "filling is not counted");
            let turns = [0; 4].map(|_| load.turn(job.config.operations / 4));
            for Turn { timed, elapsed } in turns {
                assert!(elapsed.gets > 0.0 && timed.gets > elapsed.gets, "values are prepared and checked");
                assert!(elapsed.sets > 0.0 && timed.sets > elapsed.sets);
            }
            load.measured()
        });
        let Measured { counts, gets, sets, filling } = measured;
        let operations = 2 * (job.config.operations / 4 * 4);
        let lookaside = counts.gets - counts.hits;
        assert_eq!(counts.gets + counts.sets - lookaside + counts.deletions, operations, "{counts:?}");
        assert_eq!(counts.copies, counts.hits + counts.sets, "{counts:?}");
        // All keys fit.
        let sizes = (0..job.config.keys).map(|key| job.config.distribution(0).sizes.of_key(key) as u64);
        let long: Vec<u64> = sizes.filter(|size| *size >= job.threshold).collect();
        assert_eq!((filling.long_copies, filling.long_bytes), (long.len() as u64, long.iter().sum()));
        assert_eq!((counts.wrong, counts.refused_sets), (0, 0), "{counts:?}");
        assert!(counts.hits > counts.gets * 9 / 10 && lookaside > 0, "deleted keys are set again: {counts:?}");
        assert_eq!((gets.samples, sets.samples), (counts.gets, counts.sets));
    }

    #[test]
    fn one_thread_always_does_the_same() {
        let mut job = small();
        job.config.threads = 1;
        // Too small for all values, so that some are removed.
        job.config.cache_bytes = 20 * super::super::config::SLAB_BYTES;
        job.config.keys = 60_000;
        let counts = || {
            with_load(&job, |load| {
                load.fill();
                load.turn(5000);
                load.measured().counts
            })
        };
        let first = counts();
        assert!(first.evictions > 0 && first.hits < first.gets, "{first:?}");
        assert_eq!(first, counts());
    }

    #[test]
    fn a_refused_set_is_no_set_and_has_no_latency() {
        let mut job = small();
        job.config.threads = 1;
        // The only slab belongs to the class of the first value, so most of the others have no room.
        job.config.cache_bytes = super::super::config::SLAB_BYTES;
        let (measured, turn) = with_load(&job, |load| {
            load.fill();
            let turn = load.turn(2000);
            (load.measured(), turn)
        });
        let Measured { counts, sets, .. } = measured;
        assert!(counts.refused_sets > 0 && counts.sets > 0, "{counts:?}");
        assert_eq!((sets.samples, counts.copies), (counts.sets, counts.hits + counts.sets));
        let ratio = turn.elapsed.sets / turn.elapsed.gets;
        assert!((ratio - counts.sets as f64 / counts.gets as f64).abs() < 1e-6, "{ratio}: {counts:?}");
    }

    #[test]
    fn each_line_of_a_value_is_read() {
        // A byte of each line, wherever the value begins.
        let mut memory = vec![0_u8; 64 * 5];
        let address = memory.as_ptr() as usize;
        for start in 0..64 {
            let first = (64 - address % 64) % 64 + start;
            let value = first..first + 150;
            let lines = |at: usize| (address + at) / 64;
            let mut read = BTreeSet::new();
            for at in value.clone() {
                memory[at] = 1;
                if read_each_line(&memory[value.clone()]) != 0 {
                    read.insert(lines(at));
                }
                memory[at] = 0;
            }
            assert_eq!(read, value.map(lines).collect(), "from byte {start} of a line");
        }
    }

    #[test]
    fn a_percentile_needs_ten_samples_beyond_it() {
        let known = |samples| QUANTILES.map(|(_, quantile)| has_enough(samples, quantile));
        assert_eq!(known(19), [false; 5]);
        assert_eq!(known(1000), [true, true, false, false, false]);
        assert_eq!(known(999_999), [true, true, true, true, false]);
        assert_eq!(known(1_000_000), [true; 5]);
    }

    #[test]
    fn a_wrong_byte_is_counted_and_described() {
        let job = small();
        let mut memory = vec![0; usize::try_from(job.config.cache_bytes).unwrap()];
        let store = Store::new(&job.config, &mut memory);
        let mut worker = Worker::new(&job, &store, 0);
        let mut value = vec![0; 100];
        fill(&mut value, 7, 3);
        value[50] ^= 1;
        assert!(store.set(0, 7, 3, &value) && worker.get(0, 7));
        assert_eq!(worker.counts.wrong, 1);
        let message = worker.counts.first_wrong.unwrap();
        assert!(message.starts_with("byte 50 of the value of 100 bytes of key 7"), "{message}");
    }
}
