//! A queue that stops (halted, disabled, reset) loses nothing: its operations are done elsewhere, or end with an error
//! that says why.

use crate::common::device::TestDevice;
use crate::common::{Chance, Watched, clock, mover, movers, policy};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use telpher_mover::{
    Channel, ChannelPolicy, CrcMode, Finished, JobError, Mover, Opcode, Order, Outcome, Policy, StableBuf, Via,
};
use telpher_portal::{Portal, QueueMode};

const WHY: &str = "device dsa0 is halted";

fn manual(mode: QueueMode) -> Arc<TestDevice> {
    let device = Arc::new(TestDevice::new(mode, 16));
    device.state().manual = true;
    device
}

#[test]
fn the_cpu_does_the_work_of_a_stopped_queue_and_the_queue_gets_no_more() {
    for mode in [QueueMode::Shared, QueueMode::Dedicated] {
        let device = manual(mode);
        let mover = mover(&device, policy());
        let jobs: Vec<_> = (0..8).map(|i| mover.copy(vec![i; 5000], vec![0; 5000])).collect();
        let crc = mover.crc(b"123456789".to_vec(), 0, CrcMode::default());
        device.run(3);
        device.stop(WHY);
        for (i, job) in jobs.into_iter().enumerate() {
            let done = job.wait();
            assert_eq!(
                (done.result.clone(), done.via),
                (Ok(Outcome::Done), if i < 3 { Via::Device } else { Via::Cpu })
            );
            assert_eq!(done.buffers.1, vec![u8::try_from(i).unwrap(); 5000], "{mode:?} {i}");
        }
        assert_eq!(crc.wait().result, Ok(Outcome::Crc(0xe306_9283)));
        let taken = device.state().taken.len();
        assert_eq!(mover.fill(vec![0; 5000], 1).wait().via, Via::Cpu);
        assert_eq!(mover.drain().wait().result, Ok(Outcome::Done), "nothing it took is in flight");
        let state = device.state();
        assert_eq!(
            (state.taken.len(), state.asked, state.lost),
            (taken, 1, 0),
            "the queue gets no further offer or health check"
        );
    }
}

#[test]
fn a_job_of_a_stopped_queue_continues_on_another() {
    let (first, second) = (manual(QueueMode::Dedicated), Arc::new(TestDevice::with(|_| {})));
    let mover = movers(&[&first, &second], Policy { route: telpher_mover::Route::First, ..policy() });
    let job = mover.copy(vec![7; 5000], vec![0; 5000]);
    assert_eq!(first.state().taken, [Opcode::MemoryMove]);
    first.stop(WHY);
    let done = job.wait();
    assert_eq!((done.via, done.buffers.1), (Via::Device, vec![7; 5000]));
    assert_eq!(second.state().taken, [Opcode::MemoryMove]);
    assert_eq!(mover.drain().wait().result, Ok(Outcome::Done), "one of the queues drains, the other has nothing");
}

#[test]
fn a_working_queue_is_asked_now_and_then_and_continues() {
    let device = manual(QueueMode::Shared);
    let policy = Policy { patience: Duration::from_micros(100), ..policy() };
    let mover = mover(&device, policy);
    let mut job = mover.copy(vec![7; 5000], vec![0; 5000]);
    // The clock advances only when a thread rests. `is_done` does not rest, so a wait for something else advances the
    // clock.
    let other = mover.fill(vec![0; 10], 1).deadline(Duration::from_millis(1)).wait();
    assert!(other.is_err());
    let asked = device.state().asked;
    // 64 checks apart each time, and once when the deadline passed.
    assert!((6..=10).contains(&asked), "{asked}");
    assert!(!job.is_done());
    device.run(2);
    assert_eq!(job.wait().via, Via::Device);
}

/// Runs a move of `len` bytes from `from` to `to` in one buffer, during which the queue stops at byte `stop` of the
/// moved range.
fn overlapping(from: usize, to: usize, len: usize, stop: usize) -> (Result<Outcome, JobError>, bool) {
    let device = manual(QueueMode::Shared);
    let mover = mover(&device, policy());
    let before = Chance::new(7).bytes(from.max(to) + len);
    let mut expected = before.clone();
    expected.copy_within(from..from + len, to);
    let address = before.address();
    let job = mover.copy_within(before, from..from + len, to);
    device.stop_within(address + (from + stop) as u64, WHY);
    let (result, after) = job.wait().into_parts();
    (result, after == expected)
}

