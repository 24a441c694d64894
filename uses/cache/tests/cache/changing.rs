//! Data that changes: no reader sees an old byte, and no writer loses one.

use crate::common::device::TestDevice;
use crate::common::{Chance, mover, policy};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use telpher_cache::{Cache, Config, FetchError, Find, Synced, Versioned, WriteBack};
use telpher_device::{ModelDevice, ModelOptions, Preset, Runner};
use telpher_mem::{Pool, PoolOptions};
use telpher_mover::{Mover, OnFault, Policy, Threshold};
use telpher_portal::QueueMode;

fn pool(len: usize) -> Pool {
    Pool::new(PoolOptions::new(len)).unwrap()
}

#[test]
fn a_writer_waits_for_copies_in_flight_and_for_readers() {
    let device = Arc::new(TestDevice::new(QueueMode::Shared, 64));
    device.state().manual = true;
    let cache = Cache::new(mover(&device, policy()), Config::new([pool(1 << 16)])).unwrap();
    let data = Arc::new(Versioned::new(&cache, vec![1; 8192]));
    drop(data.read().access(0..8192).unwrap());
    let wrote = Arc::new(AtomicBool::new(false));
    let reader = data.read();
    let writer = {
        let (data, wrote) = (Arc::clone(&data), Arc::clone(&wrote));
        std::thread::spawn(move || {
            data.write().fill(2);
            wrote.store(true, Ordering::SeqCst);
        })
    };
    assert_eq!(reader.access(0..10).unwrap().location()[..], [1; 10]);
    assert!(!wrote.load(Ordering::SeqCst));
    drop(reader);
    // The entry was removed, but its copy is in flight: nothing may write what the device reads.
    for _ in 0..1000 {
        std::thread::yield_now();
        assert!(!wrote.load(Ordering::SeqCst));
    }
    while !wrote.load(Ordering::SeqCst) {
        device.run(1);
        std::thread::yield_now();
    }
    writer.join().unwrap();
    device.state().manual = false;
    assert_eq!((data.read().access(0..8192).unwrap().wait()[..] == [2; 8192], data.version()), (true, 1));
}

#[test]
fn every_block_has_exactly_the_version_that_its_guard_names() {
    for runner in [Runner::Inline, Runner::Threaded] {
        let device = ModelDevice::start(ModelOptions::of(Preset::Spr).with_runner(runner)).unwrap();
        let portals: Vec<_> =
            device.enabled_queues().into_iter().map(|n| device.portal(&format!("wq0.{n}")).unwrap()).collect();
        let mover = Mover::new(portals, Policy { threshold: Threshold::DEVICE, ..Policy::default() });
        let cache = Cache::new(mover, Config::new([pool(1 << 16)])).unwrap();
        let data = Versioned::new(&cache, vec![0_u8; 1 << 14]);
        std::thread::scope(|scope| {
            for seed in 1..4 {
                let data = &data;
                scope.spawn(move || {
                    let mut chance = Chance::new(seed);
                    for _ in 0..300 {
                        if chance.below(8) == 0 {
                            let mut writing = data.write();
                            let next = writing[0].wrapping_add(1);
                            writing.fill(next);
                            continue;
                        }
                        let reading = data.read();
                        let start = usize::try_from(chance.below(1 << 13)).unwrap();
                        let block = reading.access(start..start + 4096).unwrap();
                        let bytes = if chance.below(2) == 0 { block.wait() } else { block.location() };
                        let version = reading.version().to_le_bytes()[0];
                        assert!(bytes.iter().all(|&byte| byte == version));
                    }
                });
            }
        });
        let version = data.version().to_le_bytes()[0];
        assert!(data.into_inner().iter().all(|&byte| byte == version));
        assert_eq!(cache.stats().entries, 0);
    }
}

#[test]
fn after_a_writer_panics_the_version_is_new() {
    let cache = Cache::new(Mover::cpu(), Config::new([pool(4096)])).unwrap();
    let data = Versioned::new(&cache, vec![0; 100]);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        data.write()[0] = 1;
        data.write()[1] = 1;
        let mut writing = data.write();
        writing[2] = 1;
        panic!("injected by the test");
    }));
    assert!(panicked.is_err());
    assert_eq!((data.version(), data.read().access(0..4).unwrap().wait()[..].to_vec()), (3, vec![1, 1, 1, 0]));
    data.write().owned().resize(200, 9);
    assert_eq!(data.read().access(150..151).unwrap().wait()[..], [9]);
}

#[test]
fn without_room_fetch_returns_the_home() {
    let error = WriteBack::fetch(&Mover::cpu(), &pool(4096), vec![0; 5000]).unwrap_err();
    assert!(matches!(&error, FetchError::NoRoom { len: 5000, home } if home.len() == 5000), "{error}");
}

#[test]
fn pages_whose_sync_failed_are_copied_by_the_next_sync() {
    let device = Arc::new(TestDevice::new(QueueMode::Shared, 64));
    let mover = mover(&device, Policy { on_fault: OnFault::Block, ..policy() });
    let mut block = WriteBack::fetch(&mover, &pool(1 << 16), vec![0; 4 * 4096]).unwrap();
    block.write(0..1).fill(1);
    block.write(3 * 4096..3 * 4096 + 1).fill(3);
    device.refuse(block.home().as_ptr() as u64 + 3 * 4096 + 4095);
    assert!(block.sync(Find::Written).is_err());
    assert!((1..=8192).contains(&block.unsynced()), "the page that was copied need not be copied again");
    device.state().faults.clear();
    let (home, synced) = {
        let synced = block.sync(Find::Written).unwrap();
        (block.into_home().unwrap(), synced)
    };
    assert!(synced.copied >= 4096);
    assert_eq!((home[0], home[3 * 4096]), (1, 3));
}

proptest! {
    #[test]
    fn after_a_sync_home_equals_the_replica_and_only_the_needed_pages_were_copied(
        len in 1_usize..40_000,
        writes in prop::collection::vec((any::<prop::sample::Index>(), 1_usize..6000, any::<bool>(), 0_u8..3), 0..12),
    ) {
        let start = Chance::new(5).bytes(len);
        let mut block = WriteBack::fetch(&Mover::cpu(), &pool(1 << 16), start.clone()).unwrap();
        let mut naive = start;
        for (at, bytes, changes, sync) in writes {
            let range = at.index(len)..(at.index(len) + bytes).min(len);
            if changes {
                block.write(range.clone()).fill(0x5a);
                naive[range.clone()].fill(0x5a);
            } else {
                block.write(range.clone());
            }
            prop_assert_eq!(block.bytes(), &naive[..]);
            if sync == 0 {
                let home = block.home().to_vec();
                let differing = home.chunks(4096).zip(naive.chunks(4096)).filter(|(a, b)| a != b);
                let differing: usize = differing.map(|(page, _)| page.len()).sum();
                prop_assert_eq!(block.sync(Find::Differing).unwrap().copied, differing);
                prop_assert_eq!(block.home(), &naive[..]);
                prop_assert_eq!(block.unsynced(), 0);
            } else if sync == 1 {
                let unsynced = block.unsynced();
                prop_assert_eq!(block.sync(Find::Written).unwrap().copied, unsynced);
                prop_assert_eq!(block.home(), &naive[..]);
            }
        }
        block.sync(Find::Anywhere).unwrap();
        // Everything was compared.
        prop_assert_eq!(block.sync(Find::Anywhere).unwrap(), Synced { compared: len, copied: 0 });
        prop_assert_eq!(block.into_home().unwrap(), naive);
    }
}
