//! A queue that is full for ever, never answers, or answers too late: every job ends, and no buffer is freed while a
//! device may write it.
#![allow(clippy::cast_possible_truncation, reason = "cuts small numbers")]

use crate::common::device::TestDevice;
use crate::common::{Chance, Watched, clock, mover, movers, policy};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;
use telpher_mover::{Channel, ChannelPolicy, JobError, Mover, Opcode, Order, Outcome, Policy, Via};
use telpher_portal::{Portal, QueueMode};

fn manual(mode: QueueMode, size: u32) -> Arc<TestDevice> {
    let device = Arc::new(TestDevice::new(mode, size));
    device.state().manual = true;
    device
}

#[test]
fn with_a_queue_that_is_always_full_the_cpu_does_everything() {
    for mode in [QueueMode::Shared, QueueMode::Dedicated] {
        let device = manual(mode, 4);
        let mover = mover(&device, policy());
        // Its entries are taken, and it is never run.
        let held: Vec<_> = (0..4).map(|_| mover.nop()).collect();
        let done = mover.copy(vec![7; 5000], vec![0; 5000]).wait();
        assert_eq!((done.result, done.via, done.buffers.1), (Ok(Outcome::Done), Via::Cpu, vec![7; 5000]));
        let mut batch = mover.batch();
        let keys: Vec<_> = (0..5).map(|i| batch.copy(vec![i; 100], vec![0; 100])).collect();
        let mut done = batch.submit().wait();
        for (i, key) in (0..5).zip(keys) {
            assert_eq!(done.take(key).buffers.1, vec![i; 100]);
        }
        let (src, mut dst) = (vec![3; 9000], vec![0; 9000]);
        mover.scope(|scope| {
            for (src, dst) in src.chunks(1000).zip(dst.chunks_mut(1000)) {
                scope.copy(src, dst);
            }
        });
        assert!(dst == src);
        assert_eq!(mover.copy_slices(&src, &mut dst), Ok(Outcome::Done));
        assert!(matches!(mover.drain().wait().result, Err(JobError::QueueFull { offers: 65 })));
        let mut state = device.state();
        assert_eq!((state.taken.len(), state.lost), (4, 0), "{mode:?}");
        state.taken.clear();
        drop(state);
        device.run(4);
        assert!(held.into_iter().all(|job| job.wait().result == Ok(Outcome::Done)));
    }
}

#[test]
fn a_silent_queue_is_given_up_at_the_limit() {
    for mode in [QueueMode::Shared, QueueMode::Dedicated] {
        let device = manual(mode, 8);
        device.state().retirable = true;
        let mover = mover(&device, Policy { limit: Duration::from_millis(50), ..policy() });
        let jobs: Vec<_> = (0..3).map(|i| mover.copy(vec![i; 5000], vec![9; 5000])).collect();
        for (i, job) in (0..).zip(jobs) {
            let done = job.wait();
            assert_eq!((done.result, done.via, done.buffers.1), (Ok(Outcome::Done), Via::Cpu, vec![i; 5000]));
        }
        // It was asked once each patience before it was given up, and never again after.
        let asked = device.state().asked;
        assert!((3..10).contains(&asked), "{asked}");
        assert_eq!(mover.copy(vec![7; 5000], vec![0; 5000]).wait().via, Via::Cpu);
        let state = device.state();
        assert_eq!((state.asked, state.taken.len()), (asked, 3));
    }
}

/// Regression: a caller that dropped a job and needed its memory waited for ever, because only waiting for a job gave
/// its queue up.
#[test]
fn buffers_dropped_on_a_silent_queue_are_freed_at_the_limit() {
    for retirable in [true, false] {
        let device = manual(QueueMode::Shared, 8);
        device.state().retirable = retirable;
        let time = clock();
        let policy = Policy { limit: Duration::from_millis(50), linger: Duration::ZERO, ..policy() };
        let mover = Mover::with_clock([Arc::clone(&device) as Arc<dyn Portal>], policy, time.clone());
        let (buffer, gone) = Watched::new(vec![0; 100]);
        drop(mover.fill(buffer, 1));
        // The mover checks the queue; the clock advances by a microsecond at each rest, and no thread rests here.
        (0..3000).for_each(|_| mover.drive());
        assert!(mover.orphaned() == 1 && device.state().asked >= 2, "the device works and may still write");
        time.advance(Duration::from_millis(60));
        (0..3000).for_each(|_| mover.drive());
        assert_eq!((mover.orphaned(), gone.load(Ordering::SeqCst)), if retirable { (0, true) } else { (1, false) });
    }
}

#[test]
fn wait_for_ends_after_its_time() {
    let device = manual(QueueMode::Shared, 8);
    let mover = mover(&device, policy());
    let mut job = mover.copy(vec![7; 5000], vec![0; 5000]);
    let mut look = || if job.is_done() { Poll::Ready(7) } else { Poll::Pending };
    assert_eq!(mover.wait_for(Duration::ZERO, &mut look), None);
    assert_eq!(mover.wait_for(Duration::from_millis(1), &mut look), None);
    device.run(1);
    assert_eq!(mover.wait_for(Duration::ZERO, &mut look), Some(7), "it calls `look` at least once");
}

