//! The poll-mode layer: order, room, bursts, faults, deadlines, raw descriptors, no allocation.
#![allow(clippy::cast_possible_truncation, reason = "tests cut small numbers")]

use crate::common::device::{PAGE, TestDevice};
use crate::common::{Chance, Watched, clock};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use telpher_abi::Descriptor;
use telpher_mover::{
    Channel, ChannelPolicy, Finished, JobError, ManualClock, OnFault, Opcode, Order, Outcome, RejectReason, Via,
};
use telpher_portal::QueueMode;

type Bytes = Channel<Vec<u8>, Vec<u8>>;

fn channel(device: &Arc<TestDevice>, capacity: u32, policy: ChannelPolicy) -> (Bytes, Arc<ManualClock>) {
    let clock = clock();
    (Channel::with_clock(Arc::clone(device) as _, capacity, policy, Arc::clone(&clock) as _).unwrap(), clock)
}

fn all(channel: &mut Bytes) -> Vec<Finished<Vec<u8>, Vec<u8>>> {
    let mut out = Vec::new();
    while channel.pending() > 0 {
        channel.submit();
        channel.completed(&mut out);
    }
    out
}

#[test]
fn a_burst_is_one_submission() {
    for (bursts, max_batch, expected) in [(true, 32, 1), (true, 4, 2), (true, 1, 8), (false, 32, 8)] {
        let device = Arc::new(TestDevice::with(|info| info.max_batch = max_batch));
        let (mut channel, _) = channel(&device, 8, ChannelPolicy { bursts, ..ChannelPolicy::default() });
        for i in 0..8 {
            channel.fill(vec![0; 16], i * 0x0101_0101_0101_0101).unwrap();
        }
        assert_eq!((channel.submit(), channel.submit(), channel.pending()), (8, 0, 8));
        assert_eq!(device.state().taken.len(), expected);
        let mut out = Vec::new();
        assert_eq!((channel.completed(&mut out), channel.pending()), (8, 0));
        for (i, finished) in out.into_iter().enumerate() {
            assert_eq!((finished.ticket.number(), finished.via), (i as u64, Via::Device));
            assert_eq!(finished.buffers.unwrap().dst, Some(vec![i as u8; 16]));
        }
    }
}

#[test]
fn operations_that_found_the_queue_full_are_submitted_by_completed() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let (mut channel, _) = channel(&device, 8, ChannelPolicy::default());
    device.state().retries = 3;
    channel.fill(vec![0; 16], 0x0101_0101_0101_0101).unwrap();
    assert_eq!(channel.submit(), 0);
    // Prepared since then, and not submitted.
    channel.fill(vec![0; 16], 0x0202_0202_0202_0202).unwrap();
    let mut out = Vec::new();
    let ended: usize = (0..10).map(|_| channel.completed(&mut out)).sum();
    assert_eq!((ended, channel.pending()), (1, 1));
    assert_eq!(all(&mut channel).remove(0).ticket.number(), 1);
}

#[test]
fn an_operation_not_taken_by_its_deadline_returns_its_buffers() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let policy = ChannelPolicy { deadline: Some(Duration::from_millis(5)), ..ChannelPolicy::default() };
    let (mut channel, clock) = channel(&device, 8, policy);
    device.state().retries = u64::MAX;
    for expected in [0, 0, 1, 1] {
        channel.fill(vec![0; 16], 0x0101_0101_0101_0101).unwrap();
        assert_eq!(channel.submit(), 0);
        let mut out = Vec::new();
        assert_eq!(channel.completed(&mut out), expected);
        for finished in out {
            assert_eq!(finished.result, Err(JobError::Deadline { after: Duration::from_millis(5) }));
            assert_eq!((finished.buffers.unwrap().dst, channel.quarantined()), (Some(vec![0; 16]), 0));
        }
        clock.advance(Duration::from_millis(3 + expected as u64));
    }
    device.state().retries = 0;
    let last = all(&mut channel);
    assert_eq!((last.len(), last[0].ticket.number()), (2, 2));
}