#[test]
fn a_half_done_move_is_exact_or_an_error() {
    for (from, to) in [(0, 1000), (1000, 0), (0, 999), (999, 0)] {
        for stop in [0, 1, 500, 998, 999] {
            let (result, exact) = overlapping(from, to, 1000, stop);
            if from.abs_diff(to) >= 1000 {
                assert_eq!((result, exact), (Ok(Outcome::Done), true), "{from} → {to}, stopped at {stop}");
            } else {
                let error = result.unwrap_err();
                assert_eq!(error, JobError::Stopped { op: Opcode::MemoryMove, why: WHY.into() });
                assert_eq!(
                    error.to_string(),
                    "the queue stopped, and memory-move cannot be done again elsewhere: device dsa0 is halted"
                );
            }
        }
    }
}

#[test]
fn an_overlapping_move_cut_into_chunks_that_do_not_overlap_is_exact() {
    // 1000 bytes at a time, from the end: no chunk overwrites bytes that it has yet to read.
    let device = Arc::new(TestDevice::with(|info| info.max_transfer = 1000));
    device.state().manual = true;
    let mover = mover(&device, policy());
    let before = Chance::new(8).bytes(6000);
    let mut expected = before.clone();
    expected.copy_within(0..5000, 1000);
    let address = before.address();
    let mut job = mover.copy_within(before, 0..5000, 1000);
    device.run(1);
    assert!(!job.is_done());
    // Bytes 3000..4000 are being moved.
    device.stop_within(address + 3456, WHY);
    let done = job.wait();
    assert_eq!((done.result, done.via, done.buffers.0 == expected), (Ok(Outcome::Done), Via::Both, true));
}

#[test]
fn every_half_done_operation_is_repeated() {
    let mut chance = Chance::new(9);
    let (a, mut b) = (chance.bytes(4096), chance.bytes(4096));
    b[..100].copy_from_slice(&a[..100]);
    let stop = |device: &TestDevice, address: u64| device.stop_within(address, WHY);
    let fresh = || {
        let device = manual(QueueMode::Shared);
        let mover = mover(&device, policy());
        (device, mover)
    };
    {
        let (device, mover) = fresh();
        let second = b.clone();
        let middle = second.address() + 2048;
        let job = mover.create_delta(a.clone(), second, vec![0; 8192]);
        stop(&device, middle);
        let (result, _, _, delta) = job.wait().into_parts();
        let Ok(Outcome::Delta(telpher_mover::Delta::Complete { bytes })) = result else { panic!("{result:?}") };
        let (device, mover) = fresh();
        let dst = a.clone();
        let middle = dst.address() + 2048;
        let job = mover.apply_delta(delta, dst, bytes);
        stop(&device, middle);
        let (result, _, dst) = job.wait().into_parts();
        assert_eq!((result, dst == b), (Ok(Outcome::Done), true), "apply delta");
    }
    {
        let (device, mover) = fresh();
        let dst = vec![0; 4096];
        let middle = dst.address() + 1111;
        let job = mover.copy_crc(a.clone(), dst, 0, CrcMode::default());
        stop(&device, middle);
        let (result, src, dst) = job.wait().into_parts();
        let whole = Mover::cpu().crc(src, 0, CrcMode::default()).wait();
        assert_eq!((result, dst == a), (whole.result, true), "copy with CRC");
    }
    {
        let (device, mover) = fresh();
        let dst = vec![0; 4096];
        let middle = dst.address() + 1001;
        let job = mover.fill(dst, 0x0807_0605_0403_0201);
        stop(&device, middle);
        let (result, dst) = job.wait().into_parts();
        let expected: Vec<u8> = (0..4096).map(|i| u8::try_from(i % 8 + 1).unwrap()).collect();
        assert_eq!((result, dst == expected), (Ok(Outcome::Done), true), "fill");
    }
    {
        let (device, mover) = fresh();
        let src = a.clone();
        let middle = src.address() + 50;
        let job = mover.compare(src, b.clone());
        stop(&device, middle);
        assert_eq!(job.wait().result, Ok(Outcome::Different { at: 100 }), "compare");
    }
}

#[test]
fn batch_members_of_a_stopped_queue_are_each_done_once() {
    let device = manual(QueueMode::Shared);
    let mover = mover(&device, policy());
    let mut batch = mover.batch();
    let first = vec![0; 3000];
    let middle = first.address() + 1234;
    let a = batch.copy(vec![1; 3000], first);
    let overlapping = batch.copy_within((0..100).collect::<Vec<u8>>(), 0..99, 1);
    let b = batch.fill(vec![0; 100], 0x0202_0202_0202_0202);
    let behind = batch.fence().fill(vec![0; 100], 1);
    let job = batch.submit();
    assert_eq!(device.state().taken, [Opcode::Batch]);
    device.stop_within(middle, WHY);
    let mut done = job.wait();
    assert_eq!(done.take(a).buffers.1, vec![1; 3000]);
    // It is not known that it was never begun.
    let error = done.take(overlapping).result.unwrap_err();
    assert_eq!(error, JobError::Stopped { op: Opcode::MemoryMove, why: WHY.into() });
    assert_eq!(done.take(b).buffers.0, vec![2; 100]);
    let result = done.take(behind).result;
    assert_eq!(result, Err(JobError::Abandoned { because: 1 }));
    assert_eq!(device.state().taken, [Opcode::Batch]);
}

