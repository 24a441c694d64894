//! Failures: memory that runs out, devices that stop, refuse and fault, policies that panic, sources that are dropped.
//! The behaviour is defined for each, and no byte is wrong.

use crate::common::device::TestDevice;
use crate::common::{Chance, mover, policy};
use crate::shelf::{BLOCK, Source, at_once, block, held_back, pool};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use telpher_abi::Status;
use telpher_cache::{Cache, Config, Eviction, Priority, Resident};
use telpher_mem::Tagged;
use telpher_mover::{Mover, OnFault, Policy};
use telpher_portal::QueueMode;

/// Bytes that encode their position.
fn source(blocks: usize) -> Source {
    (0..blocks * BLOCK / 8).flat_map(|at| word(at * 8).to_le_bytes()).collect()
}

fn word(at: usize) -> u64 {
    (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns whether these are the source's bytes from `at`. Both are multiples of a word.
fn is_right(bytes: &[u8], at: usize) -> bool {
    bytes.chunks_exact(8).zip((at..).step_by(8)).all(|(chunk, at)| chunk == word(at).to_le_bytes())
}

/// Threads that use every way to access blocks of a column, and check every byte.
fn readers(cache: &Cache<Source>, column: &Source, seed: u64, rounds: usize) {
    let blocks = column.len() / BLOCK;
    std::thread::scope(|scope| {
        for thread in 0..3 {
            scope.spawn(move || {
                let mut chance = Chance::new(seed * 8 + thread);
                let mut kept = Vec::new();
                for _ in 0..rounds {
                    let first = usize::try_from(chance.below(blocks as u64)).unwrap();
                    let last = (first + 1 + usize::try_from(chance.below(3)).unwrap()).min(blocks);
                    let range = first * BLOCK..last * BLOCK;
                    match chance.below(8) {
                        0 => drop(cache.prefetch(column, range, Priority(1)).unwrap()),
                        1 => drop(cache.prefetch(column, range, Priority(2)).unwrap().cancel()),
                        2 => drop(cache.invalidate(column, range).unwrap()),
                        3 => drop(cache.flush()),
                        what => {
                            let handle = cache.access(column, range.clone()).unwrap();
                            assert!(is_right(&handle.location(), range.start));
                            if what > 5 {
                                assert!(is_right(&handle.wait(), range.start));
                            }
                            kept.push((range.start, handle));
                        }
                    }
                    if kept.len() > 3 {
                        let (start, handle) = kept.remove(0);
                        assert!(is_right(&handle.location(), start));
                    }
                }
            });
        }
    });
}

#[test]
fn no_byte_is_wrong_with_faults_refusals_and_errors_under_many_threads() {
    for (seed, on_fault) in
        [(1, OnFault::FinishOnCpu), (2, OnFault::TouchAndResubmit { limit: 3 }), (3, OnFault::Block)]
    {
        let device = Arc::new(TestDevice::new(QueueMode::Shared, 16));
        let mut config = Config::new([pool(8)]);
        config.in_flight = 4;
        let cache = Cache::new(mover(&device, Policy { on_fault, ..policy() }), config).unwrap();
        let column = source(64);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut chance = Chance::new(seed);
                while !is_over.load(Ordering::SeqCst) {
                    let page = column[usize::try_from(chance.below(64)).unwrap() * BLOCK..].as_ptr() as u64;
                    match chance.below(6) {
                        0 => device.refuse(page),
                        1 => device.fault(page, 2),
                        2 => device.state().answers.push_back(Status::HardwareReadError),
                        3 => device.state().retries += chance.below(3),
                        _ => device.state().faults.clear(),
                    }
                    std::thread::yield_now();
                }
            });
            // Also if one of the readers panics because of a wrong byte.
            let read = catch_unwind(AssertUnwindSafe(|| readers(&cache, &column, seed, 400)));
            is_over.store(true, Ordering::SeqCst);
            assert!(read.is_ok());
        });
        let stats = cache.stats();
        assert!(stats.misses > 0 && stats.copies + stats.fallbacks() > 0, "{stats:?}");
        // The faults are over: blocks are copied again.
        device.state().faults.clear();
        device.state().answers.clear();
        cache.clear();
        (0..8).for_each(|number| assert!(cache.access(&column, block(number)).unwrap().wait_copy(), "{number}"));
    }
}

