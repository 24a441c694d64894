//! A queue of copies over queues that are full, fail, dawdle, halt or never answer: each copy ends once, in order, done or undone, and what
//! is done has its bytes.
#![cfg(not(loom))]
#![allow(unsafe_code, reason = "copies by address")]
#![allow(clippy::cast_possible_truncation, reason = "cuts small numbers")]

mod common;

use common::device::TestDevice;
use common::{Chance, clock};
use std::sync::Arc;
use std::time::Duration;
use telpher_device::{ModelDevice, ModelOptions, Preset, Runner};
use telpher_mover::{ChannelError, Copies, CopiesPolicy, Ended, ManualClock, Opcode};
use telpher_portal::{Portal, QueueMode};

const LEN: usize = 100;

/// A queue of copies and its memory: place `i` of the memory is the `i`th copy's.
struct Desk {
    /// First: while it goes, the memory is there.
    copies: Copies,
    clock: Arc<ManualClock>,
    src: Vec<u8>,
    dst: Vec<u8>,
    /// Copies put, by their places, and their numbers.
    put: usize,
    at: Vec<usize>,
    /// What ended, in its order.
    ended: Vec<Ended>,
}

impl Desk {
    fn new(portal: Arc<dyn Portal>, capacity: u32, policy: CopiesPolicy) -> Desk {
        let clock = clock();
        let copies = Copies::with_clock(portal, capacity, policy, clock.clone()).unwrap();
        let src = Chance::new(u64::from(capacity)).bytes(4000 * LEN);
        let at = vec![usize::MAX; copies.slots()];
        Desk { copies, clock, dst: vec![0; src.len()], src, put: 0, at, ended: Vec::new() }
    }

    fn over(device: &Arc<TestDevice>, capacity: u32) -> Desk {
        Desk::new(Arc::clone(device) as Arc<dyn Portal>, capacity, CopiesPolicy::default())
    }

    /// Puts so many, or as many as there is room for.
    fn put(&mut self, count: usize) -> usize {
        for done in 0..count {
            let offset = self.put * LEN;
            let (src, dst) = (self.src[offset..].as_ptr() as u64, self.dst[offset..].as_mut_ptr() as u64);
            // SAFETY: this copy's own stretches of vectors that do not change and that nobody looks at until it has ended.
            let Some(place) = (unsafe { self.copies.put(src, dst, LEN as u32) }) else { return done };
            assert_eq!(std::mem::replace(&mut self.at[place], self.put), usize::MAX, "a place of its own");
            self.put += 1;
        }
        count
    }

    fn landed(&mut self) -> usize {
        let (at, ended) = (&mut self.at, &mut self.ended);
        let before = ended.len();
        let count = self.copies.completed(|place, how| {
            assert_eq!(
                std::mem::replace(&mut at[place], usize::MAX),
                ended.len(),
                "in the order in which they were put"
            );
            ended.push(how);
        });
        assert_eq!((count, self.copies.pending()), (self.ended.len() - before, self.put - self.ended.len()));
        for copy in before..self.ended.len() {
            let bytes = copy * LEN..(copy + 1) * LEN;
            match self.ended[copy] {
                Ended::Done => assert!(self.dst[bytes.clone()] == self.src[bytes], "copy {copy}"),
                // The caller's: nobody else writes it any more.
                Ended::Undone => self.dst[bytes].fill(0xee),
            }
        }
        count
    }

    fn land_all(&mut self) {
        self.land_by(|| ());
    }

    /// Until all have ended, with a device that works so.
    fn land_by(&mut self, mut work: impl FnMut()) {
        for _ in 0..1_000_000 {
            if self.copies.pending() == 0 {
                return;
            }
            work();
            self.landed();
            self.clock.advance(Duration::from_micros(1));
        }
        panic!("{} of {} have not ended", self.copies.pending(), self.put);
    }

    /// What was undone must stay the caller's.
    fn undone_is_untouched(&self) {
        for (copy, _) in self.ended.iter().enumerate().filter(|(_, how)| **how == Ended::Undone) {
            assert!(self.dst[copy * LEN..(copy + 1) * LEN].iter().all(|byte| *byte == 0xee), "copy {copy}");
        }
    }

    fn undone(&self) -> usize {
        self.ended.iter().filter(|how| **how == Ended::Undone).count()
    }
}

fn manual(mode: QueueMode, size: u32) -> Arc<TestDevice> {
    let device = Arc::new(TestDevice::new(mode, size));
    device.state().manual = true;
    device
}

#[test]
fn a_burst_is_one_batch_and_its_one_record_tells_of_all() {
    let device = manual(QueueMode::Shared, 8);
    let mut desk = Desk::over(&device, 64);
    assert_eq!((desk.put(20), desk.copies.submit(), desk.landed()), (20, 20, 0));
    assert_eq!((desk.put(1), desk.copies.submit()), (1, 1));
    assert_eq!(device.state().taken, [Opcode::Batch, Opcode::MemoryMove]);
    device.run(1);
    assert_eq!((desk.landed(), desk.copies.pending()), (20, 1));
    device.run(1);
    assert_eq!((desk.landed(), desk.undone()), (1, 0));
}

