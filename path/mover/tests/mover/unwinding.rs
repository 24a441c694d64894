//! A panic, or a closed standard error, frees nothing that a device may still write.
#![allow(unsafe_code, reason = "a portal and a buffer that panic; both traits are promises")]

use crate::common::device::TestDevice;
use crate::common::{Watched, alone, is_alone, mover, policy};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use telpher_mover::{
    Channel, ChannelPolicy, Clock, ManualClock, Moment, Mover, Policy, Rest, Route, Split, StableBuf, StableBufMut,
    Wait,
};
use telpher_portal::{Health, Offer, Portal, QueueInfo, Submission};

/// A portal that panics when a test asks for it.
#[derive(Debug)]
struct Moody {
    device: Arc<TestDevice>,
    in_drive: AtomicBool,
    in_health: AtomicBool,
    after_taking: bool,
}

impl Moody {
    fn new(device: &Arc<TestDevice>, after_taking: bool) -> Arc<Self> {
        let [in_drive, in_health] = [false; 2].map(AtomicBool::new);
        Arc::new(Moody { device: Arc::clone(device), in_drive, in_health, after_taking })
    }
}

// SAFETY: as for the test device. It breaks the rule about unwinding only in the test of that rule, and then the
// process ends.
unsafe impl Portal for Moody {
    fn info(&self) -> &QueueInfo {
        self.device.info()
    }

    fn offer(&self, submission: &Submission) -> Offer {
        let answer = self.device.offer(submission);
        assert!(!self.after_taking, "a portal's offer");
        answer
    }

    fn drive(&self) {
        assert!(!self.in_drive.load(Ordering::SeqCst), "a portal's drive");
        self.device.drive();
    }

    fn health(&self) -> Health {
        assert!(!self.in_health.load(Ordering::SeqCst), "a portal's health");
        self.device.health()
    }
}

/// A clock that panics as soon as its device has taken a descriptor.
#[derive(Debug)]
struct Late {
    device: Arc<TestDevice>,
    clock: Arc<ManualClock>,
}

impl Clock for Late {
    fn now(&self) -> Moment {
        assert!(self.device.state().taken.is_empty(), "a clock");
        self.clock.now()
    }

    fn rest(&self, rest: Rest) {
        self.clock.rest(rest);
    }
}

/// A buffer that panics when it is dropped, if its flag is set.
struct Bad(Vec<u8>, bool);

impl Drop for Bad {
    fn drop(&mut self) {
        assert!(!self.1, "a payload's drop");
    }
}

// SAFETY: a Vec's block stays where it is.
unsafe impl StableBuf for Bad {
    fn address(&self) -> u64 {
        self.0.address()
    }
    fn len(&self) -> usize {
        self.0.len()
    }
}
// SAFETY: as above.
unsafe impl StableBufMut for Bad {
    fn address_mut(&mut self) -> u64 {
        self.0.address_mut()
    }
}

/// A device that executes only in calls of `run`.
fn manual() -> Arc<TestDevice> {
    let device = Arc::new(TestDevice::with(|_| {}));
    device.state().manual = true;
    device
}