#[test]
fn a_full_channel_returns_the_buffers() {
    let device = Arc::new(TestDevice::with(|_| {}));
    device.state().manual = true;
    let (mut channel, _) = channel(&device, 2, ChannelPolicy::default());
    channel.copy(vec![1; 8], vec![0; 8]).unwrap();
    channel.copy(vec![1; 8], vec![0; 8]).unwrap();
    let rejected = channel.copy(vec![2; 8], vec![0; 8]).unwrap_err();
    assert_eq!((rejected.reason, rejected.buffers.src), (RejectReason::Full { capacity: 2 }, Some(vec![2; 8])));
    channel.submit();
    device.run(1);
    assert_eq!(all(&mut channel).len(), 2);
    let rejected = channel.copy(vec![2; 8], vec![0; 9]).unwrap_err();
    assert_eq!(rejected.reason, RejectReason::Buffers(JobError::Lengths { first: 8, second: 9 }));
    assert!(Bytes::new(Arc::clone(&device) as _, 0, ChannelPolicy::default()).is_err());
}

#[test]
fn results_come_in_the_order_of_submission_or_of_arrival() {
    for (order, expected) in [(Order::Submitted, vec![]), (Order::Arrival, vec![1])] {
        let device = Arc::new(TestDevice::with(|info| info.max_transfer = 4096));
        device.state().manual = true;
        let (mut channel, _) = channel(&device, 4, ChannelPolicy { order, bursts: false, ..ChannelPolicy::default() });
        channel.copy(vec![1; 5000], vec![0; 5000]).unwrap();
        channel.nop().unwrap();
        channel.submit();
        device.run(2);
        // The long one has a second chunk to do.
        let mut out = Vec::new();
        channel.completed(&mut out);
        assert_eq!(out.iter().map(|f| f.ticket.number()).collect::<Vec<_>>(), expected);
        device.run(1);
        channel.completed(&mut out);
        assert_eq!(out.len(), 2);
    }
}

#[test]
fn a_channel_respects_credits_and_wraps_around_its_ring() {
    let device = Arc::new(TestDevice::new(QueueMode::Dedicated, 3));
    device.state().manual = true;
    for (bursts, order) in [(true, Order::Submitted), (false, Order::Arrival), (true, Order::Arrival)] {
        let (mut channel, _) = channel(&device, 7, ChannelPolicy { bursts, order, ..ChannelPolicy::default() });
        let mut chance = Chance::new(5);
        let (mut sent, mut got, mut out) = (0_u64, 0, Vec::new());
        while got < 500 {
            for _ in 0..chance.below(5) {
                let src = chance.bytes(1 + (sent as usize * 7) % 50);
                let n = src.len();
                sent += u64::from(channel.copy(src, vec![0; n]).is_ok());
            }
            channel.submit();
            device.run(chance.below(3) as usize);
            channel.completed(&mut out);
            for finished in out.drain(..) {
                let buffers = finished.buffers.unwrap();
                assert_eq!((finished.result, buffers.src), (Ok(Outcome::Done), buffers.dst));
                got += 1;
            }
        }
        device.state().manual = false;
        all(&mut channel);
        device.state().manual = true;
        let state = device.state();
        assert_eq!(state.lost, 0);
        assert!(state.most <= 3);
    }
}

#[test]
fn faults_are_recovered_within_a_burst() {
    for on_fault in [OnFault::FinishOnCpu, OnFault::TouchAndResubmit { limit: 4 }, OnFault::Block] {
        let device = Arc::new(TestDevice::with(|info| info.block_on_fault = false));
        let (mut channel, _) = channel(&device, 8, ChannelPolicy { on_fault, ..ChannelPolicy::default() });
        let source = Chance::new(8).bytes(15_000);
        for i in 0..4 {
            let dst = vec![0; 15_000];
            if i % 2 == 0 {
                device.fault(dst.as_ptr() as u64 + 2 * PAGE, 2);
            }
            channel.copy(source.clone(), dst).unwrap();
        }
        let done = all(&mut channel);
        assert_eq!(done.len(), 4);
        for finished in done {
            assert_eq!(finished.result, Ok(Outcome::Done), "{on_fault:?}");
            assert!(finished.buffers.unwrap().dst.unwrap() == source);
        }
    }
}