#[test]
fn no_byte_is_wrong_after_a_device_stops_between_prefetches() {
    for executed in 0..6 {
        let (device, cache) = held_back(pool(16), |config| config.in_flight = 6);
        let column = source(16);
        let ahead: Vec<_> = (0..12).map(|n| cache.prefetch(&column, block(n), Priority(0)).unwrap()).collect();
        device.run(executed);
        device.stop("stopped by the test");
        readers(&cache, &column, 5, 100);
        // Nothing waits for the device any more.
        drop(ahead);
        (0..12).for_each(|number| {
            assert!(is_right(&cache.access(&column, block(number)).unwrap().wait(), number * BLOCK))
        });
        assert_eq!(cache.stats().in_flight, 0);
    }
}

#[test]
fn the_cache_works_while_others_allocate_from_its_pool() {
    let memory = pool(8);
    let mut config = Config::new([memory.clone()]);
    config.in_flight = 3;
    let cache = Cache::new(Mover::cpu(), config).unwrap();
    let column = source(32);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut chance, mut kept) = (Chance::new(1), Vec::new());
            while !is_over.load(Ordering::SeqCst) {
                kept.extend(memory.obtain(usize::try_from(chance.below(3 * BLOCK as u64)).unwrap()));
                if chance.below(3) == 0 {
                    kept.clear();
                }
                std::thread::yield_now();
            }
        });
        let read = catch_unwind(AssertUnwindSafe(|| readers(&cache, &column, 7, 1000)));
        is_over.store(true, Ordering::SeqCst);
        assert!(read.is_ok());
    });
    cache.clear();
    assert_eq!(memory.lent(), 0);
}

#[test]
fn free_bytes_that_are_not_contiguous_do_not_suffice_and_entries_in_use_stay() {
    let cache = at_once(8, |_| {});
    let column = source(12);
    let mut used: Vec<_> = (0..8).map(|number| cache.access(&column, block(number)).unwrap()).step_by(2).collect();
    // Four of eight entries can be evicted, no two of them adjacent.
    let wide = cache.access(&column, 8 * BLOCK..10 * BLOCK).unwrap();
    assert!(!wide.wait_copy() && is_right(&wide.wait(), 8 * BLOCK));
    let stats = cache.stats();
    assert_eq!((stats.fallbacks(), stats.evictions, stats.bytes), (1, 4, 4 * BLOCK as u64));
    assert!(
        used.iter()
            .zip([0, 2, 4, 6])
            .all(|(handle, number)| { handle.is_fast() && is_right(&handle.location(), number * BLOCK) })
    );
    // Evicting one between two gaps makes room for three.
    drop(used.remove(1));
    let wide = cache.access(&column, 8 * BLOCK..11 * BLOCK).unwrap();
    assert!(wide.wait_copy() && is_right(&wide.wait(), 8 * BLOCK));
    assert_eq!((cache.stats().evictions, cache.stats().bytes), (5, 6 * BLOCK as u64));
}

#[test]
fn only_the_first_entries_that_make_room_are_evicted() {
    let cache = at_once(8, |_| {});
    let column = source(16);
    // In an order in which the third evicted entry is adjacent to the first.
    for number in [0, 4, 1, 2, 3, 5, 6, 7] {
        drop(cache.access(&column, block(number)).unwrap());
    }
    drop(cache.access(&column, 8 * BLOCK..10 * BLOCK).unwrap());
    let there: Vec<_> = (0..8).filter(|&number| cache.peek(&column, block(number)).unwrap().is_some()).collect();
    // Their order in memory is the order of insertion: 0 and 4 first.
    assert_eq!((there, cache.stats().evictions), (vec![1, 2, 3, 5, 6, 7], 2));
}

