//! A queue of a modelled device never reports that it has stopped while something it took may still access memory.
#![allow(unsafe_code, reason = "submissions are vouched for here, by what each test owns; no event log is configured")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use telpher_abi::registers::{Command, CommandCode};
use telpher_abi::{Descriptor, Status};
use telpher_device::{Config, ModelDevice, ModelOptions, Runner, WqMode};
use telpher_model::{DispatchDecision, Job, Observer, PciControl};
use telpher_portal::{Health, Offer, Portal, RecordCell, Submission};

const RUNNERS: [Runner; 3] = [Runner::Inline, Runner::Threaded, Runner::Auto];

fn offer(portal: &dyn Portal, descriptor: Descriptor) -> Offer {
    // SAFETY: No-ops, and fills of buffers that outlive their device.
    portal.offer(&unsafe { Submission::vouch(descriptor) })
}

fn start(options: ModelOptions, runner: Runner) -> ModelDevice {
    let config = Config::single(WqMode::Dedicated, 16, 1);
    ModelDevice::start(options.with_config(config).with_runner(runner)).unwrap()
}

/// Halts the device, as a change of its PCI function does.
fn halt(device: &ModelDevice) {
    // SAFETY: no event log is configured.
    let device = unsafe { device.device() };
    device.set_pci(PciControl { bus_master: false, ..device.pci() });
}

fn stopped(portal: &dyn Portal) -> Option<String> {
    match portal.health() {
        Health::Working => None,
        Health::Stopped(why) => Some(why),
    }
}

#[test]
fn a_working_queue_reports_working() {
    for runner in RUNNERS {
        let device = start(ModelOptions::default(), runner);
        let portal = device.portal("wq0.0").unwrap();
        assert_eq!(portal.health(), Health::Working);
        device.hold(true);
        assert_eq!(offer(&*portal, Descriptor::nop()), Offer::Taken);
        assert_eq!(portal.health(), Health::Working, "late is not stopped");
        device.hold(false);
    }
}

#[test]
fn a_halted_device_reports_its_reason_and_never_executes_waiting_descriptors() {
    for runner in RUNNERS {
        let device = start(ModelOptions::default(), runner);
        let portal = device.portal("wq0.0").unwrap();
        let record = RecordCell::new();
        device.hold(true);
        assert_eq!(offer(&*portal, Descriptor::nop().with_record(record.address())), Offer::Taken);
        halt(&device);
        assert_eq!(
            stopped(&*portal).as_deref(),
            Some("wq0.0: the device has halted: PCI configuration changed while the device was not disabled (0x51)")
        );
        device.hold(false);
        // In the past this reset let the device's engines continue.
        device.command(Command::new(CommandCode::ResetDevice, 0)).unwrap();
        portal.drive();
        assert_eq!(record.status(), None);
        assert_eq!(stopped(&*portal).as_deref(), Some("wq0.0 is disabled"));
    }
}

#[test]
fn a_queue_disabled_in_use_is_stopped_until_it_is_enabled_again() {
    for runner in RUNNERS {
        let device = start(ModelOptions::default(), runner);
        let portal = device.portal("wq0.0").unwrap();
        device.command(Command::new(CommandCode::DisableWq, 1)).unwrap();
        let record = RecordCell::new();
        assert_eq!(offer(&*portal, Descriptor::nop().with_record(record.address())), Offer::Taken, "a posted write");
        assert_eq!((stopped(&*portal).as_deref(), record.status()), (Some("wq0.0 is disabled"), None));
        device.command(Command::new(CommandCode::EnableWq, 0)).unwrap();
        assert_eq!(portal.health(), Health::Working);
    }
}

/// An observer that holds the first descriptor in its engine until it is released.
#[derive(Debug, Default)]
struct HoldingObserver {
    seen: AtomicBool,
    released: AtomicBool,
}

impl Observer for HoldingObserver {
    fn dispatched(&self, _: &Job<'_>) -> DispatchDecision {
        self.seen.store(true, Ordering::SeqCst);
        if self.released.load(Ordering::SeqCst) { DispatchDecision::Go } else { DispatchDecision::Wait }
    }
}

#[test]
fn a_halted_device_with_a_descriptor_in_progress_has_not_stopped_yet() {
    for runner in RUNNERS {
        let keeper = Arc::new(HoldingObserver::default());
        let device = start(ModelOptions::default().with_observer(keeper.clone()), runner);
        let portal = device.portal("wq0.0").unwrap();
        let (record, mut target) = (RecordCell::new(), [0_u8; 64]);
        let fill = Descriptor::fill(7, target.as_mut_ptr() as u64, 64);
        assert_eq!(offer(&*portal, fill.with_record(record.address())), Offer::Taken);
        while !keeper.seen.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        halt(&device);
        assert_eq!(portal.health(), Health::Working, "it still writes");
        keeper.released.store(true, Ordering::SeqCst);
        while portal.health() == Health::Working {
            portal.drive();
        }
        assert_eq!(record.read().unwrap().status(), Status::Success);
    }
}

/// Regression: engines took a descriptor between the read of the state and the check for descriptors in progress.
#[test]
fn once_stopped_no_byte_changes_any_more() {
    let mut buffer = telpher_mem::Region::new(64 << 10, telpher_mem::PageSize::Small).unwrap();
    let first = buffer.as_mut_ptr().cast::<u64>();
    for round in 0..200_u64 {
        let device = start(ModelOptions::default(), Runner::Threaded);
        let portal = device.portal("wq0.0").unwrap();
        for _ in 0..16 {
            assert_eq!(offer(&*portal, Descriptor::fill(round, first as u64, 64 << 10)), Offer::Taken);
        }
        halt(&device);
        while portal.health() == Health::Working {
            std::hint::spin_loop();
        }
        // SAFETY: inside the region, to which no other thread writes any more: that is what the test checks.
        unsafe { first.write_volatile(u64::MAX) };
        drop((portal, device));
        // SAFETY: as above; the engines' threads have ended.
        assert_eq!(unsafe { first.read_volatile() }, u64::MAX, "round {round}");
    }
}
