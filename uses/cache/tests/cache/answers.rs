//! The cache's guarantees, one test each: with a device that the test controls, and plain slices to compare with.

use crate::common::device::TestDevice;
use crate::common::{Chance, block_on, mover, policy};
use crate::shelf::{BLOCK, Source, at_once, block, held_back, pool};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use telpher_cache::{
    AccessError, Cache, Config, ConfigError, Eviction, Placement, PlacementRequest, Priority, Resident, TierConfig,
};
use telpher_mem::Pool;
use telpher_mover::{Mover, OnFault, Policy};
use telpher_portal::QueueMode;

fn source(blocks: usize) -> Source {
    Chance::new(3).bytes(blocks * BLOCK).into()
}

#[test]
fn a_block_is_copied_once_for_all_handles_and_reads_give_the_source_until_then() {
    let (device, cache) = held_back(pool(4), |_| {});
    let column = source(4);
    let (first, second) = (cache.access(&column, block(1)).unwrap(), cache.access(&column, block(1)).unwrap());
    let part = cache.access(&column, BLOCK + 100..BLOCK + 200).unwrap();
    assert_eq!(device.state().taken.len(), 1);
    for (handle, range) in [(&first, block(1)), (&second, block(1)), (&part, BLOCK + 100..BLOCK + 200)] {
        assert!(!handle.copy_has_ended() && !handle.is_fast());
        assert_eq!(handle.location().bytes().as_ptr(), column[range.clone()].as_ptr());
        assert_eq!(handle.location().bytes(), &column[range]);
    }
    device.run(1);
    // The first handle that is read completes the copy for all.
    assert!(part.copy_has_ended() && first.is_fast() && second.is_fast());
    assert_eq!(
        (first.location().bytes(), part.location().bytes()),
        (&column[block(1)], &column[BLOCK + 100..BLOCK + 200])
    );
    assert_ne!(first.location().bytes().as_ptr(), column[block(1)].as_ptr());
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.copies, stats.bytes_copied), (2, 1, 1, BLOCK as u64));
    assert_eq!((stats.entries, stats.in_flight, stats.bytes, stats.hit_rate()), (1, 0, BLOCK as u64, Some(2.0 / 3.0)));
}

#[test]
fn the_first_handle_may_be_dropped_and_others_still_get_the_block() {
    let (device, cache) = held_back(pool(4), |_| {});
    let column = source(2);
    let waits = cache.access(&column, block(0)).unwrap();
    drop(cache.access(&column, block(0)).unwrap());
    let other = {
        let (cache, column) = (cache.clone(), Arc::clone(&column));
        std::thread::spawn(move || drop(cache.access(&column, block(1)).unwrap()))
    };
    other.join().unwrap();
    let orphan = cache.access(&column, block(1)).unwrap();
    device.state().manual = false;
    assert!(orphan.wait_copy() && waits.wait_copy());
    assert_eq!(orphan.wait().bytes(), &column[block(1)]);
    assert_eq!(cache.stats().copies, 2);
}

#[test]
fn a_handle_can_be_awaited() {
    let (device, cache) = held_back(pool(4), |_| {});
    let column = source(1);
    let handle = cache.access(&column, block(0)).unwrap();
    let mut arrival = (&handle).into_future();
    assert!(block_on(&mut arrival, 3).is_none());
    device.run(1);
    assert_eq!(block_on(arrival, 1).unwrap().bytes(), &column[..]);
    assert_eq!(block_on(handle.wait_copy_async(), 1), Some(true));
}

#[test]
fn peek_copies_nothing() {
    let (device, cache) = held_back(pool(4), |_| {});
    let column = source(2);
    assert!(cache.peek(&column, block(0)).unwrap().is_none());
    assert!(device.state().taken.is_empty());
    let _handle = cache.access(&column, block(0)).unwrap();
    assert!(cache.peek(&column, 10..20).unwrap().is_some());
    assert_eq!((cache.stats().weak_misses, cache.stats().misses, cache.stats().hits), (1, 2, 1));
}

