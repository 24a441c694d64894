//! A queue of copies over queues that are full, fail, are slow, halt or never answer: each copy ends once, in order,
//! done or undone, and done copies have their bytes.
#![allow(unsafe_code, reason = "copies by address")]
#![allow(clippy::cast_possible_truncation, reason = "cuts small numbers")]

use crate::common::device::TestDevice;
use crate::common::{Chance, clock};
use std::sync::Arc;
use std::time::Duration;
use telpher_device::{ModelDevice, ModelOptions, Preset, Runner};
use telpher_mover::{ChannelError, Copies, CopiesPolicy, CopyResult, ManualClock, Opcode};
use telpher_portal::{Portal, QueueMode};

const LEN: usize = 100;

/// A queue of copies and its memory: range `i` of the memory belongs to the `i`th copy.
struct TestCopies {
    /// First field, so that it is dropped while the memory still exists.
    copies: Copies,
    clock: Arc<ManualClock>,
    src: Vec<u8>,
    dst: Vec<u8>,
    /// Number of copies put.
    put: usize,
    /// The number of the copy in each slot.
    at: Vec<usize>,
    /// The copies that have ended, in order.
    ended: Vec<CopyResult>,
}

impl TestCopies {
    fn new(portal: Arc<dyn Portal>, capacity: u32, policy: CopiesPolicy) -> TestCopies {
        let clock = clock();
        let copies = Copies::with_clock(portal, capacity, policy, clock.clone()).unwrap();
        let src = Chance::new(u64::from(capacity)).bytes(4000 * LEN);
        let at = vec![usize::MAX; copies.slots()];
        TestCopies { copies, clock, dst: vec![0; src.len()], src, put: 0, at, ended: Vec::new() }
    }

    fn over(device: &Arc<TestDevice>, capacity: u32) -> TestCopies {
        TestCopies::new(Arc::clone(device) as Arc<dyn Portal>, capacity, CopiesPolicy::default())
    }

    /// Puts `count` copies, or as many as there is room for.
    fn put(&mut self, count: usize) -> usize {
        for done in 0..count {
            let offset = self.put * LEN;
            let (src, dst) = (self.src[offset..].as_ptr() as u64, self.dst[offset..].as_mut_ptr() as u64);
            // SAFETY: this copy's own ranges of vectors that are not resized and not read until the copy has ended.
            let Some(slot) = (unsafe { self.copies.put(src, dst, LEN as u32) }) else { return done };
            assert_eq!(std::mem::replace(&mut self.at[slot], self.put), usize::MAX, "the slot is free");
            self.put += 1;
        }
        count
    }

    fn completed(&mut self) -> usize {
        let (at, ended) = (&mut self.at, &mut self.ended);
        let before = ended.len();
        let count = self.copies.completed(|slot, how| {
            assert_eq!(
                std::mem::replace(&mut at[slot], usize::MAX),
                ended.len(),
                "in the order in which they were put"
            );
            ended.push(how);
        });
        assert_eq!((count, self.copies.pending()), (self.ended.len() - before, self.put - self.ended.len()));
        for copy in before..self.ended.len() {
            let bytes = copy * LEN..(copy + 1) * LEN;
            match self.ended[copy] {
                CopyResult::Done => assert!(self.dst[bytes.clone()] == self.src[bytes], "copy {copy}"),
                // The caller does it: no device writes it any more.
                CopyResult::Undone => self.dst[bytes].fill(0xee),
            }
        }
        count
    }

    fn complete_all(&mut self) {
        self.complete_with(|| ());
    }

    /// Calls `work` until all copies have ended.
    fn complete_with(&mut self, mut work: impl FnMut()) {
        for _ in 0..1_000_000 {
            if self.copies.pending() == 0 {
                return;
            }
            work();
            self.completed();
            self.clock.advance(Duration::from_micros(1));
        }
        panic!("{} of {} have not ended", self.copies.pending(), self.put);
    }

