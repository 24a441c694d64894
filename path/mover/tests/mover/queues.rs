//! Full, disabled, several, and dedicated queues.

use crate::common::device::TestDevice;
use crate::common::{Chance, mover, movers, policy};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use telpher_abi::registers::{GenCap, OpCap};
use telpher_mover::{CrcMode, JobError, Mover, Opcode, Outcome, Policy, Retry, Route, Via};
use telpher_portal::{Portal, QueueMode};

#[test]
fn a_retry_storm_ends_on_the_device_or_on_the_cpu() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let retry = Retry { attempts: 10, pause: Duration::from_micros(5) };
    let mover = mover(&device, Policy { retry, ..policy() });
    for (retries, via) in [(0, Via::Device), (10, Via::Device), (11, Via::Cpu), (u64::MAX, Via::Cpu)] {
        device.state().retries = retries;
        let done = mover.copy(vec![7; 100], vec![0; 100]).wait();
        assert_eq!((done.via, done.buffers.1), (via, vec![7; 100]), "{retries} retries");
    }
}

#[test]
fn a_full_queue_is_skipped_for_the_next() {
    let devices = [(); 3].map(|()| Arc::new(TestDevice::with(|_| {})));
    let retry = Retry { attempts: 3, pause: Duration::ZERO };
    let mover = movers(&[&devices[0], &devices[1], &devices[2]], Policy { retry, route: Route::First, ..policy() });
    let count = || [0, 1, 2].map(|i: usize| devices[i].state().taken.len());
    assert_eq!(mover.nop().wait().via, Via::Device);
    assert_eq!(count(), [1, 0, 0]);
    devices[0].state().retries = u64::MAX;
    mover.nop().wait();
    assert_eq!(count(), [1, 1, 0]);
    devices[1].state().retries = u64::MAX;
    mover.nop().wait();
    assert_eq!(count(), [1, 1, 1]);
    devices[2].state().retries = u64::MAX;
    assert_eq!(mover.nop().wait().via, Via::Cpu);
}

#[test]
fn a_drain_goes_to_every_queue() {
    let devices = [(); 2].map(|()| Arc::new(TestDevice::with(|_| {})));
    let mover = movers(&[&devices[0], &devices[1]], policy());
    assert_eq!(mover.drain().wait().result, Ok(Outcome::Done));
    assert!(devices.iter().all(|device| device.state().taken == [Opcode::Drain]));
    assert_eq!(Mover::cpu().drain().wait().result, Ok(Outcome::Done));
    let without = Arc::new(TestDevice::with(|info| info.operations = info.operations.with(Opcode::Drain, false)));
    let mover = crate::common::mover(&without, policy());
    assert_eq!(mover.drain().wait().result, Err(JobError::Unsupported { op: Opcode::Drain }));
}

#[test]
fn a_queue_disabled_with_work_in_flight_loses_no_job() {
    // The dedicated queue drops its descriptors without an answer.
    let device = Arc::new(TestDevice::new(QueueMode::Dedicated, 4));
    let mover = mover(&device, policy());
    device.state().halted = true;
    let jobs: Vec<_> = (0..4).map(|i| mover.fill(vec![0_u8; 64], i)).collect();
    let late: Vec<_> = jobs.into_iter().map(|job| job.deadline(Duration::from_millis(1)).wait()).collect();
    assert!(late.iter().all(|result| result.as_ref().is_err_and(|expired| expired.buffers.is_none())));
    assert_eq!(mover.quarantined(), 4);
    // All credits are taken: nothing is submitted.
    assert_eq!(mover.fill(vec![0_u8; 64], 9).wait().via, Via::Cpu);
    device.state().halted = false;
    mover.drive();
    (0..200).for_each(|_| mover.drive());
    assert_eq!(mover.quarantined(), 0);
    let lost = device.state().lost;
    let most = device.state().most;
    assert_eq!((lost, most), (0, 4));
    assert_eq!(mover.fill(vec![0_u8; 64], 9).wait().via, Via::Device);
}

#[test]
fn a_dedicated_queue_never_holds_more_than_its_size() {
    let device = Arc::new(TestDevice::new(QueueMode::Dedicated, 3));
    device.state().manual = true;
    let mover = mover(&device, policy());
    let mut jobs: Vec<_> = (0..3).map(|_| mover.nop()).collect();
    // No credit: a limited number of retries, then the CPU.
    assert_eq!(mover.nop().wait().via, Via::Cpu);
    device.run(1);
    // The entry is free, but the record was not seen yet: still no credit.
    assert_eq!(mover.nop().wait().via, Via::Cpu);
    assert!(jobs[0].is_done());
    jobs.push(mover.nop());
    let seen = |device: &TestDevice| {
        let state = device.state();
        (state.taken.len(), state.lost, state.most)
    };
    assert_eq!(seen(&device), (4, 0, 3));
    device.run(4);
    jobs.into_iter().for_each(|job| assert_eq!(job.wait().via, Via::Device));
}

