//! Copies of a batch that continue each other become one descriptor, and each has its own result.

use crate::common::device::{PAGE, TestDevice};
use crate::common::{Chance, mover, pieces, policy};
use proptest::prelude::*;
use std::sync::Arc;
use telpher_mover::{BatchDone, JobError, Key, Mover, OnFault, Opcode, Outcome, Policy, Via};

type Pair = (&'static [u8], &'static mut [u8]);

/// Submits copies between neighbouring ranges as a batch; `fences` are the members with a fence in front.
fn batch(mover: &Mover, source: &[u8], lengths: &[usize], fences: &[usize]) -> (BatchDone, Vec<Key<Pair>>) {
    let src = pieces(source.to_vec(), lengths);
    let dst = pieces(vec![0; source.len()], lengths);
    let mut batch = mover.batch();
    let mut keys = Vec::new();
    for (i, (src, dst)) in src.into_iter().zip(dst).enumerate() {
        if fences.contains(&i) {
            batch.fence();
        }
        keys.push(batch.copy(&*src, dst));
    }
    (batch.submit().wait(), keys)
}

fn check(mut done: BatchDone, keys: Vec<Key<Pair>>, via: Via) {
    for key in keys {
        let done = done.take(key);
        assert_eq!((done.result, done.via), (Ok(Outcome::Done), via));
        assert!(done.buffers.0 == done.buffers.1);
    }
}

fn taken(device: &TestDevice) -> Vec<Opcode> {
    std::mem::take(&mut device.state().taken)
}

#[test]
fn neighbours_become_one_descriptor_without_a_list() {
    let device = Arc::new(TestDevice::with(|info| info.max_batch = 4));
    let mover = mover(&device, policy());
    let source = Chance::new(1).bytes(10_000);
    let (done, keys) = batch(&mover, &source, &[1000; 10], &[]);
    assert_eq!(taken(&device), [Opcode::MemoryMove]);
    check(done, keys, Via::Device);
    // A fence splits a joined group; a joined group counts once in a list.
    let (done, keys) = batch(&mover, &source, &[1000; 10], &[3, 7, 9]);
    assert_eq!(taken(&device), [Opcode::Batch]);
    check(done, keys, Via::Device);
}

#[test]
fn joining_respects_the_policy_and_the_limits_of_the_queue() {
    let device = Arc::new(TestDevice::with(|info| info.max_transfer = 3000));
    let source = Chance::new(2).bytes(10_000);
    let (done, keys) = batch(&mover(&device, policy()), &source, &[1000; 10], &[]);
    assert_eq!(taken(&device), [Opcode::Batch], "four descriptors");
    check(done, keys, Via::Device);
    let apart = Policy { coalesce: false, ..policy() };
    let few = Arc::new(TestDevice::with(|info| info.max_batch = 0));
    let (done, keys) = batch(&mover(&few, apart), &source, &[1000; 10], &[]);
    assert_eq!(taken(&few), [Opcode::MemoryMove; 10]);
    check(done, keys, Via::Device);
    let (done, keys) = batch(&mover(&few, policy()), &source, &[1000; 10], &[5]);
    assert_eq!(taken(&few), [Opcode::MemoryMove; 2], "joined where there are no batches either");
    check(done, keys, Via::Device);
}

#[test]
fn copies_that_do_not_continue_each_other_are_not_joined() {
    let device = Arc::new(TestDevice::with(|info| info.max_batch = 0));
    let mover = mover(&device, policy());
    let src = pieces(vec![1; 300], &[100, 100, 100]);
    let dst = pieces(vec![0; 300], &[100, 100, 100]);
    let ([a, b, c], [x, y, z]) = (src.try_into().unwrap(), dst.try_into().unwrap());
    let mut batch = mover.batch();
    // Sources in order, destinations not; then a gap in the sources; then an operation of another kind.
    let _ = (batch.copy(&*a, &mut *y), batch.copy(&*b, x), batch.fill(z, 0x0101_0101_0101_0101));
    let _ = batch.copy(&*c, vec![0; 100]);
    assert!(batch.submit().wait().results().all(|(_, result)| *result == Ok(Outcome::Done)));
    assert_eq!(taken(&device), [Opcode::MemoryMove, Opcode::MemoryMove, Opcode::Fill, Opcode::MemoryMove]);
}

#[test]
fn a_fault_is_reported_for_the_member_it_is_in() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = mover(&device, Policy { on_fault: OnFault::Block, ..policy() });
    let (len, count) = (usize::try_from(PAGE).expect("a page fits"), 6);
    let source = Chance::new(3).bytes(count * len);
    let src = pieces(source.clone(), &[len; 6]);
    let dst = pieces(vec![0; count * len], &[len; 6]);
    let page = (dst[3].as_ptr() as u64).next_multiple_of(PAGE);
    device.refuse(page);
    // Two members, unless the members are single pages.
    let ranges: Vec<_> = dst.iter().map(|dst| dst.as_ptr() as u64..dst.as_ptr() as u64 + PAGE).collect();
    let mut list = mover.batch();
    let keys: Vec<_> = src.into_iter().zip(dst).map(|(src, dst)| list.copy(&*src, dst)).collect();
    let mut done = list.submit().wait();
    for (i, (key, range)) in keys.into_iter().zip(ranges).enumerate() {
        let done = done.take(key);
        if range.start < page + PAGE && page < range.end {
            let expected = JobError::Fault { address: page, write: true, done: page.saturating_sub(range.start) };
            assert_eq!(done.result, Err(expected), "member {i}");
        } else {
            assert_eq!(done.result, Ok(Outcome::Done), "member {i}");
            assert!(done.buffers.0 == done.buffers.1, "member {i}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn each_member_has_the_naive_bytes_whether_joined_or_not(
        seed in any::<u64>(),
        lengths in proptest::collection::vec(0_usize..6000, 1..12),
        fences in proptest::collection::vec(0_usize..12, 0..3),
        faults in proptest::collection::vec((0_u64..10, any::<bool>(), 1_u32..3), 0..4),
        (max_transfer, max_batch, backward, retries) in (2000_u64..20_000, 0_u32..6, any::<bool>(), 0_u64..100),
    ) {
        let device = Arc::new(TestDevice::with(|info| {
            info.max_transfer = max_transfer;
            info.max_batch = max_batch;
        }));
        device.state().backward = backward;
        device.state().retries = retries;
        let mover = mover(&device, Policy { on_fault: OnFault::TouchAndResubmit { limit: 4 }, ..policy() });
        let source = Chance::new(seed).bytes(lengths.iter().sum());
        let (src, dst) = (pieces(source.clone(), &lengths), pieces(vec![0; source.len()], &lengths));
        for (page, of_dst, times) in faults {
            let first = if of_dst { dst[0].as_ptr() } else { src[0].as_ptr() };
            device.fault(first as u64 + page * PAGE, times);
        }
        let mut list = mover.batch();
        let mut keys = Vec::new();
        for (i, (src, dst)) in src.into_iter().zip(dst).enumerate() {
            if fences.contains(&i) {
                list.fence();
            }
            keys.push(list.copy(&*src, dst));
        }
        let mut done = list.submit().wait();
        let mut at = 0;
        for (key, len) in keys.into_iter().zip(&lengths) {
            let (result, src, dst) = done.take(key).into_parts();
            prop_assert_eq!(result, Ok(Outcome::Done));
            prop_assert!(src == &source[at..at + len] && dst == &source[at..at + len]);
            at += len;
        }
        prop_assert_eq!(device.state().lost, 0);
    }
}