#[test]
fn a_channel_gives_its_queue_up_at_the_limit() {
    let device = manual(QueueMode::Dedicated, 8);
    device.state().retirable = true;
    let time = clock();
    let policy = ChannelPolicy { limit: Duration::from_millis(50), ..ChannelPolicy::default() };
    let portal = Arc::clone(&device) as Arc<dyn Portal>;
    let mut channel: Channel<Vec<u8>, Vec<u8>> = Channel::with_clock(portal, 8, policy, time.clone()).unwrap();
    channel.copy(vec![4; 1000], vec![0; 1000]).unwrap();
    assert_eq!(channel.submit(), 1);
    let mut done = Vec::new();
    while done.is_empty() {
        time.advance(Duration::from_micros(10));
        channel.completed(&mut done);
    }
    assert_eq!((&done[0].result, done[0].via), (&Ok(Outcome::Done), Via::Cpu));
    assert_eq!(done[0].buffers.as_ref().unwrap().dst, Some(vec![4; 1000]));
}

#[test]
fn time_before_the_first_taken_descriptor_does_not_count_for_the_limit() {
    let device = manual(QueueMode::Shared, 8);
    device.state().retirable = true;
    let time = clock();
    let policy = ChannelPolicy { limit: Duration::from_millis(50), ..ChannelPolicy::default() };
    let portal = Arc::clone(&device) as Arc<dyn Portal>;
    let mut channel: Channel<Vec<u8>, Vec<u8>> = Channel::with_clock(portal, 8, policy, time.clone()).unwrap();
    let mut out = Vec::new();
    channel.copy(vec![4; 1000], vec![0; 1000]).unwrap();
    device.state().retries = u64::MAX;
    assert_eq!(channel.submit(), 0);
    (0..200).for_each(|_| assert_eq!(channel.completed(&mut out), 0));
    // The program does something else for longer than the limit.
    time.advance(Duration::from_millis(60));
    device.state().retries = 0;
    assert_eq!(channel.submit(), 1);
    (0..200).for_each(|_| assert_eq!(channel.completed(&mut out), 0));
    assert_eq!(device.state().stopped, None, "it has just taken the copy");
    device.run(1);
    channel.completed(&mut out);
    assert_eq!((&out[0].result, out[0].via), (&Ok(Outcome::Done), Via::Device));
}

#[test]
fn a_channel_to_a_full_queue_keeps_its_operations() {
    let device = manual(QueueMode::Dedicated, 2);
    let policy = ChannelPolicy { bursts: false, ..ChannelPolicy::default() };
    let portal = Arc::clone(&device) as Arc<dyn Portal>;
    let mut channel: Channel<Vec<u8>, Vec<u8>> = Channel::with_clock(portal, 8, policy, clock()).unwrap();
    for i in 0..6 {
        channel.copy(vec![i; 100], vec![9; 100]).unwrap();
    }
    let mut out = Vec::new();
    assert_eq!(channel.submit(), 2);
    for _ in 0..1000 {
        assert_eq!((channel.submit(), channel.completed(&mut out)), (0, 0));
    }
    assert_eq!((channel.pending(), device.state().lost), (6, 0));
    while out.len() < 6 {
        device.run(1);
        channel.completed(&mut out);
        channel.submit();
    }
    for (i, finished) in (0..6).zip(&out) {
        assert_eq!(finished.buffers.as_ref().unwrap().dst, Some(vec![i; 100]));
    }
}

#[test]
fn a_record_that_is_never_written_ends_its_job_and_keeps_its_buffers() {
    let device = manual(QueueMode::Dedicated, 8);
    let mover = mover(&device, Policy { linger: Duration::from_millis(1), ..policy() });
    let (buffer, gone) = Watched::new(vec![0; 100]);
    let expired = mover.fill(buffer, 1).deadline(Duration::from_millis(1)).wait().unwrap_err();
    assert!(expired.buffers.is_none());
    // It was asked and reported that it works: so the buffer stays.
    assert!(device.state().asked > 0);
    let mut batch = mover.batch();
    let (other, other_gone) = Watched::new(vec![0; 100]);
    batch.fill(other, 1);
    batch.nop();
    assert!(batch.submit().deadline(Duration::from_millis(1)).wait().is_err());
    // The descriptors are lost, like those written to a full queue.
    let lost = [device.take_front(), device.take_front()].map(|d| d.opcode());
    assert_eq!(lost, [Opcode::Fill, Opcode::Batch]);
    (0..1000).for_each(|_| mover.drive());
    assert_eq!(mover.quarantined(), 2);
    drop(mover);
    assert!(![gone, other_gone].iter().any(|gone| gone.load(Ordering::SeqCst)), "leaked");
}

