//! What a cache promises, each asked by a test: a device that does what it is told on the one side, plain slices on the other.
#![cfg(not(loom))]

#[path = "../../../path/mover/tests/common/mod.rs"]
mod common;
mod shelf;

use common::device::TestDevice;
use common::{Chance, block_on, mover, policy};
use shelf::{BLOCK, Source, at_once, block, held_back, pool};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use telpher_cache::{
    AccessError, Asked, Cache, Config, ConfigError, Eviction, Placement, Priority, Resident, TierConfig,
};
use telpher_mem::Pool;
use telpher_mover::{Mover, OnFault, Policy};
use telpher_portal::QueueMode;

fn source(blocks: usize) -> Source {
    Chance::new(3).bytes(blocks * BLOCK).into()
}

#[test]
fn a_block_is_copied_once_whoever_asks_and_is_the_source_until_then() {
    let (device, cache) = held_back(pool(4), |_| {});
    let column = source(4);
    let (first, second) = (cache.access(&column, block(1)).unwrap(), cache.access(&column, block(1)).unwrap());
    let part = cache.access(&column, BLOCK + 100..BLOCK + 200).unwrap();
    assert_eq!(device.state().taken.len(), 1);
    for (handle, range) in [(&first, block(1)), (&second, block(1)), (&part, BLOCK + 100..BLOCK + 200)] {
        assert!(!handle.is_settled() && !handle.is_fast());
        assert_eq!(handle.location().bytes().as_ptr(), column[range.clone()].as_ptr());
        assert_eq!(handle.location().bytes(), &column[range]);
    }
    device.run(1);
    // The first that looks brings it about for all.
    assert!(part.is_settled() && first.is_fast() && second.is_fast());
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
fn who_asked_first_may_go_away_and_others_get_the_block() {
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
    assert!(orphan.settle() && waits.settle());
    assert_eq!(orphan.wait().bytes(), &column[block(1)]);
    assert_eq!(cache.stats().copies, 2);
}

#[test]
fn executors_get_the_bytes_by_await() {
    let (device, cache) = held_back(pool(4), |_| {});
    let column = source(1);
    let handle = cache.access(&column, block(0)).unwrap();
    let mut arrival = (&handle).into_future();
    assert!(block_on(&mut arrival, 3).is_none());
    device.run(1);
    assert_eq!(block_on(arrival, 1).unwrap().bytes(), &column[..]);
    assert_eq!(block_on(handle.settled(), 1), Some(true));
}

#[test]
fn weak_access_copies_nothing() {
    let (device, cache) = held_back(pool(4), |_| {});
    let column = source(2);
    assert!(cache.peek(&column, block(0)).unwrap().is_none());
    assert!(device.state().taken.is_empty());
    let _handle = cache.access(&column, block(0)).unwrap();
    assert!(cache.peek(&column, 10..20).unwrap().is_some());
    assert_eq!((cache.stats().weak_misses, cache.stats().misses, cache.stats().hits), (1, 2, 1));
}

#[test]
fn what_cannot_be_asked_for_is_refused() {
    let cache = at_once(1, |_| {});
    let column = source(1);
    #[allow(clippy::reversed_empty_ranges, reason = "what must be refused")]
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
fn a_copy_that_fails_leaves_the_source_and_is_tried_anew_next_time() {
    let device = Arc::new(TestDevice::new(QueueMode::Shared, 64));
    let cache =
        Cache::new(mover(&device, Policy { on_fault: OnFault::Block, ..policy() }), Config::new([pool(1)])).unwrap();
    let column = source(1);
    device.refuse(column.as_ptr() as u64);
    let failed = cache.access(&column, block(0)).unwrap();
    assert!(!failed.settle());
    assert_eq!(failed.wait().bytes(), &column[..]);
    let stats = cache.stats();
    assert_eq!((stats.fallbacks, stats.copies, stats.entries, stats.bytes), (1, 0, 0, 0));
    device.state().faults.clear();
    assert!(cache.access(&column, block(0)).unwrap().settle());
    assert!(!failed.is_fast(), "what a handle gave before, it gives again");
}

#[test]
fn a_device_that_stops_costs_no_byte() {
    let (device, cache) = held_back(pool(8), |_| {});
    let column = source(8);
    let handles: Vec<_> = (0..8).map(|n| cache.access(&column, block(n)).unwrap()).collect();
    device.run(3);
    device.stop("the test pulled it out");
    for (number, handle) in handles.iter().enumerate() {
        assert_eq!(handle.wait().bytes(), &column[block(number)]);
        assert!(handle.is_fast(), "the CPU has done it");
    }
}

#[test]
fn pages_that_fault_under_a_copy_are_the_mover_s_business() {
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
fn without_memory_a_block_stays_in_its_source_and_comes_when_there_is_some() {
    let cache = at_once(2, |_| {});
    let column = source(4);
    let (a, b) = (cache.access(&column, block(0)).unwrap(), cache.access(&column, block(1)).unwrap());
    let c = cache.access(&column, block(2)).unwrap();
    assert!(a.settle() && b.settle() && !c.settle());
    assert_eq!(c.wait().bytes(), &column[block(2)]);
    // Larger than all memory there is: nobody has to go for it.
    assert!(!cache.access(&column, 0..3 * BLOCK).unwrap().settle());
    drop(a);
    let c = cache.access(&column, block(2)).unwrap();
    assert!(c.settle());
    let stats = cache.stats();
    assert_eq!((stats.fallbacks, stats.evictions, stats.entries), (2, 1, 2));
}

#[test]
fn the_least_recently_used_goes_first_and_what_is_used_stays() {
    let cache = at_once(4, |_| {});
    let column = source(8);
    for number in [0, 1, 2, 3] {
        let _ = cache.access(&column, block(number)).unwrap();
    }
    let used = cache.access(&column, block(1)).unwrap();
    let _ = cache.access(&column, block(0)).unwrap();
    for (new, gone) in [(4, 2), (5, 3), (6, 0), (7, 4)] {
        let _ = cache.access(&column, block(new)).unwrap();
        assert!(cache.peek(&column, block(gone)).unwrap().is_none(), "{gone} goes for {new}");
        assert!(cache.peek(&column, block(1)).unwrap().is_some());
    }
    assert_eq!(used.location().bytes(), &column[block(1)]);
}

#[test]
fn other_policies_let_others_go() {
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
fn invalidation_hits_every_entry_that_overlaps_and_no_other() {
    let cache = at_once(16, |_| {});
    let column = source(8);
    let ranges = [0..2 * BLOCK, BLOCK..3 * BLOCK, 100..200, 3 * BLOCK..4 * BLOCK, 0..8 * BLOCK];
    let handles = ranges.clone().map(|range| cache.access(&column, range).unwrap());
    assert_eq!(cache.stats().entries, 4, "100..200 is a part of the first");
    // A longer one takes the place of the one it begins with; that can become stale all the same.
    let longer = cache.access(&column, 0..2 * BLOCK + 1).unwrap();
    assert!(longer.is_fast() && cache.stats().entries == 4);
    assert_eq!(cache.invalidate(&column, 2 * BLOCK - 1..2 * BLOCK).unwrap(), 2 + 1);
    assert_eq!(handles.each_ref().map(|handle| handle.is_stale()), [true, true, true, false, true]);
    assert!(longer.is_stale());
    assert_eq!(cache.stats().entries, 1);
    assert!(cache.peek(&column, 100..200).unwrap().is_none());
    assert!(cache.peek(&column, 3 * BLOCK..4 * BLOCK).unwrap().is_some());
    // They stay what they were.
    for (range, handle) in ranges.into_iter().zip(&handles) {
        assert_eq!(handle.location().bytes(), &column[range]);
    }
}

#[test]
fn invalidated_under_way_a_copy_is_nobody_s_but_its_handles() {
    let (device, cache) = held_back(pool(4), |_| {});
    let column = source(2);
    let handle = cache.access(&column, block(0)).unwrap();
    assert_eq!(cache.invalidate(&column, 0..1).unwrap(), 1);
    let anew = cache.access(&column, block(0)).unwrap();
    assert_eq!(device.state().taken.len(), 2);
    device.run(2);
    assert!(handle.settle() && anew.settle() && handle.is_stale() && !anew.is_stale());
    // Forgotten by all while under way: the memory comes back when the device has done with it.
    let forgotten = cache.access(&column, block(1)).unwrap();
    drop((forgotten, handle));
    assert_eq!(cache.clear(), 2);
    assert_eq!(cache.stats().bytes, 2 * BLOCK as u64, "of the handle that is left, and of the copy under way");
    assert_eq!((device.run(1), cache.mover().orphaned()), (1, 1));
    // The mover looks at some of what was left to it at a time.
    (0..100).for_each(|_| cache.drive());
    assert_eq!((cache.mover().orphaned(), cache.stats().bytes), (0, BLOCK as u64));
}

#[test]
fn flush_lets_go_of_what_nobody_uses_and_clear_of_all() {
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
fn a_handle_outlives_its_cache_settled_or_not() {
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
    assert_eq!(Arc::strong_count(&expected), 1, "nothing is kept");
}

#[test]
fn a_cache_that_goes_with_copies_under_way_leaves_nothing_behind() {
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
fn copies_ahead_begin_by_priority_as_many_as_may_be_under_way() {
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
    // Somebody asks for it: it does not wait its turn any longer than he does.
    let wanted = cache.access(&column, block(2)).unwrap();
    device.state().manual = false;
    assert_eq!(wanted.wait().bytes(), &column[block(2)]);
    let stats = cache.stats();
    assert_eq!((stats.prefetches, stats.hits, stats.misses), (5, 1, 0));
}

#[test]
fn what_is_called_off_before_it_began_is_never_copied() {
    let (device, cache) = held_back(pool(8), |config| config.in_flight = 1);
    let column = source(4);
    let [begun, waits, other] = [0, 1, 2].map(|n| cache.prefetch(&column, block(n), Priority(0)).unwrap());
    let handle = cache.access(&column, block(1)).unwrap();
    assert!(!begun.cancel() && waits.cancel());
    assert!(handle.is_settled() && !handle.is_fast());
    assert_eq!(handle.location().bytes(), &column[block(1)]);
    device.state().manual = false;
    device.run(4);
    assert!(other.is_there());
    let stats = cache.stats();
    assert_eq!((stats.copies, stats.cancelled, stats.entries), (2, 1, 2));
}

#[test]
fn what_was_fetched_ahead_waits_for_room_and_is_not_let_go_before_it_was_used() {
    let cache = at_once(2, |_| {});
    let column = source(8);
    let ahead: Vec<_> = (0..4).map(|n| cache.prefetch(&column, block(n), Priority(0)).unwrap()).collect();
    assert_eq!(ahead.iter().map(telpher_cache::Prefetch::is_there).collect::<Vec<_>>(), [true, true, false, false]);
    for number in 0..4 {
        let handle = cache.access(&column, block(number)).unwrap();
        assert!(handle.is_fast(), "{number} came when one before it had been used");
        drop(handle);
        cache.drive();
    }
    assert_eq!((cache.stats().misses, cache.stats().evictions), (0, 2));
    // Who asks goes before who only says that he will.
    let _ = cache.prefetch(&column, block(4), Priority(255)).unwrap();
    let _ = cache.prefetch(&column, block(5), Priority(255)).unwrap();
    assert!(cache.access(&column, block(6)).unwrap().settle());
    // One that never fits is not waited for.
    let never = cache.prefetch(&column, 0..3 * BLOCK, Priority(255)).unwrap();
    assert!(!never.is_there());
    assert_eq!(cache.stats().waiting, 0);
}

#[test]
fn tiers_are_chosen_as_the_policy_says() {
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
    assert_eq!(lent(two(), &[0, 1]), [2, 0], "near nobody: the first");
    let near = Config {
        tiers: vec![TierConfig { pool: pool(8), near: Some(77) }, TierConfig { pool: pool(8), near: Some(0) }],
        ..two()
    };
    if telpher_os::Nodes::of_this_machine().count() == 1 {
        assert_eq!(lent(near, &[0, 1]), [0, 2]);
    }
    let turns = Config { placement: Placement::Interleaved { bytes: BLOCK as u64 }, ..two() };
    // Every other block, whichever is first where the source happens to lie; a block may straddle two turns.
    assert_eq!(lent(turns, &[0, 1, 2, 3, 4, 5]), [3, 3]);
    // As a function of one's own says; a number that is too large is the last.
    let start = column.as_ptr().addr() as u64;
    let first_blocks = move |asked: &Asked| match (asked.address - start, asked.len, asked.node) {
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
fn withdrawn_bytes_are_read_by_nobody_any_more() {
    let (device, cache) = held_back(pool(4), |config| config.in_flight = 1);
    let column = source(4);
    let flying = cache.access(&column, block(0)).unwrap();
    let waiting = cache.access(&column, block(1)).unwrap();
    let kept = cache.access(&column, block(3)).unwrap();
    let ahead = cache.prefetch(&column, block(2), Priority(1)).unwrap();
    // Those that the cache forgot before are read as well.
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
    assert!(flying.is_fast() && flying.is_stale());
    assert!(waiting.is_settled() && !waiting.is_fast() && waiting.is_stale());
    assert!(!ahead.cancel() && !kept.is_stale());
    assert_eq!(flying.location().bytes(), &column[block(0)]);
    // Nor by the mover, for nobody.
    let dropped = cache.access(&column, block(0)).unwrap();
    assert!(!dropped.is_settled(), "it has begun, as has what was kept");
    drop(dropped);
    assert_eq!(cache.flush(), 1);
    assert_eq!(cache.mover().orphaned(), 1);
    device.run(2);
    assert_eq!((cache.withdraw(&column, block(0)).unwrap(), cache.mover().orphaned()), (0, 0));
    // Nothing was begun for those called off.
    device.state().manual = false;
    assert!(kept.settle());
    assert_eq!((device.state().taken.len(), cache.stats().copies), (3, 2));
}

#[test]
fn a_device_that_never_answers_holds_nobody_up_for_ever() {
    let device = Arc::new(TestDevice::new(QueueMode::Shared, 64));
    (device.state().manual, device.state().retirable) = (true, true);
    let policy = Policy { limit: Duration::from_millis(50), ..policy() };
    let cache = Cache::new(mover(&device, policy), Config::new([pool(2)])).unwrap();
    let column = source(2);
    let kept = cache.access(&column, block(0)).unwrap();
    assert!(!kept.settle_for(Duration::ZERO) && !kept.settle_for(Duration::from_millis(1)));
    assert_eq!(kept.location().bytes(), &column[block(0)]);
    drop(cache.access(&column, block(1)).unwrap());
    assert_eq!((cache.flush(), cache.mover().orphaned()), (1, 1));
    assert_eq!(cache.withdraw(&column, block(1)), Ok(0));
    assert_eq!(cache.mover().orphaned(), 0, "its queue was given up");
    // By the CPU, once its queue is out.
    assert!(kept.settle_for(Duration::from_secs(1)) && kept.is_fast());
    assert_eq!((cache.stats().bytes, cache.stats().copies), (BLOCK as u64, 1));
}

#[test]
fn what_left_the_cache_in_use_becomes_stale_too() {
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
