//! Lists of a channel: the CRC of several sources as one operation.
#![allow(clippy::cast_possible_truncation, reason = "tests cut small numbers")]

use crate::common::device::TestDevice;
use crate::common::{Chance, clock, naive};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use telpher_abi::Status;
use telpher_mover::{Channel, ChannelPolicy, CrcMode, Finished, JobError, Opcode, Order, Outcome, StableBuf, Via};
use telpher_portal::QueueMode;

type Bytes = Channel<Vec<u8>, Vec<u8>>;

fn channel(device: &Arc<TestDevice>, capacity: u32, policy: ChannelPolicy) -> Bytes {
    Channel::with_clock(Arc::clone(device) as _, capacity, policy, clock()).unwrap()
}

fn sources(chance: &mut Chance, count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|_| {
            let len = 1 + chance.below(300) as usize;
            chance.bytes(len)
        })
        .collect()
}

fn crc(sources: &[Vec<u8>]) -> u32 {
    naive::crc32c(0, &sources.concat(), CrcMode::default())
}

/// The end of a list, with the right CRC of its sources.
fn assert_right(finished: &Finished<Vec<u8>, Vec<u8>>, via: Via) {
    assert_eq!((&finished.result, finished.via), (&Ok(Outcome::Crc(crc(&finished.sources))), via));
    assert!(finished.buffers.is_none() && !finished.sources.is_empty());
}

#[test]
fn lists_and_other_operations_of_a_burst_are_one_batch() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mut channel = channel(&device, 16, ChannelPolicy::default());
    let mut chance = Chance::new(1);
    let tickets = [
        channel.crc_list(sources(&mut chance, 4)).unwrap(),
        channel.crc(chance.bytes(50), 0, CrcMode::default()).unwrap(),
        channel.crc_list(sources(&mut chance, 1)).unwrap(),
        channel.crc_list(sources(&mut chance, 3)).unwrap(),
    ];
    assert_eq!((tickets.map(|ticket| ticket.number()), channel.pending()), ([0, 4, 5, 6], 4));
    assert_eq!(channel.submit(), 9);
    assert_eq!(device.state().taken, [Opcode::Batch]);
    let mut out = Vec::new();
    assert_eq!((channel.completed(&mut out), channel.pending()), (4, 0));
    for (finished, ticket) in out.iter().zip(tickets) {
        assert_eq!(finished.ticket, ticket);
        if ticket.number() == 4 {
            assert!(finished.sources.is_empty() && finished.buffers.is_some());
        } else {
            assert_right(finished, Via::Device);
        }
    }
}

#[test]
fn a_list_that_does_not_fit_comes_back() {
    let device = Arc::new(TestDevice::with(|info| (info.max_batch, info.max_transfer) = (4, 1000)));
    let mut channel = channel(&device, 8, ChannelPolicy::default());
    let mut refused = |sources: Vec<Vec<u8>>| assert_eq!(channel.crc_list(sources.clone()), Err(sources));
    refused(vec![]);
    refused(vec![vec![1; 8]; 5]);
    refused(vec![vec![1; 8], vec![]]);
    refused(vec![vec![1; 1001]]);
    for _ in 0..2 {
        channel.crc_list(vec![vec![1; 8]; 3]).unwrap();
    }
    assert!(channel.crc_list(vec![vec![1; 8]; 3]).is_err(), "two slots are left");
    channel.submit();
    let mut out = Vec::new();
    assert_eq!(channel.completed(&mut out), 2);
    // All slots are free, but only two of them side by side before the ring begins again.
    assert!(channel.crc_list(vec![vec![1; 8]; 3]).is_err());
    channel.crc_list(vec![vec![1; 8]; 2]).unwrap();
    channel.crc_list(vec![vec![1; 8]; 4]).unwrap();
    channel.submit();
    assert_eq!(channel.completed(&mut out), 2);
    out.iter().for_each(|finished| assert_right(finished, Via::Device));
    let device = Arc::new(TestDevice::with(|info| {
        info.operations = info.operations.with(Opcode::CrcGeneration, false);
    }));
    assert!(super::lists::channel(&device, 8, ChannelPolicy::default()).crc_list(vec![vec![1; 8]]).is_err());
}