#[test]
fn an_entry_used_after_it_was_chosen_for_eviction_stays() {
    for (eviction, stay) in [(Eviction::LeastRecentlyUsed, [1, 2, 4, 5]), (Eviction::FirstCome, [1, 3, 4, 5])] {
        let cache = at_once(4, |config| config.eviction = eviction.clone());
        let column = source(8);
        // 0 is evicted for 4; 1, 2 and 3 are remembered as the next candidates.
        (0..5).for_each(|number| drop(cache.access(&column, block(number)).unwrap()));
        let held = cache.access(&column, block(1)).unwrap();
        drop(cache.access(&column, block(2)).unwrap());
        drop(cache.access(&column, block(5)).unwrap());
        let there: Vec<_> = (0..8).filter(|&number| cache.peek(&column, block(number)).unwrap().is_some()).collect();
        assert_eq!((&there[..], held.is_fast()), (&stay[..], true), "{eviction:?}");
    }
}

#[test]
fn memory_of_abandoned_copies_is_reused_as_soon_as_they_end() {
    let (device, cache) = held_back(pool(40), |config| config.in_flight = 40);
    let column = source(41);
    (0..40).for_each(|number| drop(cache.access(&column, block(number)).unwrap()));
    assert_eq!((cache.clear(), cache.mover().orphaned()), (40, 40));
    device.run(40);
    // All of it.
    let handle = cache.access(&column, 0..40 * BLOCK).unwrap();
    assert_eq!((cache.stats().fallbacks(), cache.mover().orphaned()), (0, 0));
    device.state().manual = false;
    assert!(handle.wait_copy() && is_right(&handle.wait(), 0));
}

#[test]
fn a_repeated_prefetch_can_raise_its_priority_but_not_lower_it() {
    let (device, cache) = held_back(pool(8), |config| config.in_flight = 1);
    let column = source(8);
    let ask = |number, priority| cache.prefetch(&column, block(number), Priority(priority)).unwrap();
    let ahead = [(0, 1), (1, 1), (2, 1), (3, 1)].map(|(number, priority)| ask(number, priority));
    drop((ask(3, 5), ask(3, 5), ask(1, 0)));
    assert_eq!((cache.stats().in_flight, cache.stats().waiting), (1, 3));
    let mut order = Vec::new();
    for _ in 0..4 {
        device.run(1);
        let new: Vec<_> = (0..4).filter(|at| !order.contains(at) && ahead[*at].is_there()).collect();
        order.extend(new);
    }
    assert_eq!((order, device.state().taken.len()), (vec![0, 3, 1, 2], 4));
}

#[test]
fn accesses_begin_before_all_prefetches() {
    let (device, cache) = held_back(pool(8), |config| config.in_flight = 1);
    let column = source(8);
    let ahead =
        [(0, 255), (1, 255), (2, 255)].map(|(n, urgent)| cache.prefetch(&column, block(n), Priority(urgent)).unwrap());
    // Both wait: a prefetched block, and one that was not announced.
    let asked = [2, 5].map(|number| cache.access(&column, block(number)).unwrap());
    device.run(1);
    cache.drive();
    device.run(1);
    cache.drive();
    device.run(1);
    assert!(asked[0].copy_has_ended() && asked[1].copy_has_ended() && ahead[0].is_there());
    assert!(!ahead[1].is_there());
}

