//! Wait policies, with a slow device on a clock that advances only while a thread rests.
#![allow(unsafe_code, reason = "a portal of its own, around the test device")]

use crate::common::device::TestDevice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use telpher_mover::{Clock, ManualClock, Moment, Mover, Outcome, Policy, Rest, Split, Threshold, Tuning, Wait};
use telpher_portal::{Offer, Portal, QueueInfo, RecordCell, Submission, Watch};

/// A manual clock that counts rests, and makes sleeps longer than requested.
#[derive(Debug)]
struct Counting {
    clock: ManualClock,
    /// Nanoseconds by which sleeps are longer than requested.
    oversleep: AtomicU64,
    pauses: AtomicU32,
    sleeps: AtomicU32,
    watches: Mutex<Vec<(Watch, Duration)>>,
}

impl Clock for Counting {
    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn rest(&self, rest: Rest) {
        self.clock.rest(rest);
        match rest {
            Rest::Sleep(_) => {
                self.clock.advance(Duration::from_nanos(self.oversleep.load(Ordering::Relaxed)));
                self.sleeps.fetch_add(1, Ordering::Relaxed)
            }
            _ => self.pauses.fetch_add(1, Ordering::Relaxed),
        };
    }

    fn watch(&self, portal: &dyn Portal, record: &RecordCell, how: Watch, at_most: Duration) {
        self.watches.lock().unwrap().push((how, at_most));
        self.clock.advance(at_most);
        portal.watch(record, how, at_most);
    }
}

/// A device that executes each descriptor only some time after it was offered, one after the other.
#[derive(Debug)]
struct Slow {
    inner: TestDevice,
    clock: Arc<Counting>,
    /// Nanoseconds that one descriptor takes.
    takes: AtomicU64,
    /// Nanosecond at which the device is free again.
    free: AtomicU64,
    /// Addresses of the records of offered descriptors, and of those that were watched.
    asked: Mutex<Vec<u64>>,
    watched: Mutex<Vec<u64>>,
}

// SAFETY: the test device's promise; a descriptor that is executed later is executed once.
unsafe impl Portal for Slow {
    fn info(&self) -> &QueueInfo {
        self.inner.info()
    }

    fn offer(&self, submission: &Submission) -> Offer {
        self.free.store(self.clock.now().nanos + self.takes.load(Ordering::Relaxed), Ordering::Relaxed);
        self.asked.lock().unwrap().push(submission.descriptor().completion_address());
        self.inner.offer(submission)
    }

    fn drive(&self) {
        if self.clock.now().nanos >= self.free.load(Ordering::Relaxed) {
            self.inner.drive();
        }
    }

    fn watch(&self, record: &RecordCell, _: Watch, _: Duration) {
        self.watched.lock().unwrap().push(record.address());
    }
}

const TAKES: Duration = Duration::from_micros(800);

fn slow(wait: Wait, oversleep: Duration) -> (Mover, Arc<Slow>, Arc<Counting>) {
    let clock = Arc::new(Counting {
        clock: ManualClock::new(Duration::from_nanos(100)),
        oversleep: AtomicU64::new(u64::try_from(oversleep.as_nanos()).unwrap()),
        pauses: AtomicU32::new(0),
        sleeps: AtomicU32::new(0),
        watches: Mutex::new(Vec::new()),
    });
    let (inner, free) = (TestDevice::with(|_| {}), AtomicU64::new(0));
    let (asked, watched) = (Mutex::default(), Mutex::default());
    let device = Arc::new(Slow {
        inner,
        clock: Arc::clone(&clock),
        takes: AtomicU64::new(u64::try_from(TAKES.as_nanos()).unwrap()),
        free,
        asked,
        watched,
    });
    let split = Split { above: u64::MAX, hybrid: false, ..Split::default() };
    let policy = Policy { wait, split, threshold: Threshold::DEVICE, ..Policy::default() };
    let mover = Mover::with_clock([Arc::clone(&device) as Arc<dyn Portal>], policy, Arc::clone(&clock) as _);
    (mover, device, clock)
}

/// Copies 64 KiB; returns the time until its record was seen.
fn copy(mover: &Mover, clock: &Counting) -> Duration {
    let begin = clock.now().nanos;
    let done = mover.copy(vec![7; 64 << 10], vec![0; 64 << 10]).wait();
    assert_eq!(done.result, Ok(Outcome::Done));
    assert_eq!(done.buffers.0, done.buffers.1);
    Duration::from_nanos(clock.now().nanos - begin)
}

#[test]
fn a_learned_prediction_sleeps_most_of_the_time_and_is_hardly_late() {
    for oversleep in [Duration::ZERO, Duration::from_micros(60)] {
        let (mover, _, clock) = slow(Wait::Predicted, oversleep);
        for _ in 0..60 {
            copy(&mover, &clock);
        }
        clock.pauses.store(0, Ordering::Relaxed);
        let (mut slept, mut late) = (0, Duration::ZERO);
        for _ in 0..50 {
            clock.sleeps.store(0, Ordering::Relaxed);
            late += copy(&mover, &clock) - TAKES;
            slept += u32::from(clock.sleeps.load(Ordering::Relaxed) > 0);
        }
        // A pause is 100 ns: awake for less than 30 %, late by less than 10 %, on average.
        let awake = Duration::from_nanos(100) * clock.pauses.load(Ordering::Relaxed) / 50;
        assert_eq!(slept, 50, "{oversleep:?}");
        assert!(awake < TAKES * 3 / 10, "{oversleep:?}: awake for {awake:?}");
        assert!(late / 50 < TAKES / 10, "{oversleep:?}: late by {:?}", late / 50);
    }
}