#[test]
fn a_resubmitted_operation_is_not_held_up_by_one_behind_it() {
    let device = Arc::new(TestDevice::with(|_| {}));
    device.state().manual = true;
    let (mut channel, _) = channel(&device, 4, ChannelPolicy { bursts: false, ..ChannelPolicy::default() });
    let src = vec![1; 100];
    device.fault(telpher_mover::StableBuf::address(&src), 2);
    channel.copy(src, vec![0; 100]).unwrap();
    channel.copy(vec![2; 100], vec![0; 100]).unwrap();
    assert_eq!(channel.submit(), 2);
    let mut out = Vec::new();
    // The first operation faults, is submitted again, faults once more, and ends, while another engine works on the
    // second.
    device.run(1);
    assert_eq!(channel.completed(&mut out), 0);
    let second = device.take_front();
    for ended in [0, 1] {
        assert_eq!(device.run(1), 1);
        assert_eq!(channel.completed(&mut out), ended);
    }
    assert_eq!((out[0].ticket.number(), &out[0].result, out[0].via), (0, &Ok(Outcome::Done), Via::Device));
    device.put_back(second);
    device.run(1);
    assert_eq!((channel.completed(&mut out), channel.pending()), (1, 0));
}

#[test]
fn unsupported_operations_are_done_by_the_cpu_at_submit() {
    let device = Arc::new(TestDevice::with(|info| info.operations = info.operations.with(Opcode::MemoryMove, false)));
    let (mut channel, _) = channel(&device, 4, ChannelPolicy::default());
    channel.copy(vec![1; 8], vec![0; 8]).unwrap();
    channel.fill(vec![0; 8], 0).unwrap();
    channel.drain().unwrap();
    let done = all(&mut channel);
    assert_eq!(done.iter().map(|f| f.via).collect::<Vec<_>>(), [Via::Cpu, Via::Device, Via::Device]);
}

#[test]
fn an_expired_operation_keeps_its_buffers() {
    let device = Arc::new(TestDevice::with(|_| {}));
    device.state().manual = true;
    let policy = ChannelPolicy { deadline: Some(Duration::from_millis(1)), ..ChannelPolicy::default() };
    let clock = clock();
    let mut channel: Channel<Watched, Watched> =
        Channel::with_clock(Arc::clone(&device) as _, 4, policy, Arc::clone(&clock) as _).unwrap();
    let (dst, dropped) = Watched::new(vec![0; 10]);
    channel.fill(dst, 1).unwrap();
    channel.submit();
    let mut out = Vec::new();
    clock.advance(Duration::from_micros(999));
    assert_eq!(channel.completed(&mut out), 0, "not yet");
    clock.advance(Duration::from_micros(1));
    assert_eq!(channel.completed(&mut out), 1);
    assert_eq!(out[0].result, Err(JobError::Deadline { after: Duration::from_millis(1) }));
    assert!(out[0].buffers.is_none());
    assert_eq!((channel.quarantined(), dropped.load(Ordering::SeqCst)), (1, false));
    device.run(1);
    assert_eq!(channel.completed(&mut out), 0, "it ends once");
    assert_eq!((channel.quarantined(), dropped.load(Ordering::SeqCst)), (0, true));
}

#[test]
fn a_dropped_channel_waits_or_leaks() {
    for halted in [false, true] {
        let device = Arc::new(TestDevice::with(|_| {}));
        let policy = ChannelPolicy { linger: Duration::from_millis(1), ..ChannelPolicy::default() };
        let mut channel: Channel<Watched, Watched> =
            Channel::with_clock(Arc::clone(&device) as _, 4, policy, clock()).unwrap();
        let (dst, dropped) = Watched::new(vec![0; 10]);
        channel.fill(dst, 1).unwrap();
        channel.nop().unwrap();
        channel.submit();
        device.state().halted = halted;
        drop(channel);
        assert_eq!(dropped.load(Ordering::SeqCst), !halted);
        device.state().halted = false;
        device.run(10);
    }
}