#[test]
fn many_prefetches_waiting_for_room_get_it_soon_after_it_exists() {
    const SMALL: usize = 64;
    let cache: Cache<Source> = Cache::new(Mover::cpu(), Config::new([pool(600 * SMALL / BLOCK + 1)])).unwrap();
    let column = source(32);
    let fits = (600 * SMALL / BLOCK + 1) * BLOCK / SMALL;
    let small = |number: usize| number * SMALL..(number + 1) * SMALL;
    let ahead: Vec<_> = (0..fits).map(|n| cache.prefetch(&column, small(n), Priority(1)).unwrap()).collect();
    assert!(ahead.iter().all(telpher_cache::Prefetch::is_there));
    let waits = cache.prefetch(&column, small(fits), Priority(1)).unwrap();
    // A search for room visits all entries, so most attempts that would fail skip it.
    (0..1000).for_each(|_| assert!(!waits.is_there()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|_| cache.drive()));
        }
    });
    assert!(cache.access(&column, small(7)).unwrap().is_fast());
    assert!((0..=fits / 256).any(|_| waits.is_there()), "a used entry can be evicted");
}

#[test]
fn after_a_policy_panics_the_block_stays_in_its_source_and_the_cache_still_works() {
    let panics = Arc::new(AtomicBool::new(false));
    let worth: Arc<dyn Fn(&Resident) -> u64 + Send + Sync> = {
        let panics = Arc::clone(&panics);
        Arc::new(move |resident| {
            assert!(!panics.load(Ordering::SeqCst), "injected by the test");
            resident.address
        })
    };
    let cache = at_once(2, |config| (config.in_flight, config.eviction) = (1, Eviction::Worth(worth)));
    let column = source(8);
    drop([0, 1].map(|number| cache.access(&column, block(number)).unwrap()));
    panics.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| cache.access(&column, block(2)))).is_err());
    assert!(
        catch_unwind(AssertUnwindSafe(|| cache.access(&column, block(2)))).is_ok(),
        "the block stays in its source"
    );
    assert!(catch_unwind(AssertUnwindSafe(|| cache.prefetch(&column, block(3), Priority(0)))).is_err());
    panics.store(false, Ordering::SeqCst);
    let ahead = cache.prefetch(&column, block(4), Priority(0)).unwrap();
    assert!(ahead.is_there(), "copies whose policy panicked do not count as in flight");
    for number in [2, 3, 5] {
        let handle = cache.access(&column, block(number)).unwrap();
        assert!(handle.wait_copy() && is_right(&handle.wait(), number * BLOCK), "{number}");
    }
    assert_eq!((cache.stats().in_flight, cache.stats().waiting, cache.stats().fallbacks()), (0, 0, 2));
}

#[test]
fn a_policy_may_call_the_cache() {
    type Itself = Option<(Cache<Source>, Source)>;
    let itself: Arc<Mutex<Itself>> = Arc::default();
    let looks = Arc::new(AtomicUsize::new(0));
    let worth: Arc<dyn Fn(&Resident) -> u64 + Send + Sync> = {
        let (itself, looks) = (Arc::clone(&itself), Arc::clone(&looks));
        Arc::new(move |resident| {
            if let Some((cache, column)) = &*itself.lock().unwrap() {
                let there = cache.peek(column, block(1)).unwrap();
                let gone = cache.invalidate(column, block(0)).unwrap();
                assert_eq!(
                    (there.is_some(), gone + 1, cache.stats().entries),
                    (true, 2 - looks.load(Ordering::SeqCst).min(1), 2)
                );
                looks.fetch_add(1, Ordering::SeqCst);
            }
            resident.address
        })
    };
    let cache = at_once(2, |config| config.eviction = Eviction::Worth(worth));
    let column = source(4);
    drop([0, 1].map(|number| cache.access(&column, block(number)).unwrap()));
    *itself.lock().unwrap() = Some((cache.clone(), Arc::clone(&column)));
    let handle = cache.access(&column, block(2)).unwrap();
    assert!(handle.wait_copy() && looks.load(Ordering::SeqCst) > 0);
    drop(itself.lock().unwrap().take());
}

/// Blocks the thread that drops it while it is closed.
#[derive(Clone, Debug, Default)]
struct Gate(Arc<(AtomicBool, AtomicBool)>);

