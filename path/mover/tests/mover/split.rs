//! One long operation that is split over queues, and between devices and the waiting thread.

use crate::common::device::{PAGE, TestDevice};
use crate::common::{Chance, Watched, movers, on_fault, pieces, policy};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use telpher_mover::{CrcMode, JobError, Mover, OnFault, Opcode, Outcome, Policy, Retry, Route, Split, Via};
use telpher_portal::Portal;

/// From this many bytes on, an operation is split.
const ABOVE: u64 = 64 << 10;

fn split(ways: u32, hybrid: bool) -> Policy {
    Policy { split: Split { above: ABOVE, ways, hybrid }, route: Route::First, ..policy() }
}

/// Separate devices that execute only in calls of `run`.
fn manual<const N: usize>() -> [Arc<TestDevice>; N] {
    std::array::from_fn(|i| {
        let device = Arc::new(TestDevice::with(|info| info.name = format!("wq{i}.0")));
        device.state().manual = true;
        device
    })
}

fn waiting(devices: &[Arc<TestDevice>]) -> Vec<usize> {
    devices.iter().map(|device| device.state().taken.len()).collect()
}

fn over(devices: &[Arc<TestDevice>], policy: Policy) -> Mover {
    movers(&devices.iter().collect::<Vec<_>>(), policy)
}

const LONG: usize = 1 << 20;

#[test]
fn a_long_copy_uses_as_many_queues_as_the_policy_says() {
    for (ways, expected) in [(0, [2, 0, 0]), (1, [2, 0, 0]), (2, [2, 2, 0]), (3, [2, 2, 2]), (9, [2, 2, 2])] {
        let devices = manual::<3>();
        devices.iter().for_each(|device| assert_eq!(device.info().max_transfer, 2 << 20));
        let mover = over(&devices, split(ways, false));
        let job = mover.copy(vec![7_u8; 2 * LONG + LONG], vec![0; 3 * LONG]);
        assert_eq!(waiting(&devices), expected, "{ways} ways");
        devices.iter().for_each(|device| device.state().manual = false);
        let done = job.wait();
        assert_eq!((done.result, done.via), (Ok(Outcome::Done), Via::Device));
        assert!(done.buffers.0 == done.buffers.1);
    }
}

#[test]
fn parts_go_to_other_devices_before_other_queues_of_the_same_one() {
    let devices = ["wq0.0", "wq0.1", "wq1.0"].map(|name| {
        let device = Arc::new(TestDevice::with(|info| info.name = name.into()));
        device.state().manual = true;
        device
    });
    let _job = over(&devices, split(2, false)).copy(vec![7_u8; LONG], vec![0; LONG]);
    assert_eq!(waiting(&devices), [2, 0, 2]);
}

#[test]
fn the_parts_of_a_long_transfer_are_in_flight_together() {
    let device = Arc::new(TestDevice::with(|info| info.max_transfer = 4096));
    device.state().manual = true;
    let mover = crate::common::mover(&device, Policy { split: Split::NONE, ..policy() });
    let job = mover.copy(Chance::new(1).bytes(50_000), vec![0; 50_000]);
    assert_eq!(device.state().taken.len(), 2);
    device.state().manual = false;
    let done = job.wait();
    assert!(done.buffers.0 == done.buffers.1);
    // Cut at pages of the destination, so there may be one more than its length needs.
    assert!((13..=14).contains(&device.state().taken.len()));
}

#[test]
fn parts_meet_at_page_borders_of_the_destination() {
    let devices = manual::<2>();
    let mover = over(&devices, split(2, false));
    let job = mover.fill(vec![0_u8; 1_234_567], 7);
    let taken = devices.iter().flat_map(|device| [device.take_front(), device.take_front()]);
    let borders: Vec<_> = taken.map(|d| (d.dst(), d.dst() + u64::from(d.size()))).collect();
    let begin = borders.iter().map(|(start, _)| *start).min().unwrap();
    for (start, _) in &borders {
        assert!(*start == begin || start.is_multiple_of(PAGE), "{borders:x?}");
        assert!(*start == begin || borders.iter().any(|(_, end)| end == start), "{borders:x?}");
    }
    // A descriptor that was taken away never ends: the buffer stays where it is.
    std::mem::forget(job);
    std::mem::forget(mover);
}