#[test]
fn a_record_written_after_the_deadline_changes_no_other_memory() {
    let device = manual(QueueMode::Dedicated, 8);
    let mover = mover(&device, Policy { capacity: 4, ..policy() });
    for round in 0..20_u8 {
        let late: Vec<_> = (0..3).map(|_| mover.fill(vec![0; 4096], 0xdead_dead_dead_dead)).collect();
        for job in late {
            assert!(job.deadline(Duration::from_micros(10)).wait().is_err());
        }
        // Memory that is allocated now must not be where the late writes go.
        let fresh: Vec<_> = (0..8).map(|_| vec![round; 4096]).collect();
        let job = mover.copy(vec![round; 4096], vec![0; 4096]);
        assert_eq!(device.run(4), 4);
        assert_eq!(job.wait().into_parts(), (Ok(Outcome::Done), vec![round; 4096], vec![round; 4096]));
        assert!(fresh.iter().all(|buffer| *buffer == [round; 4096]));
        (0..100).for_each(|_| mover.drive());
        assert_eq!((mover.quarantined(), device.state().lost), (0, 0));
    }
}

/// Returns true for the results that a job may have under random faults.
fn is_allowed(result: &Result<Outcome, JobError>, repeatable: bool) -> bool {
    match result {
        Ok(Outcome::Done) => true,
        // The operation may have been half done.
        Err(JobError::Stopped { op: Opcode::MemoryMove, .. }) => !repeatable,
        _ => false,
    }
}

#[test]
fn no_byte_is_wrong_under_random_faults() {
    for seed in 0..300 {
        let mut chance = Chance::new(seed);
        let devices: Vec<_> = (0..3)
            .map(|i| {
                let mode = if i == 1 { QueueMode::Dedicated } else { QueueMode::Shared };
                let device = Arc::new(TestDevice::with(|info| {
                    info.mode = mode;
                    info.size = 1 + i;
                    info.max_transfer = 1000;
                }));
                device.state().manual = true;
                device
            })
            .collect();
        let mover = movers(&devices.iter().collect::<Vec<_>>(), policy());
        let mut jobs = Vec::new();
        for _ in 0..40 {
            let device = &devices[chance.below(3) as usize];
            match chance.below(12) {
                0 => device.state().retries = chance.below(200),
                1 if chance.below(4) == 0 => device.stop("wq0.0 is disabled"),
                2..=5 => {
                    device.run(1 + chance.below(3) as usize);
                }
                _ => {
                    let len = 1 + chance.below(3000) as usize;
                    let bytes = chance.bytes(len + 2000);
                    let (from, to) = (chance.below(2000) as usize, chance.below(2000) as usize);
                    let mut expected = bytes.clone();
                    expected.copy_within(from..from + len, to);
                    device.fault(telpher_mover::StableBuf::address(&bytes) + chance.below(len as u64), 1);
                    // Chunks of at most 1000 bytes do not overlap in themselves if the move's distance is at least
                    // that.
                    let repeatable = from.abs_diff(to) >= len.min(1000);
                    let job = mover.copy_within(bytes, from..from + len, to);
                    jobs.push((job, expected, repeatable));
                }
            }
            let at = chance.below(jobs.len().max(1) as u64) as usize;
            if let Some((job, ..)) = jobs.get_mut(at) {
                job.is_done();
            }
        }
        devices.iter().for_each(|device| device.state().manual = false);
        for (job, expected, repeatable) in jobs {
            let (result, bytes) = job.wait().into_parts();
            assert!(is_allowed(&result, repeatable), "seed {seed}: {result:?}");
            assert!(result.is_err() || bytes == expected, "seed {seed}");
        }
        assert!(
            devices.iter().all(|device| device.state().stopped.is_some() || device.state().lost == 0),
            "seed {seed}"
        );
    }
}

#[test]
fn a_late_operation_of_a_channel_is_kept_until_its_record_is_written() {
    for order in [Order::Submitted, Order::Arrival] {
        let device = manual(QueueMode::Dedicated, 8);
        let time = clock();
        let policy = ChannelPolicy { order, deadline: Some(Duration::from_millis(1)), ..ChannelPolicy::default() };
        let portal = Arc::clone(&device) as Arc<dyn Portal>;
        let mut channel: Channel<Vec<u8>, Watched> = Channel::with_clock(portal, 2, policy, time.clone()).unwrap();
        let (buffer, gone) = Watched::new(vec![0; 100]);
        channel.fill(buffer, 1).unwrap();
        channel.submit();
        time.advance(Duration::from_millis(2));
        let mut out = Vec::new();
        assert_eq!((channel.completed(&mut out), channel.quarantined()), (1, 1));
        assert!(out[0].buffers.is_none() && !gone.load(Ordering::SeqCst));
        device.run(1);
        channel.completed(&mut out);
        assert_eq!((out.len(), channel.quarantined(), gone.load(Ordering::SeqCst)), (1, 0, true), "{order:?}");
    }
}