#[test]
fn every_model_and_runner_copies() {
    for preset in Preset::ALL {
        for runner in [Runner::Inline, Runner::Threaded] {
            let device = ModelDevice::start(ModelOptions::of(preset).with_runner(runner)).unwrap();
            for queue in device.enabled_queues() {
                let portal = device.portal(&format!("wq0.{queue}")).unwrap();
                let mut desk = Desk::new(portal, 50, CopiesPolicy::default());
                let mut chance = Chance::new(queue.into());
                while desk.put < 500 {
                    desk.put(chance.below(40) as usize);
                    desk.copies.submit();
                    desk.landed();
                }
                let begun = std::time::Instant::now();
                while desk.copies.pending() > 0 {
                    desk.landed();
                    // Nothing but a hang takes as long.
                    assert!(begun.elapsed().as_secs() < 60, "{preset:?} {runner:?}");
                    std::thread::yield_now();
                }
                assert_eq!(desk.undone(), 0);
            }
        }
    }
}

#[test]
fn places_run_out_and_come_back() {
    let device = manual(QueueMode::Shared, 8);
    let mut desk = Desk::over(&device, 5);
    for round in 1..100 {
        assert_eq!((desk.put(9), desk.copies.submit()), (5, 5));
        device.run(9);
        assert_eq!((desk.landed(), desk.ended.len()), (5, 5 * round));
    }
    assert_eq!(desk.undone(), 0);
    for asked in [0, (1 << 23) + 1] {
        let refused = Copies::new(manual(QueueMode::Shared, 1), asked, CopiesPolicy::default()).unwrap_err();
        assert_eq!(refused, ChannelError::Capacity { asked, max: 1 << 23 });
    }
}

#[test]
fn what_a_full_queue_refuses_goes_later_and_in_order() {
    let device = manual(QueueMode::Shared, 8);
    let mut desk = Desk::over(&device, 64);
    device.state().retries = 3;
    assert_eq!((desk.put(10), desk.copies.submit()), (10, 0));
    assert_eq!((desk.landed(), device.state().taken.len()), (0, 0));
    desk.put(10);
    assert_eq!((desk.landed(), desk.landed()), (0, 0));
    assert_eq!(device.state().taken, [Opcode::Batch], "by a look, and both bursts together");
    device.run(1);
    assert_eq!((desk.landed(), desk.undone()), (20, 0));
}

#[test]
fn a_dedicated_queue_is_never_overfilled() {
    let device = manual(QueueMode::Dedicated, 3);
    let mut desk = Desk::over(&device, 64);
    for copies in 1..9 {
        desk.put(copies);
        desk.copies.submit();
    }
    desk.land_by(|| _ = device.run(1));
    let state = device.state();
    assert_eq!((state.lost, state.most, desk.undone()), (0, 3, 0));
}

#[test]
fn a_queue_without_batches_has_them_one_by_one() {
    let device = Arc::new(TestDevice::with(|info| (info.max_batch, info.size) = (1, 4)));
    device.state().manual = true;
    let mut desk = Desk::over(&device, 16);
    assert_eq!((desk.put(10), desk.copies.submit()), (10, 4));
    desk.land_by(|| _ = device.run(3));
    assert_eq!((desk.undone(), device.state().taken.clone()), (0, vec![Opcode::MemoryMove; 10]));
}

#[test]
fn a_copy_that_faults_leaves_nothing_of_its_burst_in_doubt() {
    for count in [1, 10] {
        let device = manual(QueueMode::Shared, 8);
        let mut desk = Desk::over(&device, 64);
        desk.put(count);
        let middle = desk.dst[count / 2 * LEN..].as_ptr() as u64;
        device.fault_at(middle + 50, 1);
        desk.copies.submit();
        device.run(1);
        assert_eq!((desk.landed(), desk.undone()), (count, count));
        // The places are as good as before.
        assert_eq!((desk.put(64), desk.copies.submit()), (64, 64));
        device.run(9);
        assert_eq!((desk.landed(), desk.undone()), (64, count));
        desk.undone_is_untouched();
    }
}

#[test]
fn a_queue_that_knows_no_copies_leaves_them_undone() {
    let device = Arc::new(TestDevice::with(|info| info.operations = telpher_abi::registers::OpCap::default()));
    let mut desk = Desk::over(&device, 8);
    desk.put(5);
    desk.copies.submit();
    desk.land_all();
    assert_eq!(desk.undone(), 5);
}

#[test]
fn what_a_stopped_queue_had_is_undone_and_it_gets_no_more() {
    for mode in [QueueMode::Shared, QueueMode::Dedicated] {
        let device = manual(mode, 4);
        let mut desk = Desk::over(&device, 64);
        for _ in 0..4 {
            desk.put(8);
            desk.copies.submit();
        }
        desk.put(3);
        device.run(2);
        // Their records are there, though nobody has looked: they count.
        device.stop("device dsa0 is halted");
        desk.land_all();
        assert_eq!((desk.ended.len(), desk.undone()), (35, 19), "{mode:?}");
        let taken = device.state().taken.len();
        desk.put(2);
        assert_eq!((desk.copies.submit(), desk.landed(), desk.undone()), (0, 2, 21));
        let state = device.state();
        assert_eq!((state.taken.len(), state.asked), (taken, 1), "never offered or asked again");
        drop(state);
        desk.undone_is_untouched();
    }
}