impl Drop for Gate {
    fn drop(&mut self) {
        let (closed, entered) = &*self.0;
        while closed.load(Ordering::SeqCst) {
            entered.store(true, Ordering::SeqCst);
            std::thread::yield_now();
        }
    }
}

#[test]
fn withdraw_waits_for_a_copy_whose_entry_is_being_dropped() {
    let device = Arc::new(TestDevice::new(QueueMode::Shared, 64));
    device.state().manual = true;
    let cache = Cache::new(mover(&device, policy()), Config::new([pool(4)])).unwrap();
    let gate = Gate::default();
    let column = Tagged::new(source(4), gate.clone());
    let (closed, entered) = &*gate.0;
    let last = cache.access(&column, block(0)).unwrap();
    assert_eq!(cache.clear(), 1);
    std::thread::scope(|scope| {
        closed.store(true, Ordering::SeqCst);
        // Between the entry's drop and the mover's takeover of the orphaned copy.
        scope.spawn(move || drop(last));
        while !entered.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        let withdraws = scope.spawn(|| cache.withdraw(&column, block(0)).unwrap());
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(1));
            assert!(
                !withdraws.is_finished() || {
                    closed.store(false, Ordering::SeqCst);
                    false
                },
                "the device is still reading"
            );
        }
        closed.store(false, Ordering::SeqCst);
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(1));
            assert!(!withdraws.is_finished(), "the device is still reading");
        }
        device.run(1);
        assert_eq!(withdraws.join().unwrap(), 0);
    });
}

#[test]
fn withdraw_does_not_wait_for_copies_of_other_sources() {
    let (device, cache) = held_back(pool(4), |_| {});
    let (column, other) = (source(4), source(1));
    drop((cache.access(&other, block(0)).unwrap(), cache.access(&column, block(1)).unwrap()));
    cache.clear();
    assert_eq!(cache.mover().orphaned(), 2);
    // The device executes neither.
    assert_eq!(cache.withdraw(&column, block(0)).unwrap(), 0);
    assert_eq!(cache.withdraw(&column, block(2)).unwrap(), 0);
    device.run(2);
    assert_eq!(cache.withdraw(&column, 0..4 * BLOCK).unwrap(), 0);
    cache.mover().reclaim();
    assert_eq!(cache.mover().orphaned(), 0);
}

#[test]
fn a_dropped_source_lives_as_long_as_anything_reads_it() {
    let (device, cache) = held_back(pool(4), |_| {});
    let column = source(2);
    let owners = Arc::downgrade(&column);
    let handle = cache.access(&column, block(1)).unwrap();
    drop(cache.access(&column, block(0)).unwrap());
    drop(column);
    assert!(is_right(&handle.location(), BLOCK));
    // An unused entry keeps the source, too. After the entry is evicted, only the device reads the source.
    drop(handle);
    cache.clear();
    assert!(owners.strong_count() > 0);
    device.run(2);
    cache.mover().reclaim();
    assert_eq!((owners.strong_count(), cache.stats().bytes), (0, 0));
}

#[test]
fn a_thread_waiting_when_the_cache_is_dropped_gets_the_block() {
    for seed in 0..20 {
        let memory = pool(8);
        let (device, cache) = held_back(memory.clone(), |config| config.in_flight = 2);
        let column = source(6);
        let handles: Vec<_> = (0..6).map(|number| cache.access(&column, block(number)).unwrap()).collect();
        std::thread::scope(|scope| {
            for (number, handle) in handles.into_iter().enumerate() {
                scope.spawn(move || assert!(is_right(&handle.wait(), number * BLOCK)));
            }
            (0..seed).for_each(|_| std::thread::yield_now());
            let ahead = cache.prefetch(&column, block(0), Priority(1)).unwrap();
            drop(cache);
            device.state().manual = false;
            drop(ahead);
        });
        assert_eq!((memory.lent(), Arc::strong_count(&column)), (0, 1), "nothing keeps the source");
    }
}