    /// Checks that memory of undone copies was not written.
    fn check_undone_is_untouched(&self) {
        for (copy, _) in self.ended.iter().enumerate().filter(|(_, how)| **how == CopyResult::Undone) {
            assert!(self.dst[copy * LEN..(copy + 1) * LEN].iter().all(|byte| *byte == 0xee), "copy {copy}");
        }
    }

    fn undone(&self) -> usize {
        self.ended.iter().filter(|how| **how == CopyResult::Undone).count()
    }
}

fn manual(mode: QueueMode, size: u32) -> Arc<TestDevice> {
    let device = Arc::new(TestDevice::new(mode, size));
    device.state().manual = true;
    device
}

#[test]
fn a_burst_is_one_batch_with_one_record_for_all() {
    let device = manual(QueueMode::Shared, 8);
    let mut copies = TestCopies::over(&device, 64);
    assert_eq!((copies.put(20), copies.copies.submit(), copies.completed()), (20, 20, 0));
    assert_eq!((copies.put(1), copies.copies.submit()), (1, 1));
    assert_eq!(device.state().taken, [Opcode::Batch, Opcode::MemoryMove]);
    device.run(1);
    assert_eq!((copies.completed(), copies.copies.pending()), (20, 1));
    device.run(1);
    assert_eq!((copies.completed(), copies.undone()), (1, 0));
}

#[test]
fn every_model_and_runner_copies() {
    for preset in Preset::ALL {
        for runner in [Runner::Inline, Runner::Threaded] {
            let device = ModelDevice::start(ModelOptions::of(preset).with_runner(runner)).unwrap();
            for queue in device.enabled_queues() {
                let portal = device.portal(&format!("wq0.{queue}")).unwrap();
                let mut copies = TestCopies::new(portal, 50, CopiesPolicy::default());
                let mut chance = Chance::new(queue.into());
                while copies.put < 500 {
                    copies.put(chance.below(40) as usize);
                    copies.copies.submit();
                    copies.completed();
                }
                let started = std::time::Instant::now();
                while copies.copies.pending() > 0 {
                    copies.completed();
                    // Only a hang takes this long.
                    assert!(started.elapsed().as_secs() < 60, "{preset:?} {runner:?}");
                    std::thread::yield_now();
                }
                assert_eq!(copies.undone(), 0);
            }
        }
    }
}

#[test]
fn slots_run_out_and_become_free_again() {
    let device = manual(QueueMode::Shared, 8);
    let mut copies = TestCopies::over(&device, 5);
    for round in 1..100 {
        assert_eq!((copies.put(9), copies.copies.submit()), (5, 5));
        device.run(9);
        assert_eq!((copies.completed(), copies.ended.len()), (5, 5 * round));
    }
    assert_eq!(copies.undone(), 0);
    for asked in [0, (1 << 23) + 1] {
        let refused = Copies::new(manual(QueueMode::Shared, 1), asked, CopiesPolicy::default()).unwrap_err();
        assert_eq!(refused, ChannelError::Capacity { asked, max: 1 << 23 });
    }
}

#[test]
fn refused_copies_are_submitted_later_in_order() {
    let device = manual(QueueMode::Shared, 8);
    let mut copies = TestCopies::over(&device, 64);
    device.state().retries = 3;
    assert_eq!((copies.put(10), copies.copies.submit()), (10, 0));
    assert_eq!((copies.completed(), device.state().taken.len()), (0, 0));
    copies.put(10);
    assert_eq!((copies.completed(), copies.completed()), (0, 0));
    assert_eq!(device.state().taken, [Opcode::Batch], "submitted by `completed`, both bursts together");
    device.run(1);
    assert_eq!((copies.completed(), copies.undone()), (20, 0));
}