#[test]
fn operations_that_need_an_order_stay_whole() {
    let devices = manual::<2>();
    let mover = over(&devices, split(2, true));
    let bytes = Chance::new(2).bytes(LONG);
    let mut expected = bytes.clone();
    expected.copy_within(0..LONG - 100, 100);
    let overlapping = mover.copy_within(bytes, 0..LONG - 100, 100);
    let checksum = mover.crc(vec![1_u8; LONG], 0, CrcMode::default());
    assert_eq!(waiting(&devices).iter().sum::<usize>(), 2);
    devices.iter().for_each(|device| device.state().manual = false);
    let done = overlapping.wait();
    assert!(done.via == Via::Device && done.buffers.0 == expected);
    assert_eq!(checksum.wait().via, Via::Device);
}

#[test]
fn short_operations_stay_whole() {
    let devices = manual::<2>();
    let mover = over(&devices, split(2, true));
    let _job = mover.copy(vec![1_u8; 60_000], vec![0; 60_000]);
    assert_eq!(waiting(&devices), [1, 0]);
}

#[test]
fn a_split_job_that_is_dropped_keeps_its_buffers_until_the_last_record() {
    let devices = manual::<2>();
    let mover = over(&devices, split(2, false));
    let (dst, dropped) = Watched::new(vec![0; LONG]);
    drop(mover.fill(dst, 5));
    assert_eq!((waiting(&devices), mover.orphaned()), (vec![2, 2], 4));
    for (device, runs) in [(0, 2), (1, 1)] {
        devices[device].run(runs);
        (0..200).for_each(|_| mover.drive());
        assert!(!dropped.load(Ordering::SeqCst));
    }
    devices[1].run(1);
    (0..200).for_each(|_| mover.drive());
    assert!(dropped.load(Ordering::SeqCst) && mover.orphaned() == 0);
    // Parts that were not submitted never are.
    assert_eq!(waiting(&devices), [2, 2]);
}

#[test]
fn a_split_job_past_its_deadline_is_quarantined_or_returned() {
    let devices = manual::<2>();
    let mover = over(&devices, split(2, false));
    let job = mover.fill(vec![0_u8; LONG], 5).deadline(Duration::from_millis(1));
    assert!(job.wait().is_err_and(|expired| expired.buffers.is_none()));
    assert_eq!(mover.quarantined(), 4);
    devices.iter().for_each(|device| assert_eq!(device.run(9), 2));
    (0..200).for_each(|_| mover.drive());
    assert_eq!(mover.quarantined(), 0);

    devices.iter().for_each(|device| device.state().retries = u64::MAX);
    let patient = Retry { attempts: u32::MAX, pause: Duration::ZERO };
    let mover = over(&devices, Policy { retry: patient, ..split(2, false) });
    let job = mover.fill(vec![0_u8; LONG], 5).deadline(Duration::from_millis(1));
    assert!(job.wait().is_err_and(|expired| expired.buffers.is_some_and(|(dst,)| dst == vec![0; LONG])));
}

#[test]
fn a_full_queue_costs_the_retries_once_and_not_for_each_part() {
    let devices = manual::<2>();
    devices.iter().for_each(|device| device.state().retries = u64::MAX);
    let retry = Retry { attempts: 10, pause: Duration::ZERO };
    let mover = over(&devices, Policy { retry, ..split(2, false) });
    let done = mover.copy(vec![7_u8; 8 * LONG], vec![0; 8 * LONG]).wait();
    assert!(done.via == Via::Cpu && done.buffers.0 == done.buffers.1);
    let offers: u64 = devices.iter().map(|device| u64::MAX - device.state().retries).sum();
    // Eleven offers to each queue for the first part, and one failed offer for each other position at each step
    // meanwhile.
    assert!((22..200).contains(&offers), "{offers}");
}