#[test]
#[allow(unsafe_code, reason = "raw descriptors are what is tested")]
fn a_raw_descriptor_reports_its_fault_and_is_not_touched() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let (mut channel, _) = channel(&device, 4, ChannelPolicy::default());
    let (src, mut dst) = (vec![7_u8; 20_000], vec![0_u8; 20_000]);
    let (from, to) = (src.as_ptr() as u64, dst.as_mut_ptr() as u64);
    let page = (to / PAGE + 2) * PAGE;
    device.fault(page, u32::MAX);
    // SAFETY: both buffers live until the end of the test, and no code touches them before the results are fetched.
    let tickets = [(); 2].map(|()| unsafe { channel.raw(Descriptor::memory_move(from, to, 20_000)) }.unwrap());
    // SAFETY: as above.
    unsafe { channel.raw(Descriptor::memory_move(from, to, 0)) }.unwrap();
    let done = all(&mut channel);
    let fault = JobError::Fault { address: page, write: true, done: page - to };
    assert_eq!(done.iter().map(|f| &f.result).collect::<Vec<_>>()[..2], [&Err(fault.clone()), &Err(fault)]);
    assert_eq!(done[0].ticket, tickets[0]);
    assert_eq!(u64::from(done[0].record.unwrap().bytes_completed()), page - to);
    assert!(matches!(done[2].result, Err(JobError::Refused { .. })));
    assert!(dst[usize::try_from(page - to).unwrap()..].iter().all(|&byte| byte == 0));
}

#[test]
fn a_written_result_does_not_expire_with_a_late_one_before_it() {
    let device = Arc::new(TestDevice::with(|_| {}));
    device.state().manual = true;
    let deadline = Some(Duration::from_millis(1));
    let policy = ChannelPolicy { bursts: false, deadline, ..ChannelPolicy::default() };
    let (mut channel, clock) = channel(&device, 4, policy);
    channel.fill(vec![0; 8], 1).unwrap();
    channel.fill(vec![0; 8], u64::from_le_bytes([2; 8])).unwrap();
    channel.submit();
    let stuck = device.take_front();
    device.run(1);
    let mut out = Vec::new();
    assert_eq!(channel.completed(&mut out), 0, "in order");
    clock.advance(Duration::from_millis(2));
    assert_eq!(channel.completed(&mut out), 2);
    assert!(matches!(out[0].result, Err(JobError::Deadline { .. })) && out[0].buffers.is_none());
    assert_eq!(out[1].result, Ok(Outcome::Done));
    assert_eq!(out[1].buffers.take().and_then(|buffers| buffers.dst), Some(vec![2; 8]));
    device.put_back(stuck);
    device.run(1);
    channel.completed(&mut out);
    assert_eq!(channel.quarantined(), 0);
}

#[test]
fn a_batch_lost_halfway_does_not_hold_the_credits_of_later_operations() {
    let device = Arc::new(TestDevice::new(QueueMode::Dedicated, 3));
    device.state().manual = true;
    let policy =
        ChannelPolicy { deadline: Some(Duration::from_millis(1)), linger: Duration::ZERO, ..ChannelPolicy::default() };
    let (mut channel, clock) = channel(&device, 64, policy);
    channel.fill(vec![0; 8], 1).unwrap();
    channel.fill(vec![0; 8], 2).unwrap();
    channel.submit();
    device.lose_after_first_member();
    clock.advance(Duration::from_millis(2));
    let mut out = Vec::new();
    assert_eq!(channel.completed(&mut out), 2);
    assert!(out[0].result.is_ok() && out[1].result.is_err());
    for n in 0..10 {
        channel.fill(vec![0; 8], 3).unwrap();
        assert_eq!(channel.submit(), 1, "operation {n}");
        device.run(1);
        channel.completed(&mut out);
    }
}
