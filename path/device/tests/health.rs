//! When a queue of a modelled device says that it has stopped: never while anything that it took may still touch memory.
#![allow(unsafe_code, reason = "submissions are vouched for here, by what each test owns; no event log is configured")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use telpher_abi::registers::{Command, CommandCode};
use telpher_abi::{Descriptor, Status};
use telpher_device::{Config, ModelDevice, ModelOptions, Runner, WqMode};
use telpher_model::{Job, Observer, PciControl, Verdict};
use telpher_portal::{Health, Offer, Portal, RecordCell, Submission};

const RUNNERS: [Runner; 2] = [Runner::Inline, Runner::Threaded];

fn offer(portal: &dyn Portal, descriptor: Descriptor) -> Offer {
    // SAFETY: No-ops and fills of buffers that outlive their device.
    portal.offer(&unsafe { Submission::vouch(descriptor) })
}

fn start(options: ModelOptions, runner: Runner) -> ModelDevice {
    let config = Config::single(WqMode::Dedicated, 16, 1);
    ModelDevice::start(options.with_config(config).with_runner(runner)).unwrap()
}

/// Makes it halt, as a change of its PCI function does.
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
fn a_queue_that_works_says_so() {
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
fn a_halted_device_says_why_it_stopped_and_never_executes_what_waited() {
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
        // The reset is what a device's engines were once let loose by.
        device.command(Command::new(CommandCode::ResetDevice, 0)).unwrap();
        portal.drive();
        assert_eq!(record.status(), None);
        assert_eq!(stopped(&*portal).as_deref(), Some("wq0.0 is disabled"));
    }
}

#[test]
fn a_queue_disabled_under_use_has_stopped_until_it_is_enabled_again() {
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

/// Holds the first descriptor in its engine's hand until told otherwise.
#[derive(Debug, Default)]
struct Keeper {
    seen: AtomicBool,
    released: AtomicBool,
}

impl Observer for Keeper {
    fn dispatched(&self, _: &Job<'_>) -> Verdict {
        self.seen.store(true, Ordering::SeqCst);
        if self.released.load(Ordering::SeqCst) { Verdict::Go } else { Verdict::Wait }
    }
}

#[test]
fn a_halted_device_with_a_descriptor_in_hand_has_not_stopped_yet() {
    for runner in RUNNERS {
        let keeper = Arc::new(Keeper::default());
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

/// Engines took a descriptor between the look at the state and the look at what is in hand.
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
        // SAFETY: inside the region, which nobody else writes to any more: that is what the test asks.
        unsafe { first.write_volatile(u64::MAX) };
        drop((portal, device));
        // SAFETY: as above; the engines' threads have ended.
        assert_eq!(unsafe { first.read_volatile() }, u64::MAX, "round {round}");
    }
}
