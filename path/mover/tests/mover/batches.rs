//! Batches: fences, splits, recovery, results for each member.
#![allow(clippy::cast_possible_truncation, reason = "tests cut small numbers")]

use crate::common::device::{PAGE, TestDevice};
use crate::common::{Chance, Watched, block_on, mover, policy};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use telpher_abi::Status;
use telpher_mover::{JobError, Mover, OnFault, Opcode, Outcome, Policy, Via};
use telpher_portal::QueueMode;

#[test]
fn a_batch_is_one_descriptor_and_each_member_gets_its_own_result() {
    let device = Arc::new(TestDevice::new(QueueMode::Dedicated, 1));
    let mover = mover(&device, policy());
    let mut batch = mover.batch();
    let copy = batch.copy(vec![7; 100], vec![0; 100]);
    let fill = batch.fill(vec![0; 64], 0x0202_0202_0202_0202);
    let differ = batch.compare(vec![1; 10], vec![2; 10]);
    let unequal = batch.copy(vec![7; 100], vec![0; 99]);
    let nop = batch.nop();
    let mut done = batch.submit().wait();
    assert_eq!(done.take(copy).into_parts(), (Ok(Outcome::Done), vec![7; 100], vec![7; 100]));
    assert_eq!(done.take(fill).into_parts(), (Ok(Outcome::Done), vec![2; 64]));
    assert_eq!(done.take(differ).result, Ok(Outcome::Different { at: 0 }));
    assert_eq!(done.take(unequal).result, Err(JobError::Lengths { first: 100, second: 99 }));
    assert_eq!(done.results().map(|(i, _)| i).collect::<Vec<_>>(), [4]);
    assert_eq!(done.take(nop).via, Via::Device);
    assert_eq!(device.state().taken, [Opcode::Batch, Opcode::Nop], "the invalid member divides the batch");
}

#[test]
fn a_batch_longer_than_the_queue_takes_is_split() {
    for max_batch in [0, 1, 2, 3, 7, 100] {
        let device = Arc::new(TestDevice::with(|info| info.max_batch = max_batch));
        let mover = mover(&device, policy());
        let mut batch = mover.batch();
        let keys: Vec<_> = (0..20).map(|i| batch.fence().fill(vec![0_u8; 8], i * 0x0101_0101_0101_0101)).collect();
        let mut done = batch.submit().wait();
        for (i, key) in keys.into_iter().enumerate() {
            assert_eq!(done.take(key).into_parts(), (Ok(Outcome::Done), vec![i as u8; 8]), "at most {max_batch}");
        }
        let expected = match max_batch {
            0 | 1 => 20,
            n => 20_usize.div_ceil(n as usize),
        };
        assert_eq!(device.state().taken.len(), expected, "at most {max_batch}");
    }
}

#[test]
fn a_failed_member_abandons_the_members_behind_the_fence() {
    for max_batch in [1, 2, 3, 32] {
        let device = Arc::new(TestDevice::with(|info| info.max_batch = max_batch));
        for mover in [mover(&device, policy()), Mover::cpu()] {
            let mut batch = mover.batch();
            let before = batch.fill(vec![0_u8; 8], 0);
            let guard = batch.compare_expecting(vec![1; 8], vec![2; 8], false);
            let beside = batch.fill(vec![0_u8; 8], 0x0101_0101_0101_0101);
            let behind = batch.fence().fill(vec![0_u8; 8], 0x0101_0101_0101_0101);
            let further = batch.copy(vec![1; 8], vec![0; 8]);
            let mut done = batch.submit().wait();
            assert_eq!(done.take(before).result, Ok(Outcome::Done));
            assert_eq!(done.take(guard).result, Ok(Outcome::Different { at: 0 }));
            assert_eq!(done.take(beside).buffers.0, [1; 8]);
            let behind = done.take(behind);
            assert_eq!(behind.result, Err(JobError::Abandoned { because: 1 }));
            assert_eq!(behind.buffers.0, [0; 8], "not begun");
            assert_eq!(done.take(further).into_parts().2, [0; 8]);
        }
    }
}