#[test]
fn members_with_a_record_are_not_repeated() {
    let device = manual(QueueMode::Shared);
    let mover = mover(&device, policy());
    let mut batch = mover.batch();
    // If it were done twice, the bytes would move twice.
    let moved = batch.copy_within((0..100).collect::<Vec<u8>>(), 0..99, 1);
    let filled = batch.fill(vec![0; 100], 0x0202_0202_0202_0202);
    let job = batch.submit();
    device.lose_after_first_member();
    device.stop(WHY);
    let mut done = job.wait();
    let expected: Vec<u8> = [0].into_iter().chain(0..99).collect();
    assert_eq!(done.take(moved).into_parts(), (Ok(Outcome::Done), expected));
    assert_eq!(done.take(filled).into_parts(), (Ok(Outcome::Done), vec![2; 100]));
}

#[test]
fn a_scope_over_a_stopped_queue_ends() {
    let device = manual(QueueMode::Dedicated);
    let mover = mover(&device, policy());
    let (src, mut dst) = (vec![7; 8000], vec![0; 8000]);
    mover.scope(|scope| {
        for (src, dst) in src.chunks(1000).zip(dst.chunks_mut(1000)) {
            scope.copy(src, dst);
        }
        device.run(2);
        device.stop(WHY);
    });
    assert!(src == dst);
}

#[test]
fn buffers_kept_for_a_stopped_queue_are_freed() {
    let device = manual(QueueMode::Dedicated);
    let mover = mover(&device, policy());
    let watched: Vec<_> = (0..3).map(|_| Watched::new(vec![0; 100])).collect();
    let mut gone = Vec::new();
    for (i, (buffer, dropped)) in watched.into_iter().enumerate() {
        gone.push(dropped);
        let job = mover.fill(buffer, 1);
        if i == 2 {
            device.stop(WHY);
        }
        if i == 0 {
            drop(job);
        } else {
            assert!(job.deadline(Duration::ZERO).wait().is_err());
        }
    }
    // The last deadline checked the queue's health; sweeps do the rest.
    (0..200).for_each(|_| mover.drive());
    assert_eq!((mover.orphaned(), mover.quarantined()), (0, 0));
    assert!(gone.iter().all(|gone| gone.load(Ordering::SeqCst)));
}

/// Regression: a caller that dropped a job waited for its buffer for ever, because the queue's health was never
/// checked.
#[test]
fn the_queue_of_a_dropped_job_is_asked_now_and_then() {
    let device = manual(QueueMode::Shared);
    let mover = mover(&device, policy());
    let (buffer, gone) = Watched::new(vec![0; 100]);
    drop(mover.fill(buffer, 1));
    (0..10_000).for_each(|_| mover.drive());
    assert!(mover.orphaned() == 1 && !gone.load(Ordering::SeqCst), "the device works and may still write");
    let asked = device.state().asked;
    assert!((5..=10).contains(&asked), "{asked}");
    device.stop(WHY);
    (0..3000).for_each(|_| mover.drive());
    assert!(mover.orphaned() == 0 && gone.load(Ordering::SeqCst));
    (0..10_000).for_each(|_| mover.drive());
    assert!(device.state().asked <= asked + 2, "no health checks without a dropped job");
}

#[test]
fn the_last_handle_checks_the_queue_before_it_leaks() {
    let device = manual(QueueMode::Dedicated);
    let mover = mover(&device, Policy { linger: Duration::from_millis(1), ..policy() });
    let (buffer, gone) = Watched::new(vec![0; 100]);
    drop(mover.fill(buffer, 1));
    device.stop(WHY);
    drop(mover);
    assert!(gone.load(Ordering::SeqCst));
}

type Ring = Channel<Vec<u8>, Vec<u8>>;

fn channel(device: &Arc<TestDevice>, policy: ChannelPolicy) -> Ring {
    Ring::with_clock(Arc::clone(device) as Arc<dyn Portal>, 8, policy, clock()).unwrap()
}

fn fetch(channel: &mut Ring, n: usize) -> Vec<Finished<Vec<u8>, Vec<u8>>> {
    let mut out = Vec::new();
    // More checks than any patience; the clock stands still, so only a patience of zero passes.
    for _ in 0..1000 {
        channel.completed(&mut out);
        if out.len() >= n {
            break;
        }
    }
    out.sort_by_key(|finished| finished.ticket);
    out
}