#[test]
fn unsupported_operations_are_done_by_the_cpu() {
    let narrow = Arc::new(TestDevice::with(|info| {
        info.operations = OpCap([0; 4]).with(Opcode::MemoryMove, true).with(Opcode::Fill, true);
        info.gen_cap = GenCap([0]);
    }));
    let mover = mover(&narrow, policy());
    assert_eq!(mover.copy(vec![1_u8; 64], vec![0_u8; 64]).wait().via, Via::Device);
    assert_eq!(mover.copy_within(vec![1_u8; 64], 0..60, 4).wait().via, Via::Cpu, "no overlap");
    assert_eq!(mover.copy_within(vec![1_u8; 64], 0..30, 30).wait().via, Via::Device);
    assert_eq!(mover.fill16(vec![0_u8; 64], [1, 2]).wait().via, Via::Cpu, "no wide fill");
    assert_eq!(mover.fill16(vec![0_u8; 64], [1, 1]).wait().via, Via::Device, "both halves are equal");
    assert_eq!(mover.compare(vec![1_u8; 64], vec![1_u8; 64]).wait().via, Via::Cpu);
    let done = mover.dualcast(vec![1_u8; 64], vec![0_u8; 64], vec![0_u8; 64]).wait();
    assert_eq!((done.via, done.buffers.2), (Via::Cpu, vec![1; 64]));
    // An empty operation is done at once.
    assert_eq!(mover.copy(vec![], vec![]).wait().result, Ok(Outcome::Done));
}

#[test]
fn long_transfers_are_cut() {
    let device = Arc::new(TestDevice::with(|info| info.max_transfer = 4096));
    let mover = mover(&device, policy());
    let src = Chance::new(1).bytes(50_000);
    let (_, src, dst) = mover.copy(src, vec![0; 50_000]).wait().into_parts();
    // Cut at pages of the destination, so there may be one more than its length needs.
    assert!(src == dst && (13..=14).contains(&device.state().taken.len()));
    // A move whose destination begins inside the source runs from its end.
    let mut expected = src.clone();
    expected.copy_within(0..49_000, 1000);
    let done = mover.copy_within(src, 0..49_000, 1000).wait();
    assert!(done.via == Via::Device && done.buffers.0 == expected);
}

/// Threads copy checked data while others execute. Every job ends once, no descriptor is lost, and no data is mixed up.
fn stress(mode: QueueMode, size: u32, drop_some: bool) {
    let device = Arc::new(TestDevice::new(mode, size));
    device.state().manual = true;
    let retry = Retry { attempts: 20, pause: Duration::ZERO };
    let policy = Policy { retry, capacity: 16, ..policy() };
    let mover = Mover::new([Arc::clone(&device) as Arc<dyn Portal>], policy);
    let stop = AtomicBool::new(false);
    let (on_device, jobs) = (AtomicU64::new(0), AtomicU64::new(0));
    let end = Instant::now() + Duration::from_millis(700);
    std::thread::scope(|scope| {
        let engine = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if device.run(2) == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let clients: Vec<_> = (0..3_u64)
            .map(|seed| {
                let (mover, on_device, jobs) = (mover.clone(), &on_device, &jobs);
                scope.spawn(move || {
                    let mut chance = Chance::new(seed + 1);
                    // At least some bursts, if this thread starts late.
                    for _ in (0..).take_while(|&burst| burst < 10 || Instant::now() < end) {
                        let burst: Vec<_> = (0..1 + chance.below(6))
                            .map(|_| {
                                let n = 1 + usize::try_from(chance.below(200)).unwrap();
                                let src = chance.bytes(n);
                                (src.clone(), mover.copy(src, vec![0; n]))
                            })
                            .collect();
                        for (src, job) in burst {
                            if drop_some && chance.below(3) == 0 {
                                drop(job);
                                continue;
                            }
                            let done = job.wait();
                            assert_eq!(done.result, Ok(Outcome::Done), "seed {seed}");
                            assert!(done.buffers.1 == src, "seed {seed}");
                            on_device.fetch_add(u64::from(done.via == Via::Device), Ordering::Relaxed);
                            jobs.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        while mover.orphaned() > 0 {
            mover.drive();
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        engine.join().unwrap();
    });
    let state = device.state();
    assert_eq!(state.lost, 0, "a dedicated queue was overrun");
    assert!(state.most <= size as usize);
    assert!(on_device.load(Ordering::Relaxed) > 0, "of {jobs:?} jobs");
}

#[test]
fn credits_are_exact_under_threads() {
    stress(QueueMode::Dedicated, 5, false);
}

#[test]
fn dropped_jobs_return_their_credits_under_threads() {
    stress(QueueMode::Dedicated, 3, true);
}

#[test]
fn shared_queues_lose_nothing_under_threads() {
    stress(QueueMode::Shared, 4, true);
}

#[test]
fn a_queue_that_is_full_at_the_second_chunk_gets_the_pause_too() {
    let device = Arc::new(TestDevice::with(|info| info.max_transfer = 64));
    device.state().manual = true;
    let clock = crate::common::clock();
    clock.advance(Duration::from_secs(1));
    let retry = Retry { attempts: 10, pause: Duration::from_millis(1) };
    let portal = Arc::clone(&device) as Arc<dyn Portal>;
    let mover = Mover::with_clock([portal], Policy { retry, ..policy() }, clock.clone());
    // A checksum goes on from where the chunk before ended; divisible operations have all their parts in flight at
    // once.
    let mut job = mover.crc(vec![0; 128], 7, CrcMode::default());
    device.run(1);
    device.state().retries = 5;
    for _ in 0..3 {
        assert!(!job.is_done());
        assert_eq!(device.state().retries, 4, "offered once, then not before the pause is over");
    }
    clock.advance(Duration::from_millis(1));
    assert!(!job.is_done());
    assert_eq!(device.state().retries, 3);
    device.state().retries = 0;
    device.state().manual = false;
    assert!(job.wait().result.is_ok_and(|outcome| outcome.crc().is_some()));
}