fn panics(f: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

#[test]
fn a_payload_that_panics_while_its_mover_is_dropped_frees_no_other() {
    let device = manual();
    let mover = mover(&device, policy());
    drop(mover.fill(Bad(vec![0; 64], true), 1));
    let (buffer, gone) = Watched::new(vec![0; 64]);
    drop(mover.fill(buffer, 1));
    device.run(1);
    assert!(panics(move || drop(mover)));
    assert!(!gone.load(Ordering::SeqCst), "the device still has it");
    // The device writes into memory that is still there.
    device.run(1);
}

#[test]
fn a_portal_that_panics_while_its_mover_is_dropped_frees_nothing() {
    let device = manual();
    let moody = Moody::new(&device, false);
    let mover = Mover::new([Arc::clone(&moody) as Arc<dyn Portal>], policy());
    let (buffer, gone) = Watched::new(vec![0; 64]);
    drop(mover.fill(buffer, 1));
    moody.in_drive.store(true, Ordering::SeqCst);
    assert!(panics(move || drop(mover)));
    assert!(!gone.load(Ordering::SeqCst), "the device still has it");
    device.run(1);
}

#[test]
fn a_portal_that_panics_while_its_channel_is_dropped_frees_nothing() {
    let device = manual();
    let moody = Moody::new(&device, false);
    let mut channel: Channel<Watched, Watched> =
        Channel::new(Arc::clone(&moody) as Arc<dyn Portal>, 4, ChannelPolicy::default()).unwrap();
    let (buffer, gone) = Watched::new(vec![0; 64]);
    channel.fill(buffer, 1).unwrap();
    channel.submit();
    moody.in_drive.store(true, Ordering::SeqCst);
    assert!(panics(move || drop(channel)));
    assert!(!gone.load(Ordering::SeqCst), "the device still has it");
    device.run(1);
}

#[test]
fn expired_buffers_of_a_channel_are_dropped_when_its_state_is_consistent() {
    let device = manual();
    let clock = crate::common::clock();
    let policy = ChannelPolicy { deadline: Some(Duration::from_millis(1)), ..ChannelPolicy::default() };
    let portal = Arc::clone(&device) as Arc<dyn Portal>;
    let mut channel: Channel<Vec<u8>, Bad> = Channel::with_clock(portal, 2, policy, clock.clone()).unwrap();
    let mut out = Vec::new();
    for bad in [true, false] {
        assert!(channel.fill(Bad(vec![0; 8], bad), 1).is_ok());
    }
    channel.submit();
    clock.advance(Duration::from_millis(2));
    assert_eq!((channel.completed(&mut out), channel.quarantined()), (2, 2));
    device.run(1);
    assert!(panics(|| {
        channel.completed(&mut out);
    }));
    assert_eq!((channel.completed(&mut out), channel.quarantined()), (0, 0));
    // Both slots are free again.
    for _ in 0..2 {
        assert!(channel.fill(Bad(vec![0; 8], false), 1).is_ok());
    }
    channel.submit();
    device.run(1);
    assert_eq!(channel.completed(&mut out), 2);
}

#[test]
fn a_portal_that_panics_while_a_single_member_is_in_flight_frees_nothing() {
    let device = manual();
    let moody = Moody::new(&device, false);
    let policy = Policy { patience: Duration::ZERO, ..policy() };
    let mover = Mover::with_clock([Arc::clone(&moody) as Arc<dyn Portal>], policy, crate::common::clock());
    let (buffer, gone) = Watched::new(vec![0; 64]);
    let mut batch = mover.batch();
    batch.fill(buffer, 1);
    let mut job = batch.submit();
    assert_eq!(device.state().taken.len(), 1);
    moody.in_health.store(true, Ordering::SeqCst);
    assert!(panics(|| while !job.is_done() {}));
    drop(job);
    assert!(!gone.load(Ordering::SeqCst), "the device still has it");
    device.run(1);
    (0..200).for_each(|_| mover.drive());
    assert!(gone.load(Ordering::SeqCst));
}

#[test]
fn a_portal_that_panics_while_a_long_job_is_given_up_frees_nothing() {
    let devices = [manual(), manual()];
    let moody = devices.each_ref().map(|device| Moody::new(device, false));
    let split = Split { above: 4096, ways: 2, ..Split::default() };
    let policy = Policy { split, route: Route::First, ..policy() };
    let portals = moody.each_ref().map(|moody| Arc::clone(moody) as Arc<dyn Portal>);
    let mover = Mover::with_clock(portals, policy, crate::common::clock());
    let (buffer, gone) = Watched::new(vec![0; 1 << 20]);
    let job = mover.fill(buffer, 1).deadline(Duration::from_micros(5));
    assert!(devices.iter().all(|device| !device.state().taken.is_empty()));
    moody.iter().for_each(|moody| moody.in_health.store(true, Ordering::SeqCst));
    assert!(panics(|| drop(job.wait())));
    for device in &devices {
        assert!(!gone.load(Ordering::SeqCst), "a device still has it");
        device.run(9);
        (0..200).for_each(|_| mover.drive());
    }
    assert!(gone.load(Ordering::SeqCst) && mover.quarantined() == 0);
}

#[test]
fn a_clock_that_panics_after_a_submission_frees_nothing() {
    for alone in [true, false] {
        let device = manual();
        let portal = Arc::clone(&device) as Arc<dyn Portal>;
        let clock = Arc::new(Late { device: Arc::clone(&device), clock: crate::common::clock() });
        let policy = Policy { wait: Wait::Predicted, linger: Duration::ZERO, ..policy() };
        let mover = Mover::with_clock([portal], policy, clock);
        let (buffer, gone) = Watched::new(vec![0; 64]);
        let panicked = panics(|| {
            if alone {
                let _ = mover.fill(buffer, 1).wait();
            } else {
                let mut batch = mover.batch();
                batch.fill(buffer, 1);
                batch.fill(vec![0; 64], 1);
                drop(batch.submit().wait());
            }
        });
        assert!(panicked && !gone.load(Ordering::SeqCst), "the device still has it");
        device.run(1);
        std::mem::forget(mover);
    }
}

#[test]
fn a_failed_write_to_standard_error_frees_nothing() {
    if !is_alone() {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let out = alone("unwinding::a_failed_write_to_standard_error_frees_nothing", full.into());
        let stdout = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && stdout.contains("1 passed"), "{stdout}");
        return;
    }
    let (device, linger) = (manual(), Duration::from_millis(5));
    let mut channel: Channel<Watched, Watched> =
        Channel::new(Arc::clone(&device) as Arc<dyn Portal>, 4, ChannelPolicy { linger, ..ChannelPolicy::default() })
            .unwrap();
    let (buffer, gone) = Watched::new(vec![0; 64]);
    channel.fill(buffer, 1).unwrap();
    channel.submit();
    let mover = mover(&device, Policy { linger, ..policy() });
    let (other, other_gone) = Watched::new(vec![0; 64]);
    drop(mover.fill(other, 1));
    let panicked = [panics(move || drop(channel)), panics(move || drop(mover))];
    assert_eq!((panicked, [gone, other_gone].map(|gone| gone.load(Ordering::SeqCst))), ([false; 2], [false; 2]));
    device.run(2);
}

#[test]
fn a_portal_that_panics_after_it_took_a_descriptor_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    if !is_alone() {
        let out = alone("unwinding::a_portal_that_panics_after_it_took_a_descriptor_ends_the_process", Stdio::piped());
        assert_eq!(out.status.signal(), Some(6), "SIGABRT");
        let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(stderr.contains("telpher: a portal panicked while it was offered a descriptor"), "{stderr}");
        return;
    }
    let mover = Mover::new([Moody::new(&manual(), true) as Arc<dyn Portal>], policy());
    let _ = catch_unwind(AssertUnwindSafe(|| drop(mover.fill(vec![0; 64], 1))));
}