#[test]
fn an_expected_difference_lets_the_fence_pass() {
    let device = Arc::new(TestDevice::with(|_| {}));
    for mover in [mover(&device, policy()), Mover::cpu()] {
        for (difference, passes) in [(true, true), (false, false)] {
            let mut batch = mover.batch();
            batch.compare_expecting(vec![1; 8], vec![2; 8], difference);
            let copy = batch.fence().copy(vec![1; 8], vec![0; 8]);
            assert_eq!(batch.submit().wait().take(copy).result.is_ok(), passes);
        }
    }
}

#[test]
fn a_fault_in_a_member_is_recovered_before_the_fence_decides() {
    for on_fault in [OnFault::FinishOnCpu, OnFault::TouchAndResubmit { limit: 4 }] {
        let device = Arc::new(TestDevice::with(|_| {}));
        let mover = mover(&device, Policy { on_fault, ..policy() });
        let source = Chance::new(9).bytes(20_000);
        let (first, second) = (source.clone(), vec![0; 20_000]);
        // Copies from where the first member writes.
        device.fault(second.as_ptr() as u64 + 2 * PAGE, 2);
        let mut batch = mover.batch();
        let copy = batch.copy(first, second);
        let crc = batch.crc(source.clone(), 0, telpher_mover::CrcMode::default());
        let behind = batch.fence().fill(vec![0_u8; 8], 0x0303_0303_0303_0303);
        let last = batch.fill(vec![0_u8; 8], 0x0404_0404_0404_0404);
        let mut done = batch.submit().wait();
        assert!(done.take(copy).into_parts() == (Ok(Outcome::Done), source.clone(), source));
        assert!(done.take(crc).result.is_ok());
        assert_eq!(done.take(behind).into_parts(), (Ok(Outcome::Done), vec![3; 8]));
        assert_eq!(done.take(last).into_parts(), (Ok(Outcome::Done), vec![4; 8]));
    }
}

#[test]
fn members_that_are_too_long_or_unsupported_are_submitted_alone() {
    let device = Arc::new(TestDevice::with(|info| {
        info.max_transfer = 4096;
        info.operations = info.operations.with(Opcode::CrcGeneration, false);
    }));
    let mover = mover(&device, policy());
    let mut batch = mover.batch();
    let source = Chance::new(3).bytes(10_000);
    let long = batch.copy(source.clone(), vec![0; 10_000]);
    let crc = batch.crc(b"123456789".to_vec(), 0, telpher_mover::CrcMode::default());
    let short = batch.copy(vec![1; 8], vec![0; 8]);
    let mut done = batch.submit().wait();
    assert!(done.take(long).into_parts().2 == source);
    let crc = done.take(crc);
    assert_eq!((crc.result, crc.via), (Ok(Outcome::Crc(0xe306_9283)), Via::Cpu));
    assert_eq!(done.take(short).buffers.1, [1; 8]);
}

#[test]
fn a_refused_member_or_batch_falls_back() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = mover(&device, policy());
    device.state().answers.extend([Status::InvalidFlags, Status::Success]);
    let mut batch = mover.batch();
    let keys: Vec<_> = (1..4).map(|i| batch.fill(vec![0_u8; 8], i * 0x0101_0101_0101_0101)).collect();
    let mut done = batch.submit().wait();
    let bytes: Vec<_> = keys.into_iter().map(|key| done.take(key).buffers.0[0]).collect();
    // The second answer claims success without doing anything: the mover believes the device.
    assert_eq!(bytes, [1, 0, 3]);
    device.state().retries = u64::MAX;
    let mut batch = mover.batch();
    let key = batch.fill(vec![0_u8; 8], 1);
    let other = batch.fill(vec![0_u8; 8], 1);
    let mut done = batch.submit().wait();
    assert_eq!((done.take(key).via, done.take(other).via), (Via::Cpu, Via::Cpu), "the queue stayed full");
}