#[test]
fn invalid_requests_are_refused() {
    let cache = at_once(1, |_| {});
    let column = source(1);
    #[allow(clippy::reversed_empty_ranges, reason = "must be refused")]
    for (range, error) in [
        (5..5, AccessError::Empty),
        (5..4, AccessError::Empty),
        (0..BLOCK + 1, AccessError::Outside { range: 0..BLOCK + 1, len: BLOCK }),
        (usize::MAX..usize::MAX, AccessError::Outside { range: usize::MAX..usize::MAX, len: BLOCK }),
    ] {
        assert_eq!(cache.access(&column, range.clone()).unwrap_err(), error);
        assert_eq!(cache.peek(&column, range.clone()).unwrap_err(), error);
        assert_eq!(cache.prefetch(&column, range.clone(), Priority(0)).unwrap_err(), error);
        assert_eq!(cache.invalidate(&column, range).unwrap_err(), error);
    }
    assert_eq!(cache.access_in(1, &column, 0..1).unwrap_err(), AccessError::NoSuchTier { tier: 1, tiers: 1 });
    let new = |config| Cache::<Source>::new(Mover::cpu(), config).unwrap_err();
    assert_eq!(new(Config::new([] as [Pool; 0])), ConfigError::NoTier);
    let placed = Config { placement: Placement::Fixed(2), ..Config::new([pool(1)]) };
    assert_eq!(new(placed), ConfigError::NoSuchTier { tier: 2, tiers: 1 });
}

#[test]
fn after_a_failed_copy_the_source_is_read_and_the_next_access_retries() {
    let device = Arc::new(TestDevice::new(QueueMode::Shared, 64));
    let cache =
        Cache::new(mover(&device, Policy { on_fault: OnFault::Block, ..policy() }), Config::new([pool(1)])).unwrap();
    let column = source(1);
    device.refuse(column.as_ptr() as u64);
    let failed = cache.access(&column, block(0)).unwrap();
    assert!(!failed.wait_copy());
    assert_eq!(failed.wait().bytes(), &column[..]);
    let stats = cache.stats();
    assert_eq!((stats.fallbacks(), stats.copies, stats.entries, stats.bytes), (1, 0, 0, 0));
    device.state().faults.clear();
    assert!(cache.access(&column, block(0)).unwrap().wait_copy());
    assert!(!failed.is_fast(), "a handle keeps the location that it returned before");
}

#[test]
fn no_byte_is_wrong_after_a_device_stops() {
    let (device, cache) = held_back(pool(8), |_| {});
    let column = source(8);
    let handles: Vec<_> = (0..8).map(|n| cache.access(&column, block(n)).unwrap()).collect();
    device.run(3);
    device.stop("stopped by the test");
    for (number, handle) in handles.iter().enumerate() {
        assert_eq!(handle.wait().bytes(), &column[block(number)]);
        assert!(handle.is_fast(), "the CPU copied it");
    }
}

#[test]
fn page_faults_during_a_copy_are_handled_by_the_mover() {
    for on_fault in [OnFault::FinishOnCpu, OnFault::Block, OnFault::TouchAndResubmit { limit: 8 }] {
        let device = Arc::new(TestDevice::new(QueueMode::Shared, 64));
        let cache = Cache::new(mover(&device, Policy { on_fault, ..policy() }), Config::new([pool(4)])).unwrap();
        let column = source(4);
        for page in 0..4 {
            device.fault(column[page * BLOCK..].as_ptr() as u64, 2);
        }
        let handle = cache.access(&column, 0..4 * BLOCK).unwrap();
        assert_eq!(handle.wait().bytes(), &column[..]);
        assert!(handle.is_fast());
    }
}

#[test]
fn without_free_memory_a_block_stays_in_its_source_and_is_copied_once_there_is_some() {
    let cache = at_once(2, |_| {});
    let column = source(4);
    let (a, b) = (cache.access(&column, block(0)).unwrap(), cache.access(&column, block(1)).unwrap());
    let c = cache.access(&column, block(2)).unwrap();
    assert!(a.wait_copy() && b.wait_copy() && !c.wait_copy());
    assert_eq!(c.wait().bytes(), &column[block(2)]);
    // Larger than all memory: nothing is evicted for it.
    assert!(!cache.access(&column, 0..3 * BLOCK).unwrap().wait_copy());
    drop(a);
    let c = cache.access(&column, block(2)).unwrap();
    assert!(c.wait_copy());
    let stats = cache.stats();
    assert_eq!((stats.fallbacks(), stats.evictions, stats.entries), (2, 1, 2));
}

