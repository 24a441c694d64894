//! Many threads, little memory, and a device model with engines on their own threads: every byte that is read equals
//! the source's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use telpher_cache::{Cache, Config, Eviction, Priority};
use telpher_device::{ModelDevice, ModelOptions, Preset, Runner};
use telpher_mem::{Pool, PoolOptions};
use telpher_mover::{Mover, Policy, Threshold};

const GRAIN: usize = 512;
const GRAINS: usize = 512;

/// Bytes that encode their position.
fn word(at: usize) -> u64 {
    (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1
}

fn is_right(bytes: &[u8], mut at: usize) -> bool {
    bytes.chunks(8).all(|chunk| {
        let right = chunk == &word(at).to_le_bytes()[..chunk.len()];
        at += 8;
        right
    })
}

fn run(runner: Runner, eviction: &Eviction, seed: u64) {
    let device = ModelDevice::start(ModelOptions::of(Preset::Spr).with_runner(runner)).unwrap();
    let portals: Vec<_> =
        device.enabled_queues().into_iter().map(|n| device.portal(&format!("wq0.{n}")).unwrap()).collect();
    let mover = Mover::new(portals, Policy { threshold: Threshold::DEVICE, ..Policy::default() });
    let column: Arc<[u8]> = (0..GRAINS * GRAIN / 8).flat_map(|n| word(n * 8).to_le_bytes()).collect();
    // A sixteenth of the column.
    let pool = Pool::new(PoolOptions::new(GRAINS * GRAIN / 16)).unwrap();
    let mut config = Config::new([pool.clone()]);
    config.in_flight = 8;
    config.eviction = eviction.clone();
    let cache = Cache::new(mover, config).unwrap();
    let fast = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (cache, column, fast) = (&cache, &column, &fast);
            scope.spawn(move || {
                let mut random = telpher_os::Random::new(seed.wrapping_mul(31).wrapping_add(thread));
                let mut dice = move |n: usize| usize::try_from(random.below(n as u64)).unwrap();
                let mut kept = Vec::new();
                for _ in 0..2000 {
                    let first = dice(GRAINS);
                    let range = first * GRAIN..(first + 1 + dice(8)).min(GRAINS) * GRAIN;
                    match dice(20) {
                        0 => drop(cache.invalidate(column, range).unwrap()),
                        1 => drop(cache.flush()),
                        2 if dice(10) == 0 => drop(cache.clear()),
                        3 | 4 => {
                            let ahead =
                                cache.prefetch(column, range, Priority(u8::try_from(dice(3)).unwrap())).unwrap();
                            if dice(4) == 0 {
                                ahead.cancel();
                            }
                        }
                        5 => kept.clear(),
                        6 => drop(kept.pop()),
                        what => {
                            let handle = cache.access(column, range.clone()).unwrap();
                            assert!(is_right(&handle.location(), range.start));
                            if what % 2 == 0 {
                                assert!(is_right(&handle.wait(), range.start));
                            }
                            fast.fetch_add(u64::from(handle.is_fast()), Ordering::Relaxed);
                            if kept.len() < 4 {
                                kept.push((range, handle));
                            }
                        }
                    }
                    for (range, handle) in &kept {
                        assert!(is_right(&handle.location(), range.start), "seed {seed}");
                    }
                }
            });
        }
    });
    let stats = cache.stats();
    assert!(fast.into_inner() > 100 && stats.evictions > 10 && stats.hits > 10, "seed {seed}: {stats:?}");
    cache.clear();
    drop(cache);
    drop(device);
    assert_eq!(pool.lent(), 0, "seed {seed}: all memory was freed");
    assert_eq!(Arc::strong_count(&column), 1, "seed {seed}");
}

#[test]
fn every_byte_read_equals_the_source_for_every_runner_and_eviction_policy() {
    for (seed, runner) in [(1, Runner::Inline), (2, Runner::Threaded)] {
        for eviction in [Eviction::LeastRecentlyUsed, Eviction::FirstCome, Eviction::Largest] {
            run(runner, &eviction, seed);
        }
    }
}