#[test]
fn a_dropped_batch_keeps_every_buffer() {
    let device = Arc::new(TestDevice::with(|_| {}));
    device.state().manual = true;
    let mover = mover(&device, policy());
    let watched: Vec<_> = (0..5).map(|_| Watched::new(vec![0; 100])).collect();
    let (buffers, dropped): (Vec<_>, Vec<_>) = watched.into_iter().unzip();
    let mut batch = mover.batch();
    buffers.into_iter().for_each(|buffer| {
        batch.fill(buffer, 1);
    });
    let mut job = batch.submit();
    assert!(block_on(&mut job, 3).is_none());
    drop(job);
    (0..100).for_each(|_| mover.drive());
    assert_eq!((mover.orphaned(), dropped.iter().any(|d| d.load(Ordering::SeqCst))), (1, false));
    device.run(1);
    (0..100).for_each(|_| mover.drive());
    assert_eq!((mover.orphaned(), dropped.iter().all(|d| d.load(Ordering::SeqCst))), (0, true));
}

#[test]
fn a_wait_that_times_out_leaves_the_batch_in_flight() {
    let device = Arc::new(TestDevice::with(|_| {}));
    device.state().manual = true;
    let mover = mover(&device, policy());
    let mut batch = mover.batch();
    batch.fill(vec![0_u8; 8], 1);
    batch.copy(vec![7; 8], vec![0; 7]);
    let mut job = batch.submit();
    assert!(!job.wait_for(Duration::from_micros(30)) && !job.is_done());
    device.run(1);
    assert!(job.wait_for(Duration::from_secs(1)) && job.is_done());
    let done = job.wait();
    assert_eq!(done.get(0), Some((&Ok(Outcome::Done), Via::Device)));
    assert_eq!(done.get(1), Some((&Err(JobError::Lengths { first: 8, second: 7 }), Via::Cpu)));
    assert_eq!(done.get(2), None);
}

#[test]
fn an_expired_batch_is_quarantined_or_returned() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = mover(
        &device,
        Policy { retry: telpher_mover::Retry { attempts: u32::MAX, pause: Duration::ZERO }, ..policy() },
    );
    let batch = || {
        let mut batch = mover.batch();
        batch.fill(vec![0_u8; 8], 1);
        let key = batch.fill(vec![0_u8; 8], 1);
        (batch.submit().deadline(Duration::from_micros(30)), key)
    };
    device.state().retries = u64::MAX;
    let (timed, key) = batch();
    let mut back = timed.wait().unwrap_err().buffers.expect("no device has them");
    assert_eq!(back.take(key).buffers.0, [0; 8]);
    device.state().retries = 0;
    device.state().manual = true;
    let (timed, _) = batch();
    assert!(timed.wait().unwrap_err().buffers.is_none());
    assert_eq!(mover.quarantined(), 1);
    device.run(1);
    (0..100).for_each(|_| mover.drive());
    assert_eq!(mover.quarantined(), 0);
}

#[test]
#[should_panic = "another batch"]
fn a_key_of_another_batch_is_refused() {
    let mover = Mover::cpu();
    let (mut a, mut b) = (mover.batch(), mover.batch());
    let key = a.nop();
    b.nop();
    b.submit().wait().take(key);
}

#[test]
fn an_empty_batch_is_done() {
    assert_eq!(Mover::cpu().batch().submit().wait().results().count(), 0);
}

#[test]
fn a_batch_on_the_cpu_is_done_when_submit_returns() {
    let mover = Mover::cpu();
    let mut batch = mover.batch();
    for _ in 0..3 {
        batch.fill(vec![0; 64], 1);
    }
    batch.fence().nop();
    assert!(block_on(batch.submit(), 1).is_some(), "ready at the first poll");
}

#[test]
fn a_long_list_of_invalid_members_needs_no_deep_stack() {
    const MEMBERS: usize = 100_000;
    let small = std::thread::Builder::new().stack_size(256 << 10);
    let test = small.spawn(|| {
        let mover = Mover::cpu();
        let mut batch = mover.batch();
        for _ in 0..MEMBERS {
            batch.copy([0; 1].to_vec(), [0; 2].to_vec());
        }
        let done = batch.submit().wait();
        assert_eq!(done.results().filter(|(_, result)| result.is_err()).count(), MEMBERS);
    });
    test.unwrap().join().unwrap();
}

#[test]
#[should_panic(expected = "another batch")]
fn a_key_of_another_movers_batch_is_refused() {
    let (mut first, mut second) = (Mover::cpu().batch(), Mover::cpu().batch());
    let key = first.fill(vec![1; 8], 1);
    second.fill(vec![2; 8], 2);
    second.submit().wait().take(key);
}