#[test]
fn a_failed_part_ends_the_whole_with_its_address_and_the_bytes_done() {
    let devices = manual::<2>();
    let mover = over(&devices, Policy { on_fault: OnFault::Block, ..split(2, false) });
    let dst = vec![0_u8; LONG];
    let first = dst.as_ptr() as u64;
    let bad = (first + 300_000).next_multiple_of(PAGE);
    devices.iter().for_each(|device| {
        device.refuse(bad);
        device.state().manual = false;
    });
    let (result, _, dst) = mover.copy(vec![9; LONG], dst).wait().into_parts();
    let Err(JobError::Fault { address, write: true, done }) = result else { panic!("{result:?}") };
    assert_eq!(address, bad);
    // Exactly the copied bytes, and nothing is in flight any more.
    assert_eq!(done, dst.iter().filter(|&&byte| byte == 9).count() as u64);
    assert_eq!((mover.orphaned(), mover.quarantined()), (0, 0));
}

#[test]
fn the_first_difference_is_found_whichever_part_ends_first() {
    let mut chance = Chance::new(7);
    for differences in [vec![], vec![0], vec![LONG - 1], vec![700_000, 300_000], vec![500_000, 500_001, 10]] {
        let devices = manual::<2>();
        let mover = over(&devices, split(2, true));
        let a = chance.bytes(LONG);
        let mut b = a.clone();
        differences.iter().for_each(|&at| b[at] ^= 1);
        let expected = differences.iter().min().map_or(Outcome::Equal, |&at| Outcome::Different { at: at as u64 });
        let job = mover.compare(a, b);
        // The second device first.
        devices[1].run(9);
        devices.iter().for_each(|device| device.state().manual = false);
        assert_eq!(job.wait().result, Ok(expected));
        let pattern = mover.fill(vec![0_u8; LONG], 0x0807_0605_0403_0201).wait();
        let (mut bytes,) = pattern.buffers;
        differences.iter().for_each(|&at| bytes[at] ^= 1);
        assert_eq!(mover.compare_pattern(bytes, 0x0807_0605_0403_0201).wait().result, Ok(expected));
    }
}

#[test]
fn a_waiting_thread_does_parts_and_a_polling_thread_does_not() {
    let [device] = manual::<1>();
    let mover = crate::common::mover(&device, split(1, true));
    let mut job = mover.copy(vec![7_u8; 4 * LONG], vec![0; 4 * LONG]);
    for _ in 0..10 {
        assert!(!job.is_done());
    }
    assert_eq!(device.state().taken.len(), 2, "only the parts of the device were begun");
    // The waiting thread does the parts that are not handed out while the device stands still.
    let late = job.deadline(Duration::from_millis(50)).wait();
    assert!(late.is_err());
    device.run(9);
    assert_eq!(device.state().taken.len(), 2, "nothing was left for the device");

    device.state().manual = false;
    let (src, mut dst) = (Chance::new(3).bytes(4 * LONG), vec![0; 4 * LONG]);
    let done = mover.scope(|scope| scope.copy(&src, &mut dst).wait());
    assert_eq!((done.result, done.via), (Ok(Outcome::Done), Via::Both));
    assert!(src == dst);
    let mut dst = vec![0; 4 * LONG];
    assert_eq!(mover.copy_slices(&src, &mut dst), Ok(Outcome::Done));
    assert!(src == dst);
}