#[test]
fn the_least_recently_used_entry_is_evicted_first_and_entries_in_use_stay() {
    let cache = at_once(4, |_| {});
    let column = source(8);
    for number in [0, 1, 2, 3] {
        let _ = cache.access(&column, block(number)).unwrap();
    }
    let used = cache.access(&column, block(1)).unwrap();
    let _ = cache.access(&column, block(0)).unwrap();
    for (new, gone) in [(4, 2), (5, 3), (6, 0), (7, 4)] {
        let _ = cache.access(&column, block(new)).unwrap();
        assert!(cache.peek(&column, block(gone)).unwrap().is_none(), "{gone} is evicted for {new}");
        assert!(cache.peek(&column, block(1)).unwrap().is_some());
    }
    assert_eq!(used.location().bytes(), &column[block(1)]);
}

#[test]
fn each_eviction_policy_evicts_the_entry_it_names() {
    let worth: Arc<dyn Fn(&Resident) -> u64 + Send + Sync> = Arc::new(|resident| u64::MAX - resident.address);
    for (eviction, gone) in [(Eviction::FirstCome, 0), (Eviction::Largest, 2), (Eviction::Worth(worth), 3)] {
        let cache = at_once(6, |config| config.eviction = eviction.clone());
        let column = source(8);
        let ranges = [0..BLOCK, BLOCK..2 * BLOCK, 2 * BLOCK..5 * BLOCK, 5 * BLOCK..6 * BLOCK];
        for range in &ranges {
            let _ = cache.access(&column, range.clone()).unwrap();
        }
        let _ = cache.access(&column, 0..BLOCK).unwrap();
        let _ = cache.access(&column, block(7)).unwrap();
        let there = ranges.map(|range| cache.peek(&column, range).unwrap().is_some());
        let expected: [bool; 4] = std::array::from_fn(|at| at != gone);
        assert_eq!(there, expected, "{eviction:?}");
    }
}

#[test]
fn invalidation_removes_every_overlapping_entry_and_no_other() {
    let cache = at_once(16, |_| {});
    let column = source(8);
    let ranges = [0..2 * BLOCK, BLOCK..3 * BLOCK, 100..200, 3 * BLOCK..4 * BLOCK, 0..8 * BLOCK];
    let handles = ranges.clone().map(|range| cache.access(&column, range).unwrap());
    assert_eq!(cache.stats().entries, 4, "100..200 is part of the first");
    // A longer entry replaces one with the same start; the replaced one can still become stale.
    let longer = cache.access(&column, 0..2 * BLOCK + 1).unwrap();
    assert!(longer.is_fast() && cache.stats().entries == 4);
    assert_eq!(cache.invalidate(&column, 2 * BLOCK - 1..2 * BLOCK).unwrap(), 2 + 1);
    assert_eq!(handles.each_ref().map(|handle| handle.is_stale()), [true, true, true, false, true]);
    assert!(longer.is_stale());
    assert_eq!(cache.stats().entries, 1);
    assert!(cache.peek(&column, 100..200).unwrap().is_none());
    assert!(cache.peek(&column, 3 * BLOCK..4 * BLOCK).unwrap().is_some());
    // Their bytes do not change.
    for (range, handle) in ranges.into_iter().zip(&handles) {
        assert_eq!(handle.location().bytes(), &column[range]);
    }
}