#[test]
fn single_sources_are_lists_also_without_batches() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let mut channel = channel(&device, 8, ChannelPolicy { bursts: false, ..ChannelPolicy::default() });
    assert!(channel.crc_list(vec![vec![1; 8]; 2]).is_err());
    channel.crc_list(vec![vec![1; 8]]).unwrap();
    channel.crc_list(vec![vec![2; 8]]).unwrap();
    channel.submit();
    assert_eq!(device.state().taken, [Opcode::CrcGeneration; 2]);
    let mut out = Vec::new();
    assert_eq!(channel.completed(&mut out), 2);
    out.iter().for_each(|finished| assert_right(finished, Via::Device));
}

#[test]
fn what_the_device_does_not_do_the_cpu_does() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let clock = clock();
    let policy = ChannelPolicy::default();
    let mut channel: Bytes = Channel::with_clock(Arc::clone(&device) as _, 8, policy, Arc::clone(&clock) as _).unwrap();
    for (number, bad) in [Status::HardwareReadError, Status::InvalidFlags].into_iter().enumerate() {
        let list = sources(&mut Chance::new(3), 4);
        if number == 0 {
            device.fault(StableBuf::address(&list[2]), 1);
        } else {
            device.state().answers.push_back(bad);
        }
        channel.crc_list(list).unwrap();
        channel.submit();
        let mut out = Vec::new();
        assert_eq!(channel.completed(&mut out), 1);
        assert_right(&out[0], Via::Cpu);
    }
    device.stop("it was removed");
    channel.crc_list(vec![vec![5; 100]; 3]).unwrap();
    channel.submit();
    let mut out = Vec::new();
    for _ in 0..1000 {
        channel.completed(&mut out);
        clock.advance(Duration::from_millis(100));
    }
    assert_right(&out[0], Via::Cpu);
}

#[test]
fn a_list_waits_for_all_of_its_records() {
    for order in [Order::Submitted, Order::Arrival] {
        let device = Arc::new(TestDevice::with(|_| {}));
        device.state().manual = true;
        let policy = ChannelPolicy { order, linger: Duration::ZERO, ..ChannelPolicy::default() };
        let mut channel = channel(&device, 8, policy);
        channel.crc_list(vec![vec![5; 100]; 3]).unwrap();
        channel.submit();
        let mut out = Vec::new();
        assert_eq!(channel.completed(&mut out), 0);
        device.lose_after_first_member();
        assert_eq!(channel.completed(&mut out), 0, "two records are missing");
        assert_eq!(channel.pending(), 1);
    }
}

/// Counts its values that exist.
#[derive(Debug)]
struct Counted {
    bytes: Vec<u8>,
    count: Arc<AtomicUsize>,
}

impl Counted {
    fn new(byte: u8, count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, Ordering::SeqCst);
        Counted { bytes: vec![byte; 100], count: Arc::clone(count) }
    }
}