/// 64 KiB are two parts. A device keeps its queue filled if the thread only polls; a thread that waits gets the second.
#[test]
fn a_device_gets_the_last_part_at_once_if_the_thread_only_polls() {
    let short = usize::try_from(ABOVE).unwrap();
    for polls in [true, false] {
        let [device] = manual::<1>();
        let mover = crate::common::mover(&device, split(1, true));
        let mut job = mover.copy(vec![7_u8; short], vec![0; short]);
        assert_eq!(device.state().taken.len(), 1, "the thread may wait");
        if polls {
            assert!(!job.is_done());
        } else {
            assert!(!job.wait_for(Duration::from_millis(1)));
        }
        assert_eq!(device.state().taken.len(), if polls { 2 } else { 1 });
        device.state().manual = false;
        let done = job.wait();
        assert_eq!((done.result, done.via), (Ok(Outcome::Done), if polls { Via::Device } else { Via::Both }));
        assert!(done.buffers.0 == done.buffers.1);
    }
}

#[test]
fn a_long_member_of_a_batch_is_split_like_a_job() {
    let devices = manual::<2>();
    let mover = over(&devices, split(2, true));
    let source = Chance::new(4).bytes(LONG);
    let mut batch = mover.batch();
    let first = [batch.copy(vec![1_u8; 100], vec![0; 100]), batch.copy(vec![2_u8; 100], vec![0; 100])];
    let long = batch.copy(source.clone(), vec![0; LONG]);
    let last = batch.fence().fill(vec![0_u8; 100], 3);
    let mut job = batch.submit();
    assert_eq!(waiting(&devices), [1, 0], "a list of two");
    assert_eq!(devices[0].run(9), 1);
    // The list's records are read, and then the long member is next.
    (0..3).for_each(|_| assert!(!job.is_done()));
    assert_eq!(waiting(&devices), [1 + 2, 2]);
    // A polling thread does no part of it, a waiting thread does. Until the last record nothing behind the fence
    // begins.
    assert!(!job.wait_for(Duration::from_millis(50)));
    assert_eq!(waiting(&devices), [1 + 2, 2]);
    devices.iter().for_each(|device| device.state().manual = false);
    let mut done = job.wait();
    assert!(first.map(|key| done.take(key).result).iter().all(|result| *result == Ok(Outcome::Done)));
    let (result, via, (src, dst)) = {
        let done = done.take(long);
        (done.result, done.via, done.buffers)
    };
    assert_eq!((result, via), (Ok(Outcome::Done), Via::Both));
    assert!(src == source && dst == source);
    assert!(done.take(last).result.is_ok());
}

#[test]
fn a_batch_dropped_in_a_long_member_keeps_all_buffers_until_the_last_record() {
    let devices = manual::<2>();
    let mover = over(&devices, split(2, false));
    let mut batch = mover.batch();
    let (dst, dropped) = Watched::new(vec![0; LONG]);
    let (other, other_dropped) = Watched::new(vec![0; 100]);
    let _ = (batch.fill(dst, 5), batch.fill(other, 6));
    drop(batch.submit());
    assert_eq!((waiting(&devices), mover.orphaned()), (vec![2, 2], 4));
    let is_dropped = || [&dropped, &other_dropped].map(|dropped| dropped.load(Ordering::SeqCst));
    devices[0].run(2);
    devices[1].run(1);
    (0..200).for_each(|_| mover.drive());
    assert_eq!(is_dropped(), [false; 2]);
    devices[1].run(1);
    (0..200).for_each(|_| mover.drive());
    assert_eq!((is_dropped(), mover.orphaned()), ([true; 2], 0));
    let mut batch = mover.batch();
    let _ = batch.fill(vec![0_u8; LONG], 5);
    let expired = batch.submit().deadline(Duration::from_millis(1)).wait();
    assert!(expired.is_err_and(|expired| expired.buffers.is_none()));
    assert_eq!(mover.quarantined(), 4);
    devices.iter().for_each(|device| assert_eq!(device.run(9), 2));
}

#[test]
fn members_stay_in_their_list_if_they_are_not_split() {
    for (ways, hybrid) in [(1, false), (0, false)] {
        let devices = manual::<2>();
        let mover = over(&devices, split(ways, hybrid));
        let mut batch = mover.batch();
        let _keys = [(); 3].map(|()| batch.fill(vec![0_u8; LONG], 5));
        let job = batch.submit();
        assert_eq!(waiting(&devices), [1, 0], "one list");
        devices.iter().for_each(|device| device.state().manual = false);
        assert!(job.wait().results().all(|(_, result)| *result == Ok(Outcome::Done)));
    }
}