#[test]
fn a_copy_invalidated_in_flight_serves_only_its_existing_handles() {
    let (device, cache) = held_back(pool(4), |_| {});
    let column = source(2);
    let handle = cache.access(&column, block(0)).unwrap();
    assert_eq!(cache.invalidate(&column, 0..1).unwrap(), 1);
    let anew = cache.access(&column, block(0)).unwrap();
    assert_eq!(device.state().taken.len(), 2);
    device.run(2);
    assert!(handle.wait_copy() && anew.wait_copy() && handle.is_stale() && !anew.is_stale());
    // Dropped by all while in flight: the memory is freed when the device has finished.
    let forgotten = cache.access(&column, block(1)).unwrap();
    drop((forgotten, handle));
    assert_eq!(cache.clear(), 2);
    assert_eq!(cache.stats().bytes, 2 * BLOCK as u64, "of the remaining handle, and of the copy in flight");
    assert_eq!((device.run(1), cache.mover().orphaned()), (1, 1));
    // The mover checks a few of its orphaned copies at a time.
    (0..100).for_each(|_| cache.drive());
    assert_eq!((cache.mover().orphaned(), cache.stats().bytes), (0, BLOCK as u64));
}

#[test]
fn flush_removes_unused_entries_and_clear_removes_all() {
    let cache = at_once(4, |_| {});
    let column = source(4);
    let used = cache.access(&column, block(0)).unwrap();
    let _ = cache.access(&column, block(1)).unwrap();
    assert_eq!((cache.flush(), cache.stats().entries), (1, 1));
    assert_eq!((cache.clear(), cache.stats().entries), (1, 0));
    assert!(used.is_fast() && !used.is_stale());
    assert_eq!((used.location().bytes(), cache.stats().bytes), (&column[block(0)], BLOCK as u64));
    drop(used);
    assert_eq!(cache.stats().bytes, 0);
}

#[test]
fn a_handle_outlives_its_cache_whether_or_not_its_copy_has_arrived() {
    let (device, cache) = held_back(pool(4), |config| config.in_flight = 1);
    let column = source(3);
    let handles: Vec<_> = (0..3).map(|n| cache.access(&column, block(n)).unwrap()).collect();
    let expected = Arc::clone(&column);
    drop((cache, column));
    device.state().manual = false;
    for (number, handle) in handles.iter().enumerate() {
        assert_eq!(handle.wait().bytes(), &expected[block(number)]);
        assert!(handle.is_fast());
    }
    drop(handles);
    assert_eq!(Arc::strong_count(&expected), 1, "nothing keeps the source");
}

#[test]
fn dropping_a_cache_with_copies_in_flight_leaks_nothing() {
    let (device, cache) = held_back(pool(4), |config| config.in_flight = 2);
    let column = source(4);
    for number in 0..4 {
        let _ = cache.prefetch(&column, block(number), Priority(0)).unwrap();
    }
    assert_eq!((cache.stats().in_flight, cache.stats().waiting), (2, 2));
    let mover = cache.mover().clone();
    drop(cache);
    assert_eq!(mover.orphaned(), 2);
    device.run(8);
    (0..100).for_each(|_| mover.drive());
    assert_eq!((mover.orphaned(), Arc::strong_count(&column)), (0, 1));
}

#[test]
fn prefetches_begin_by_priority_up_to_the_in_flight_limit() {
    let (device, cache) = held_back(pool(8), |config| config.in_flight = 2);
    let column = source(8);
    let ahead: Vec<_> = [(0, 1), (1, 1), (2, 1), (3, 9), (4, 5)]
        .into_iter()
        .map(|(number, priority)| cache.prefetch(&column, block(number), Priority(priority)).unwrap())
        .collect();
    assert_eq!((cache.stats().in_flight, cache.stats().waiting, device.state().taken.len()), (2, 3, 2));
    device.run(1);
    cache.drive();
    device.run(2);
    assert!(ahead[0].is_there() && ahead[1].is_there() && ahead[3].is_there() && !ahead[2].is_there());
    // An access does not wait for its prefetch's turn.
    let wanted = cache.access(&column, block(2)).unwrap();
    device.state().manual = false;
    assert_eq!(wanted.wait().bytes(), &column[block(2)]);
    let stats = cache.stats();
    assert_eq!((stats.prefetches, stats.hits, stats.misses), (5, 1, 0));
}