impl Clone for Counted {
    fn clone(&self) -> Counted {
        Counted::new(self.bytes[0], &self.count)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}

#[allow(unsafe_code, reason = "the trait is a promise; a Vec keeps it")]
mod counted {
    // SAFETY: a Vec's block stays where it is.
    unsafe impl super::StableBuf for super::Counted {
        fn address(&self) -> u64 {
            self.bytes.address()
        }
        fn len(&self) -> usize {
            self.bytes.len()
        }
    }
}

#[test]
fn an_expired_list_keeps_its_sources_until_its_burst_has_ended() {
    let device = Arc::new(TestDevice::with(|_| {}));
    device.state().manual = true;
    let policy = ChannelPolicy { deadline: Some(Duration::from_millis(1)), ..ChannelPolicy::default() };
    let clock = clock();
    let mut channel: Channel<Counted, Vec<u8>> =
        Channel::with_clock(Arc::clone(&device) as _, 8, policy, Arc::clone(&clock) as _).unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    channel.crc_list([1, 2, 3].map(|byte| Counted::new(byte, &count)).into()).unwrap();
    channel.crc_list(vec![Counted::new(4, &count)]).unwrap();
    channel.submit();
    clock.advance(Duration::from_millis(1));
    let mut out = Vec::new();
    assert_eq!((channel.completed(&mut out), channel.pending(), channel.quarantined()), (2, 0, 2));
    for finished in &out {
        assert_eq!(finished.result, Err(JobError::Deadline { after: Duration::from_millis(1) }));
    }
    assert_eq!(out[0].sources.iter().map(|source| source.bytes[0]).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(count.load(Ordering::SeqCst), 8, "the channel has four, and the caller their clones");
    out.clear();
    device.run(1);
    assert_eq!((channel.completed(&mut out), channel.quarantined()), (0, 0));
    assert_eq!(count.load(Ordering::SeqCst), 0);
    // The slots can be used again.
    for _ in 0..4 {
        channel.crc_list([1, 2, 3].map(|byte| Counted::new(byte, &count)).into()).unwrap();
        channel.submit();
        device.run(1);
        assert_eq!(channel.completed(&mut out), 1);
        assert!(matches!(out.remove(0).result, Ok(Outcome::Crc(_))));
        channel.nop().unwrap();
        channel.submit();
        device.run(1);
        channel.completed(&mut out);
        out.clear();
    }
}

#[test]
fn a_list_not_taken_by_its_deadline_returns_its_sources() {
    let device = Arc::new(TestDevice::with(|_| {}));
    let policy = ChannelPolicy { deadline: Some(Duration::from_millis(1)), ..ChannelPolicy::default() };
    let clock = clock();
    let mut channel: Bytes = Channel::with_clock(Arc::clone(&device) as _, 8, policy, Arc::clone(&clock) as _).unwrap();
    device.state().retries = u64::MAX;
    for _ in 0..5 {
        channel.crc_list(vec![vec![5; 100]; 2]).unwrap();
        channel.submit();
        clock.advance(Duration::from_millis(1));
        let mut out = Vec::new();
        assert_eq!((channel.completed(&mut out), channel.quarantined()), (1, 0));
        assert_eq!(out[0].result, Err(JobError::Deadline { after: Duration::from_millis(1) }));
        assert_eq!(out[0].sources, vec![vec![5; 100]; 2]);
    }
}

#[test]
fn many_lists_among_other_operations_all_end_once() {
    let policies = [(true, Order::Submitted, 16), (true, Order::Arrival, 16), (true, Order::Arrival, 3)];
    for (number, (bursts, order, max_batch)) in policies.into_iter().enumerate() {
        let device = Arc::new(TestDevice::new(QueueMode::Dedicated, 3));
        device.state().manual = true;
        let mut channel = channel(&device, 13, ChannelPolicy { bursts, order, ..ChannelPolicy::default() });
        let mut chance = Chance::new(number as u64);
        let (mut sent, mut out, mut lists) = (0_usize, Vec::new(), 0);
        let mut ended = 0;
        while ended < 2000 {
            for _ in 0..chance.below(5) {
                if chance.below(3) == 0 {
                    let src = chance.bytes(40);
                    sent += usize::from(channel.copy(src, vec![0; 40]).is_ok());
                } else {
                    let count = 1 + chance.below(max_batch.min(5)) as usize;
                    let list = sources(&mut chance, count);
                    if chance.below(10) == 0 {
                        device.fault(StableBuf::address(&list[count - 1]), 1);
                    }
                    sent += usize::from(channel.crc_list(list).is_ok());
                }
            }
            if chance.below(4) > 0 {
                channel.submit();
            }
            device.run(chance.below(3) as usize);
            channel.completed(&mut out);
            for finished in out.drain(..) {
                ended += 1;
                match finished.buffers {
                    Some(buffers) => assert_eq!((finished.result, buffers.src), (Ok(Outcome::Done), buffers.dst)),
                    None => {
                        assert_eq!(finished.result, Ok(Outcome::Crc(crc(&finished.sources))));
                        lists += 1;
                    }
                }
            }
        }
        device.state().manual = false;
        while channel.pending() > 0 {
            channel.submit();
            ended += channel.completed(&mut out);
        }
        assert!(lists > 500 && ended == sent, "{lists} of {ended} ended, {sent} sent");
        assert!(device.state().lost == 0 && device.state().most <= 3);
    }
}