#[test]
fn a_channel_over_a_stopped_queue_continues_on_the_cpu() {
    for (order, bursts, mode) in [
        (Order::Submitted, true, QueueMode::Shared),
        (Order::Arrival, true, QueueMode::Dedicated),
        (Order::Submitted, false, QueueMode::Dedicated),
        (Order::Arrival, false, QueueMode::Shared),
    ] {
        let device = manual(mode);
        let mut channel =
            channel(&device, ChannelPolicy { order, bursts, patience: Duration::ZERO, ..ChannelPolicy::default() });
        for i in 0..3 {
            channel.copy(vec![i + 1; 1000], vec![0; 1000]).unwrap();
        }
        channel.copy_within((0..100).collect(), 0..99, 1).unwrap();
        channel.submit();
        channel.fill(vec![0; 100], 0x0909_0909_0909_0909).unwrap();
        channel.drain().unwrap();
        device.stop(WHY);
        let done = fetch(&mut channel, 4);
        for (i, finished) in done[..3].iter().enumerate() {
            assert_eq!((&finished.result, finished.via), (&Ok(Outcome::Done), Via::Cpu), "{order:?} {bursts}");
            let buffers = finished.buffers.as_ref().unwrap();
            assert_eq!(buffers.dst.as_deref(), Some(&[u8::try_from(i).unwrap() + 1; 1000][..]));
        }
        assert_eq!(done[3].result, Err(JobError::Stopped { op: Opcode::MemoryMove, why: WHY.into() }));
        // The CPU does operations that were never submitted, too, and a stopped queue counts as drained.
        assert_eq!(channel.submit(), 2);
        let done = fetch(&mut channel, 2);
        assert_eq!(done[0].buffers.as_ref().unwrap().dst, Some(vec![9; 100]));
        assert!(done.iter().all(|finished| finished.result == Ok(Outcome::Done)));
        assert_eq!((channel.pending(), device.state().asked), (0, 1));
        let lost = device.state().lost;
        assert_eq!(lost, 0);
    }
}

/// Regression: a channel had nothing in flight when its shared queue stopped. `submit` got Retry for ever, and the
/// queue's health was never checked.
#[test]
fn a_channel_whose_queue_stopped_while_empty_continues_on_the_cpu() {
    let device = manual(QueueMode::Shared);
    let mut channel = channel(&device, ChannelPolicy { patience: Duration::ZERO, ..ChannelPolicy::default() });
    device.stop(WHY);
    channel.copy(vec![5; 1000], vec![0; 1000]).unwrap();
    assert_eq!(channel.submit(), 0);
    let done = fetch(&mut channel, 1);
    assert_eq!((&done[0].result, done[0].via, device.state().asked), (&Ok(Outcome::Done), Via::Cpu, 1));
    assert_eq!(done[0].buffers.as_ref().unwrap().dst, Some(vec![5; 1000]));
}

#[test]
fn a_late_operation_on_a_stopped_queue_returns_its_buffers() {
    let device = manual(QueueMode::Dedicated);
    let time = clock();
    let policy = ChannelPolicy { deadline: Some(Duration::from_millis(1)), ..ChannelPolicy::default() };
    let mut channel = Ring::with_clock(Arc::clone(&device) as Arc<dyn Portal>, 8, policy, time.clone()).unwrap();
    channel.fill(vec![0; 100], 0x0101_0101_0101_0101).unwrap();
    channel.submit();
    time.advance(Duration::from_millis(2));
    let mut out = Vec::new();
    assert_eq!((channel.completed(&mut out), channel.quarantined()), (1, 1), "the device may still write");
    channel.fill(vec![0; 100], 0x0202_0202_0202_0202).unwrap();
    channel.submit();
    device.stop(WHY);
    time.advance(Duration::from_millis(2));
    assert_eq!((channel.completed(&mut out), channel.quarantined()), (1, 0), "neither may be written any more");
    assert!(matches!(out[0].result, Err(JobError::Deadline { .. })));
    assert_eq!(
        (&out[1].result, out[1].buffers.as_ref().unwrap().dst.as_deref()),
        (&Ok(Outcome::Done), Some(&[2; 100][..]))
    );
}

#[test]
fn a_channel_dropped_over_a_stopped_queue_frees_its_buffers() {
    let device = manual(QueueMode::Dedicated);
    let policy = ChannelPolicy { linger: Duration::from_millis(1), ..ChannelPolicy::default() };
    let portal = Arc::clone(&device) as Arc<dyn Portal>;
    let mut channel: Channel<Vec<u8>, Watched> = Channel::with_clock(portal, 4, policy, clock()).unwrap();
    let (buffer, gone) = Watched::new(vec![0; 100]);
    channel.fill(buffer, 1).unwrap();
    channel.submit();
    device.stop(WHY);
    drop(channel);
    assert!(gone.load(Ordering::SeqCst));
}