#[test]
fn a_prefetch_cancelled_before_it_begins_is_never_copied() {
    let (device, cache) = held_back(pool(8), |config| config.in_flight = 1);
    let column = source(4);
    let [begun, waits, other] = [0, 1, 2].map(|n| cache.prefetch(&column, block(n), Priority(0)).unwrap());
    let handle = cache.access(&column, block(1)).unwrap();
    assert!(!begun.cancel() && waits.cancel());
    assert!(handle.copy_has_ended() && !handle.is_fast());
    assert_eq!(handle.location().bytes(), &column[block(1)]);
    device.state().manual = false;
    device.run(4);
    assert!(other.is_there());
    let stats = cache.stats();
    assert_eq!((stats.copies, stats.cancelled, stats.entries), (2, 1, 2));
}

#[test]
fn prefetches_wait_for_room_and_are_not_evicted_before_their_first_use() {
    let cache = at_once(2, |_| {});
    let column = source(8);
    let ahead: Vec<_> = (0..4).map(|n| cache.prefetch(&column, block(n), Priority(0)).unwrap()).collect();
    assert_eq!(ahead.iter().map(telpher_cache::Prefetch::is_there).collect::<Vec<_>>(), [true, true, false, false]);
    for number in 0..4 {
        let handle = cache.access(&column, block(number)).unwrap();
        assert!(handle.is_fast(), "{number} was copied after an earlier one had been used");
        drop(handle);
        cache.drive();
    }
    assert_eq!((cache.stats().misses, cache.stats().evictions), (0, 2));
    // An access goes before prefetches.
    let _ = cache.prefetch(&column, block(4), Priority(255)).unwrap();
    let _ = cache.prefetch(&column, block(5), Priority(255)).unwrap();
    assert!(cache.access(&column, block(6)).unwrap().wait_copy());
    // A block that never fits does not wait.
    let never = cache.prefetch(&column, 0..3 * BLOCK, Priority(255)).unwrap();
    assert!(!never.is_there());
    assert_eq!(cache.stats().waiting, 0);
}

#[test]
fn the_placement_policy_chooses_the_tier() {
    let column = source(8);
    let two = || Config::new([pool(8), pool(8)]);
    let lent = |config: Config, numbers: &[usize]| {
        let pools: Vec<Pool> = config.tiers.iter().map(|tier| tier.pool.clone()).collect();
        let cache = Cache::new(Mover::cpu(), config).unwrap();
        let handles: Vec<_> = numbers.iter().map(|&n| cache.access(&column, block(n)).unwrap()).collect();
        let lent = pools.iter().map(|pool| pool.lent() / BLOCK).collect::<Vec<_>>();
        drop(handles);
        lent
    };
    assert_eq!(lent(Config { placement: Placement::Fixed(1), ..two() }, &[0, 1]), [0, 2]);
    assert_eq!(lent(two(), &[0, 1]), [2, 0], "no tier has a node: the first");
    let near = Config {
        tiers: vec![TierConfig { pool: pool(8), near: Some(77) }, TierConfig { pool: pool(8), near: Some(0) }],
        ..two()
    };
    if telpher_os::Nodes::of_this_machine().count() == 1 {
        assert_eq!(lent(near, &[0, 1]), [0, 2]);
    }
    let turns = Config { placement: Placement::Interleaved { bytes: BLOCK as u64 }, ..two() };
    // Every other block. Which tier is first depends on the source's address; a block may span two intervals.
    assert_eq!(lent(turns, &[0, 1, 2, 3, 4, 5]), [3, 3]);
    // As the caller's function says; a number that is too large means the last tier.
    let start = column.as_ptr().addr() as u64;
    let first_blocks = move |asked: &PlacementRequest| match (asked.address - start, asked.len, asked.node) {
        (at, 4096, _) if at < 2 * BLOCK as u64 => 0,
        _ => usize::MAX,
    };
    let chosen = Config { placement: Placement::Chosen(Arc::new(first_blocks)), ..two() };
    assert_eq!(lent(chosen, &[0, 1, 2, 3, 4]), [2, 3]);
    let cache = Cache::new(Mover::cpu(), two()).unwrap();
    let (here, there) =
        (cache.access_in(0, &column, block(0)).unwrap(), cache.access_in(1, &column, block(0)).unwrap());
    assert_ne!(here.location().bytes().as_ptr(), there.location().bytes().as_ptr());
    assert_eq!(cache.invalidate(&column, 0..1).unwrap(), 2);
}