#[test]
fn a_dedicated_queue_is_never_overfilled() {
    let device = manual(QueueMode::Dedicated, 3);
    let mut copies = TestCopies::over(&device, 64);
    for count in 1..9 {
        copies.put(count);
        copies.copies.submit();
    }
    copies.complete_with(|| _ = device.run(1));
    let state = device.state();
    assert_eq!((state.lost, state.most, copies.undone()), (0, 3, 0));
}

#[test]
fn a_queue_without_batches_gets_copies_one_by_one() {
    let device = Arc::new(TestDevice::with(|info| (info.max_batch, info.size) = (1, 4)));
    device.state().manual = true;
    let mut copies = TestCopies::over(&device, 16);
    assert_eq!((copies.put(10), copies.copies.submit()), (10, 4));
    copies.complete_with(|| _ = device.run(3));
    assert_eq!((copies.undone(), device.state().taken.clone()), (0, vec![Opcode::MemoryMove; 10]));
}

#[test]
fn a_fault_leaves_its_whole_burst_undone() {
    for count in [1, 10] {
        let device = manual(QueueMode::Shared, 8);
        let mut copies = TestCopies::over(&device, 64);
        copies.put(count);
        let middle = copies.dst[count / 2 * LEN..].as_ptr() as u64;
        device.fault_at(middle + 50, 1);
        copies.copies.submit();
        device.run(1);
        assert_eq!((copies.completed(), copies.undone()), (count, count));
        // The slots can be used again.
        assert_eq!((copies.put(64), copies.copies.submit()), (64, 64));
        device.run(9);
        assert_eq!((copies.completed(), copies.undone()), (64, count));
        copies.check_undone_is_untouched();
    }
}

#[test]
fn a_queue_that_does_not_support_copies_leaves_them_undone() {
    let device = Arc::new(TestDevice::with(|info| info.operations = telpher_abi::registers::OpCap::default()));
    let mut copies = TestCopies::over(&device, 8);
    copies.put(5);
    copies.copies.submit();
    copies.complete_all();
    assert_eq!(copies.undone(), 5);
}

#[test]
fn copies_of_a_stopped_queue_end_undone_and_it_gets_no_more() {
    for mode in [QueueMode::Shared, QueueMode::Dedicated] {
        let device = manual(mode, 4);
        let mut copies = TestCopies::over(&device, 64);
        for _ in 0..4 {
            copies.put(8);
            copies.copies.submit();
        }
        copies.put(3);
        device.run(2);
        // Their records are written, although they were not read yet: they count.
        device.stop("device dsa0 is halted");
        copies.complete_all();
        assert_eq!((copies.ended.len(), copies.undone()), (35, 19), "{mode:?}");
        let taken = device.state().taken.len();
        copies.put(2);
        assert_eq!((copies.copies.submit(), copies.completed(), copies.undone()), (0, 2, 21));
        let state = device.state();
        assert_eq!((state.taken.len(), state.asked), (taken, 1), "the queue gets no further offer or health check");
        drop(state);
        copies.check_undone_is_untouched();
    }
}

#[test]
fn a_queue_that_stops_while_empty_does_not_block_later_copies() {
    let device = manual(QueueMode::Shared, 8);
    let mut copies = TestCopies::over(&device, 64);
    device.stop("device dsa0 is halted");
    copies.put(8);
    assert_eq!(copies.copies.submit(), 0);
    copies.complete_all();
    assert_eq!((copies.undone(), device.state().asked), (8, 1));
}

#[test]
fn a_queue_that_stops_in_the_middle_of_a_burst_leaves_it_undone() {
    let device = manual(QueueMode::Shared, 8);
    let mut copies = TestCopies::over(&device, 64);
    copies.put(8);
    copies.copies.submit();
    device.lose_after_first_member();
    device.stop("device dsa0 is halted");
    copies.complete_all();
    assert_eq!(copies.undone(), 8);
}