#[test]
fn a_queue_that_has_nothing_and_stops_refuses_no_copy_for_ever() {
    let device = manual(QueueMode::Shared, 8);
    let mut desk = Desk::over(&device, 64);
    device.stop("device dsa0 is halted");
    desk.put(8);
    assert_eq!(desk.copies.submit(), 0);
    desk.land_all();
    assert_eq!((desk.undone(), device.state().asked), (8, 1));
}

#[test]
fn a_queue_that_stops_in_the_middle_of_a_burst_leaves_it_undone() {
    let device = manual(QueueMode::Shared, 8);
    let mut desk = Desk::over(&device, 64);
    desk.put(8);
    desk.copies.submit();
    device.lose_after_first_member();
    device.stop("device dsa0 is halted");
    desk.land_all();
    assert_eq!(desk.undone(), 8);
}

#[test]
fn a_queue_that_works_and_never_answers_is_asked_and_given_up_at_the_limit() {
    let device = manual(QueueMode::Shared, 8);
    device.state().retirable = true;
    let policy = CopiesPolicy { limit: Duration::from_millis(50), ..CopiesPolicy::default() };
    let mut desk = Desk::new(Arc::clone(&device) as Arc<dyn Portal>, 8, policy);
    desk.put(4);
    desk.copies.submit();
    for _ in 0..4000 {
        desk.clock.advance(Duration::from_micros(10));
        assert_eq!(desk.landed(), 0);
    }
    let asked = device.state().asked;
    assert!(asked > 0 && device.state().stopped.is_none(), "40 ms are not 50");
    desk.land_all();
    assert_eq!((desk.undone(), device.state().stopped.clone()), (4, Some("it was given up".into())));
    desk.undone_is_untouched();
}

#[test]
fn a_queue_that_never_answers_and_cannot_be_given_up_keeps_what_it_has() {
    let device = manual(QueueMode::Shared, 8);
    let mut desk = Desk::over(&device, 8);
    desk.put(4);
    desk.copies.submit();
    for _ in 0..10_000 {
        desk.clock.advance(Duration::from_millis(1));
        assert_eq!(desk.landed(), 0);
    }
    // Late, but it comes.
    device.run(1);
    assert_eq!((desk.landed(), desk.undone()), (4, 0));
}

#[test]
fn what_is_dropped_in_flight_is_waited_for_and_then_leaked() {
    // Works when it is driven.
    let device = Arc::new(TestDevice::new(QueueMode::Shared, 8));
    let mut desk = Desk::over(&device, 8);
    device.state().halted = true;
    desk.put(4);
    desk.copies.submit();
    device.state().halted = false;
    drop(desk.copies);
    assert_eq!(device.run(1), 0, "the drop has driven it");
    assert!(desk.dst[..4 * LEN] == desk.src[..4 * LEN]);

    let device = manual(QueueMode::Shared, 8);
    let policy = CopiesPolicy { linger: Duration::from_millis(1), ..CopiesPolicy::default() };
    let mut desk = Desk::new(Arc::clone(&device) as Arc<dyn Portal>, 8, policy);
    desk.put(4);
    desk.copies.submit();
    drop(desk.copies);
    let other = vec![0xab_u8; 8 * 64];
    // List and record are nobody else's: it reads and writes them late, and nothing breaks.
    assert_eq!(device.run(1), 1);
    assert!(desk.dst[..4 * LEN] == desk.src[..4 * LEN] && other.iter().all(|byte| *byte == 0xab));
}

#[test]
fn whatever_goes_wrong_at_once_each_copy_ends_once_and_in_order() {
    for seed in 0..300 {
        let mut chance = Chance::new(seed);
        let mode = if chance.below(2) == 0 { QueueMode::Shared } else { QueueMode::Dedicated };
        let device = Arc::new(TestDevice::with(|info| {
            info.mode = mode;
            info.size = 1 + (seed % 4) as u32;
            info.max_batch = [1, 2, 7, 32][(seed / 4 % 4) as usize];
        }));
        device.state().manual = true;
        let mut desk = Desk::over(&device, 1 + chance.below(40) as u32);
        for _ in 0..60 {
            match chance.below(12) {
                0 => device.state().retries = chance.below(5),
                1 if chance.below(10) == 0 => device.stop("wq0.0 is disabled"),
                2..=4 => _ = device.run(1 + chance.below(3) as usize),
                5 => device.fault_at(desk.dst.as_ptr() as u64 + chance.below(desk.put as u64 * LEN as u64 + 1), 1),
                6 | 7 => _ = desk.landed(),
                8 => _ = desk.copies.submit(),
                _ => _ = desk.put(chance.below(12) as usize),
            }
        }
        device.state().manual = false;
        desk.land_all();
        desk.undone_is_untouched();
        assert!(device.state().stopped.is_some() || device.state().lost == 0, "seed {seed}");
    }
}