#[test]
fn nothing_reads_withdrawn_bytes() {
    let (device, cache) = held_back(pool(4), |config| config.in_flight = 1);
    let column = source(4);
    let in_flight = cache.access(&column, block(0)).unwrap();
    let waiting = cache.access(&column, block(1)).unwrap();
    let kept = cache.access(&column, block(3)).unwrap();
    let ahead = cache.prefetch(&column, block(2), Priority(1)).unwrap();
    // Entries that were removed from the cache are still read by the device.
    assert_eq!(cache.clear(), 4);
    let answered = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let withdrawn = scope.spawn(|| {
            let gone = cache.withdraw(&column, 0..3 * BLOCK).unwrap();
            assert!(answered.load(Ordering::SeqCst), "the device still reads");
            gone
        });
        answered.store(true, Ordering::SeqCst);
        device.run(1);
        assert_eq!(withdrawn.join().unwrap(), 0);
    });
    assert!(in_flight.is_fast() && in_flight.is_stale());
    assert!(waiting.copy_has_ended() && !waiting.is_fast() && waiting.is_stale());
    assert!(!ahead.cancel() && !kept.is_stale());
    assert_eq!(in_flight.location().bytes(), &column[block(0)]);
    // Nor does the mover read them for a dropped handle.
    let dropped = cache.access(&column, block(0)).unwrap();
    assert!(!dropped.copy_has_ended(), "it has begun, as has the kept one");
    drop(dropped);
    assert_eq!(cache.flush(), 1);
    assert_eq!(cache.mover().orphaned(), 1);
    device.run(2);
    assert_eq!((cache.withdraw(&column, block(0)).unwrap(), cache.mover().orphaned()), (0, 0));
    // No copy was begun for the cancelled ones.
    device.state().manual = false;
    assert!(kept.wait_copy());
    assert_eq!((device.state().taken.len(), cache.stats().copies), (3, 2));
}

#[test]
fn waits_end_although_the_device_never_answers() {
    let device = Arc::new(TestDevice::new(QueueMode::Shared, 64));
    (device.state().manual, device.state().retirable) = (true, true);
    let policy = Policy { limit: Duration::from_millis(50), ..policy() };
    let cache = Cache::new(mover(&device, policy), Config::new([pool(2)])).unwrap();
    let column = source(2);
    let kept = cache.access(&column, block(0)).unwrap();
    assert!(!kept.wait_copy_for(Duration::ZERO) && !kept.wait_copy_for(Duration::from_millis(1)));
    assert_eq!(kept.location().bytes(), &column[block(0)]);
    drop(cache.access(&column, block(1)).unwrap());
    assert_eq!((cache.flush(), cache.mover().orphaned()), (1, 1));
    assert_eq!(cache.withdraw(&column, block(1)), Ok(0));
    assert_eq!(cache.mover().orphaned(), 0, "the mover gave up its queue");
    // The CPU copies it once the queue has been given up.
    assert!(kept.wait_copy_for(Duration::from_secs(1)) && kept.is_fast());
    assert_eq!((cache.stats().bytes, cache.stats().copies), (BLOCK as u64, 1));
}

#[test]
fn entries_removed_while_in_use_become_stale_too() {
    let cache = at_once(4, |_| {});
    let column = source(2);
    let handles = [0, 1].map(|n| cache.access(&column, block(n)).unwrap());
    assert_eq!(cache.clear(), 2);
    assert_eq!(cache.invalidate(&column, 5..6).unwrap(), 0);
    assert_eq!(handles.map(|handle| handle.is_stale()), [true, false]);
}

#[test]
fn an_empty_column_has_no_block() {
    let cache = at_once(1, |_| {});
    let column: Source = Arc::from([]);
    assert_eq!(cache.access(&column, 0..0).unwrap_err(), AccessError::Empty);
}