/// Returns the share of time awake, and the time until a record was seen over the time it took, for fifty copies.
fn fifty_copies(mover: &Mover, clock: &Counting, takes: Duration) -> [f64; 2] {
    clock.pauses.store(0, Ordering::Relaxed);
    let seen: Duration = (0..50).map(|_| copy(mover, clock)).sum();
    let awake = Duration::from_nanos(100) * clock.pauses.load(Ordering::Relaxed);
    [awake.div_duration_f64(50 * takes), seen.div_duration_f64(50 * takes)]
}

#[test]
fn a_wrong_estimate_is_corrected_within_forty_copies() {
    for believed in [1_000_u64, 20_000, 3_000_000, 1_000_000_000] {
        let (mover, _, clock) = slow(Wait::Predicted, Duration::from_micros(30));
        let file = format!(
            "version = 1\n[machine]\ncpu = \"x\"\ndevice = \"y\"\nin-flight = 1\n[measured]\n\
             memory-move = [[4096, 100, {believed}], [65536, 1000, {believed}], [1048576, 90000, {believed}]]\n"
        );
        mover.load_costs(&Tuning::parse(&file).unwrap());
        (0..40).for_each(|_| _ = copy(&mover, &clock));
        let [awake, seen] = fifty_copies(&mover, &clock, TAKES);
        assert!(awake < 0.3 && seen < 1.1, "{believed} ns: awake for {awake:.2}, seen after {seen:.2}");
    }
}

#[test]
fn rare_long_jobs_do_not_disturb_the_predictions() {
    let (mover, device, clock) = slow(Wait::Predicted, Duration::from_micros(30));
    let takes = |nanos: Duration| device.takes.store(u64::try_from(nanos.as_nanos()).unwrap(), Ordering::Relaxed);
    for i in 0..200 {
        takes(if i % 10 == 3 { 10 * TAKES } else { TAKES });
        copy(&mover, &clock);
    }
    takes(TAKES);
    let [awake, seen] = fifty_copies(&mover, &clock, TAKES);
    assert!(awake < 0.3 && seen < 1.1, "awake for {awake:.2}, seen after {seen:.2}");
}

#[test]
fn a_thread_sleeps_again_after_a_period_of_late_wake_ups() {
    let short = Duration::from_micros(200);
    let (mover, device, clock) = slow(Wait::Predicted, Duration::from_micros(20));
    device.takes.store(200_000, Ordering::Relaxed);
    (0..40).for_each(|_| _ = copy(&mover, &clock));
    // Another thread has the core.
    clock.oversleep.store(5_000_000, Ordering::Relaxed);
    (0..40).for_each(|_| _ = copy(&mover, &clock));
    clock.oversleep.store(20_000, Ordering::Relaxed);
    (0..60).for_each(|_| _ = copy(&mover, &clock));
    let [awake, seen] = fifty_copies(&mover, &clock, short);
    assert!(awake < 0.3 && seen < 1.1, "awake for {awake:.2}, seen after {seen:.2}");
}

#[test]
fn a_monitoring_wait_watches_the_record_of_its_own_job() {
    let at_most = Duration::from_micros(100);
    for (wait, how) in [(Wait::Monitor { at_most }, Watch::Monitor), (Wait::Timed { interval: at_most }, Watch::Timed)]
    {
        let (mover, device, clock) = slow(wait, Duration::ZERO);
        assert!(copy(&mover, &clock) <= TAKES + at_most);
        let records = device.asked.lock().unwrap().clone();
        let watched = device.watched.lock().unwrap().clone();
        assert_eq!(records.len(), 1);
        assert!(watched.len() >= 7 && watched.iter().all(|address| *address == records[0]), "{watched:?}");
        assert!(clock.watches.lock().unwrap().iter().all(|watch| *watch == (how, at_most)));
    }
}

#[test]
fn no_sleep_makes_a_deadline_late() {
    for wait in [Wait::Predicted, Wait::Sleep { pauses: 0, interval: Duration::from_secs(1) }] {
        let (mover, _, clock) = slow(wait, Duration::ZERO);
        for _ in 0..20 {
            copy(&mover, &clock);
        }
        let begin = clock.now().nanos;
        let job = mover.copy(vec![7; 64 << 10], vec![0; 64 << 10]);
        assert!(job.deadline(Duration::from_micros(300)).wait().is_err(), "{wait:?}");
        let took = clock.now().nanos - begin;
        assert!((300_000..301_000).contains(&took), "{wait:?}: {took} ns");
        // Its record comes later.
        clock.clock.advance(TAKES);
        // One sweep checks some of the slots.
        (0..100).for_each(|_| mover.drive());
        assert_eq!(mover.quarantined(), 0);
    }
}