#[test]
fn a_silent_queue_is_asked_and_given_up_at_the_limit() {
    let device = manual(QueueMode::Shared, 8);
    device.state().retirable = true;
    let policy = CopiesPolicy { limit: Duration::from_millis(50), ..CopiesPolicy::default() };
    let mut copies = TestCopies::new(Arc::clone(&device) as Arc<dyn Portal>, 8, policy);
    copies.put(4);
    copies.copies.submit();
    for _ in 0..4000 {
        copies.clock.advance(Duration::from_micros(10));
        assert_eq!(copies.completed(), 0);
    }
    let asked = device.state().asked;
    assert!(asked > 0 && device.state().stopped.is_none(), "40 ms are not 50");
    copies.complete_all();
    assert_eq!((copies.undone(), device.state().stopped.clone()), (4, Some("it was given up".into())));
    copies.check_undone_is_untouched();
}

#[test]
fn a_silent_queue_that_cannot_be_given_up_keeps_its_copies() {
    let device = manual(QueueMode::Shared, 8);
    let mut copies = TestCopies::over(&device, 8);
    copies.put(4);
    copies.copies.submit();
    for _ in 0..10_000 {
        copies.clock.advance(Duration::from_millis(1));
        assert_eq!(copies.completed(), 0);
    }
    // Late, but it completes.
    device.run(1);
    assert_eq!((copies.completed(), copies.undone()), (4, 0));
}

#[test]
fn a_drop_waits_for_copies_in_flight_and_then_leaks() {
    // Works when it is driven.
    let device = Arc::new(TestDevice::new(QueueMode::Shared, 8));
    let mut copies = TestCopies::over(&device, 8);
    device.state().halted = true;
    copies.put(4);
    copies.copies.submit();
    device.state().halted = false;
    drop(copies.copies);
    assert_eq!(device.run(1), 0, "the drop has driven the device");
    assert!(copies.dst[..4 * LEN] == copies.src[..4 * LEN]);

    let device = manual(QueueMode::Shared, 8);
    let policy = CopiesPolicy { linger: Duration::from_millis(1), ..CopiesPolicy::default() };
    let mut copies = TestCopies::new(Arc::clone(&device) as Arc<dyn Portal>, 8, policy);
    copies.put(4);
    copies.copies.submit();
    drop(copies.copies);
    let other = vec![0xab_u8; 8 * 64];
    // List and record are leaked: the device reads and writes them late without harm.
    assert_eq!(device.run(1), 1);
    assert!(copies.dst[..4 * LEN] == copies.src[..4 * LEN] && other.iter().all(|byte| *byte == 0xab));
}

#[test]
fn each_copy_ends_once_and_in_order_under_random_faults() {
    for seed in 0..300 {
        let mut chance = Chance::new(seed);
        let mode = if chance.below(2) == 0 { QueueMode::Shared } else { QueueMode::Dedicated };
        let device = Arc::new(TestDevice::with(|info| {
            info.mode = mode;
            info.size = 1 + (seed % 4) as u32;
            info.max_batch = [1, 2, 7, 32][(seed / 4 % 4) as usize];
        }));
        device.state().manual = true;
        let mut copies = TestCopies::over(&device, 1 + chance.below(40) as u32);
        for _ in 0..60 {
            match chance.below(12) {
                0 => device.state().retries = chance.below(5),
                1 if chance.below(10) == 0 => device.stop("wq0.0 is disabled"),
                2..=4 => _ = device.run(1 + chance.below(3) as usize),
                5 => device.fault_at(copies.dst.as_ptr() as u64 + chance.below(copies.put as u64 * LEN as u64 + 1), 1),
                6 | 7 => _ = copies.completed(),
                8 => _ = copies.copies.submit(),
                _ => _ = copies.put(chance.below(12) as usize),
            }
        }
        device.state().manual = false;
        copies.complete_all();
        copies.check_undone_is_untouched();
        assert!(device.state().stopped.is_some() || device.state().lost == 0, "seed {seed}");
    }
}