#[derive(Debug, Clone)]
struct World {
    seed: u64,
    len: usize,
    ways: u32,
    hybrid: bool,
    max_transfer: [u64; 3],
    size: u32,
    retries: [u64; 3],
    faults: Vec<(u8, u32)>,
    on_fault: OnFault,
    backward: bool,
}

fn world() -> impl Strategy<Value = World> {
    let limits = ([3000_u64..90_000, 3000_u64..90_000, 3000_u64..90_000], 1_u32..5, [0_u64..200, 0_u64..9, 0_u64..2]);
    let faults = proptest::collection::vec((any::<u8>(), 1_u32..3), 0..6);
    let switches = (0_u32..5, any::<bool>(), any::<bool>());
    (any::<u64>(), 0_usize..200_000, limits, faults, on_fault(), switches).prop_map(
        |(seed, len, (max_transfer, size, retries), faults, on_fault, (ways, hybrid, backward))| World {
            seed,
            len,
            ways,
            hybrid,
            max_transfer,
            size,
            retries,
            faults,
            on_fault,
            backward,
        },
    )
}

impl World {
    fn devices(&self) -> Vec<Arc<TestDevice>> {
        (0..3)
            .map(|i| {
                let device = Arc::new(TestDevice::with(|info| {
                    info.name = format!("wq{i}.0");
                    info.max_transfer = self.max_transfer[i];
                    info.size = self.size;
                }));
                device.state().retries = self.retries[i];
                device.state().backward = self.backward;
                device
            })
            .collect()
    }

    fn mover(&self) -> (Vec<Arc<TestDevice>>, Mover) {
        let devices = self.devices();
        let policy = Policy {
            on_fault: self.on_fault,
            retry: Retry { attempts: 20, ..Retry::default() },
            split: Split { above: 40_000, ways: self.ways, hybrid: self.hybrid },
            ..policy()
        };
        let mover = over(&devices, policy);
        (devices, mover)
    }

