//! The load on one cache in this process, in turns; latencies and counts over all turns.

use super::config::CacheConfig;
use super::draw::{Draw, Operation, largest_value};
use super::store::Store;
use super::value::{fill, first_wrong};
use crate::measure::{Clock, Latencies};
use serde::{Deserialize, Serialize};
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
    /// Gets per second of all threads, without the time of preparing and checking values.
    pub(super) gets: f64,
    /// Sets per second, likewise.
    pub(super) sets: f64,
}

/// Counts over all turns; the filling of the cache is not among them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Gets.
    pub gets: u64,
    /// Gets that found a value.
    pub hits: u64,
    /// Sets, with those that followed a get.
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
    /// Ticks in which values were prepared and checked.
    aside: u64,
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

    /// Sets a new value of a key. Returns the ticks of the set.
    fn set(&mut self, pool: usize, key: u64) -> u64 {
        let begun = ticks();
        self.generation += 1;
        let value = &mut self.source[..self.job.config.distribution(pool).sizes.of_key(key)];
        fill(value, key, self.generation);
        let prepared = ticks();
        let has_room = self.store.set(pool, key, self.generation, value);
        let took = ticks().wrapping_sub(prepared);
        let len = value.len();
        self.aside += prepared.wrapping_sub(begun);
        self.counts.sets += 1;
        if has_room {
            self.count_copy(len);
        } else {
            self.counts.refused_sets += 1;
        }
        took
    }

    /// Gets the value of a key and checks it. Returns false if the cache does not have it.
    fn get(&mut self, pool: usize, key: u64) -> bool {
        let begun = ticks();
        let found = self.store.get(pool, key, &mut self.target);
        let done = ticks();
        self.gets.record(done.wrapping_sub(begun));
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
                        let took = self.set(pool, key);
                        self.sets.record(took);
                    }
                }
                Operation::Set => {
                    let took = self.set(pool, key);
                    self.sets.record(took);
                }
                Operation::Delete => {
                    self.store.delete(pool, key);
                    self.counts.deletions += 1;
                }
            }
        }
    }

    /// Sets each key of its part once.
    fn fill(&mut self, thread: u64) {
        let config = &self.job.config;
        for pool in 0..config.pools.len() {
            let keys = config.first_key(pool)..config.first_key(pool + 1);
            for key in keys.filter(|key| key % u64::from(config.threads) == thread) {
                self.set(pool, key);
            }
        }
    }
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

    /// Sets every key once. Nothing of it is counted.
    pub(super) fn fill(&mut self) {
        self.together(|number, worker| {
            worker.fill(number);
            worker.counts = Counts::default();
            worker.aside = 0;
        });
        self.evicted_by_filling = self.store.evictions();
    }

    /// Lets each thread execute this many operations.
    pub(super) fn turn(&mut self, operations: u64) -> Turn {
        let clock = self.clock;
        let rates = self.together(|_, worker| {
            let (before, aside) = ((worker.counts.gets, worker.counts.sets), worker.aside);
            let begun = Instant::now();
            worker.work(operations);
            let ns = crate::measure::to_ns(begun.elapsed()) - clock.ns(worker.aside - aside);
            let rate = |number: u64| number as f64 * 1e9 / ns.max(1.0);
            Turn { gets: rate(worker.counts.gets - before.0), sets: rate(worker.counts.sets - before.1) }
        });
        Turn { gets: rates.iter().map(|turn| turn.gets).sum(), sets: rates.iter().map(|turn| turn.sets).sum() }
    }

    /// Returns what was measured in all turns.
    pub(super) fn measured(&self) -> Measured {
        let mut counts = Counts::default();
        let (mut gets, mut sets) = (Latencies::new(1), Latencies::new(1));
        for worker in &self.workers {
            counts.add(worker.counts.clone());
            gets.merge(&worker.gets);
            sets.merge(&worker.sets);
        }
        counts.evictions = self.store.evictions() - self.evicted_by_filling;
        let of = |latencies: &Latencies| Percentiles::of(latencies, &self.clock);
        Measured { counts, gets: of(&gets), sets: of(&sets) }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

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
            assert!(turns.iter().all(|turn| turn.gets > 0.0 && turn.sets > 0.0));
            load.measured()
        });
        let Measured { counts, gets, sets } = measured;
        let operations = 2 * (job.config.operations / 4 * 4);
        let lookaside = counts.gets - counts.hits;
        assert_eq!(counts.gets + counts.sets - lookaside + counts.deletions, operations, "{counts:?}");
        assert_eq!(counts.copies, counts.hits + counts.sets - counts.refused_sets, "{counts:?}");
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
        let said = worker.counts.first_wrong.unwrap();
        assert!(said.starts_with("byte 50 of the value of 100 bytes of key 7"), "{said}");
    }
}