    /// Makes some pages of these buffers fault some times, on every device.
    fn disturb(&self, devices: &[Arc<TestDevice>], buffers: &[&[u8]]) {
        for &(page, times) in &self.faults {
            let buffer = buffers[usize::from(page) % buffers.len()];
            let at = buffer.as_ptr() as u64 + u64::from(page / 4) * PAGE;
            devices.iter().for_each(|device| device.fault(at, times));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn split_operations_have_the_naive_bytes(world in world()) {
        let (devices, mover) = world.mover();
        let source = Chance::new(world.seed).bytes(world.len);
        let (src, dst) = (source.clone(), vec![0; world.len]);
        world.disturb(&devices, &[&src, &dst]);
        let (result, src, mut dst) = mover.copy(src, dst).wait().into_parts();
        prop_assert_eq!(result, Ok(Outcome::Done));
        prop_assert!(src == source && dst == source);

        // Some bytes differ, or none.
        let mut chance = Chance::new(world.seed ^ 1);
        for _ in 0..chance.below(3) {
            if world.len > 0 {
                let at = usize::try_from(chance.below(world.len as u64)).unwrap();
                dst[at] ^= 0x55;
            }
        }
        let expected = src.iter().zip(&dst).position(|(a, b)| a != b);
        let expected = expected.map_or(Outcome::Equal, |at| Outcome::Different { at: at as u64 });
        world.disturb(&devices, &[&src, &dst]);
        let (result, src, dst) = mover.compare(src, dst).wait().into_parts();
        prop_assert_eq!(result, Ok(expected));

        // A checksum goes on where the part before ended, however long it is.
        world.disturb(&devices, &[&src, &dst]);
        let (result, src, dst) = mover.copy_crc(src, dst, 3, CrcMode::default()).wait().into_parts();
        prop_assert_eq!(result, Ok(Outcome::Crc(crate::common::naive::crc32c(3, &source, CrcMode::default()))));
        prop_assert!(src == source && dst == source);

        let word = world.seed;
        world.disturb(&devices, &[&dst]);
        let (result, dst) = mover.fill(dst, word).wait().into_parts();
        prop_assert_eq!(result, Ok(Outcome::Done));
        prop_assert!(dst == crate::common::naive::pattern(&word.to_le_bytes(), world.len));

        // A move within one buffer, overlapping or not.
        if world.len > 0 {
            let len = world.len as u64;
            let n = usize::try_from(chance.below(len) + 1).unwrap();
            let room = (world.len - n + 1) as u64;
            let (from, to) = (chance.below(room), chance.below(room));
            let (from, to) = (usize::try_from(from).unwrap(), usize::try_from(to).unwrap());
            let whole = Chance::new(world.seed ^ 2).bytes(world.len);
            let mut expected = whole.clone();
            expected.copy_within(from..from + n, to);
            world.disturb(&devices, &[&whole]);
            let (result, moved) = mover.copy_within(whole, from..from + n, to).wait().into_parts();
            prop_assert_eq!(result, Ok(Outcome::Done));
            prop_assert!(moved == expected);
        }
        prop_assert_eq!(devices.iter().map(|device| device.state().lost).sum::<usize>(), 0);
        prop_assert_eq!((mover.orphaned(), mover.quarantined()), (0, 0));
        prop_assert!(devices.iter().all(|device| !device.state().taken.contains(&Opcode::Batch)));
    }

    #[test]
    fn members_of_any_length_and_position_have_the_naive_bytes(world in world(), fences in any::<u16>()) {
        let (devices, mover) = world.mover();
        let mut chance = Chance::new(world.seed);
        let mut below = |n: u64| usize::try_from(chance.below(n)).unwrap();
        // A few members are much longer than the others, and each begins where the one before ends.
        let lengths: Vec<usize> = (0..8).map(|_| if below(4) == 0 { below(100_000) } else { below(3000) }).collect();
        let source = Chance::new(world.seed ^ 1).bytes(lengths.iter().sum());
        let (src, dst) = (pieces(source.clone(), &lengths), pieces(vec![0; source.len()], &lengths));
        world.disturb(&devices, &[&*src[0], &*dst[0], &*src[4], &*dst[4]]);
        let mut batch = mover.batch();
        let mut copies = Vec::new();
        for (i, (src, dst)) in src.into_iter().zip(dst).enumerate() {
            if fences >> i & 1 == 1 {
                batch.fence();
            }
            copies.push(batch.copy(&*src, dst));
        }
        let (whole, n) = (Chance::new(world.seed ^ 2).bytes(world.len), world.len / 2);
        let (from, to) = (below(n as u64 + 1), below(n as u64 + 1));
        let mut moved = whole.clone();
        moved.copy_within(from..from + n, to);
        let within = batch.copy_within(whole, from..from + n, to);
        let checksum = batch.crc(source.clone(), 3, CrcMode::default());
        let mut done = batch.submit().wait();
        let mut at = 0;
        for (key, len) in copies.into_iter().zip(&lengths) {
            let (result, src, dst) = done.take(key).into_parts();
            prop_assert_eq!(result, Ok(Outcome::Done));
            prop_assert!(src == &source[at..at + len] && dst == &source[at..at + len]);
            at += len;
        }
        let within = done.take(within);
        prop_assert!(within.result.is_ok() && within.buffers.0 == moved);
        let expected = Outcome::Crc(crate::common::naive::crc32c(3, &source, CrcMode::default()));
        prop_assert_eq!(done.take(checksum).result, Ok(expected));
        prop_assert_eq!(devices.iter().map(|device| device.state().lost).sum::<usize>(), 0);
        prop_assert_eq!((mover.orphaned(), mover.quarantined()), (0, 0));
    }
}
