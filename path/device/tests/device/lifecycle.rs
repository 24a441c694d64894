//! Commands, halts and reconfiguration while other threads submit. Each test is a regression test.
#![allow(unsafe_code, reason = "submissions are vouched for here, by what each test owns; no event log is configured")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use telpher_abi::registers::{Command, CommandCode, CommandError, DeviceState, PortalKind, WqState, offset};
use telpher_abi::{Descriptor, Status};
use telpher_device::{Config, ModelDevice, ModelOptions, Preset, Runner, WqMode};
use telpher_model::{Device, PciControl, Progress};
use telpher_portal::{Offer, Portal, RecordCell, Submission};

fn offer(portal: &dyn Portal, descriptor: Descriptor) -> Offer {
    // SAFETY: No-ops whose record outlives the wait for it, or descriptors of a PASID without memory.
    portal.offer(&unsafe { Submission::vouch(descriptor) })
}

fn device(of: &ModelDevice) -> &Device {
    // SAFETY: no event log is configured.
    unsafe { of.device() }
}

fn nop(record: &RecordCell) -> Descriptor {
    Descriptor::nop().with_record(record.address())
}

fn command(code: CommandCode, operand: u32) -> Command {
    Command::new(code, operand)
}

fn shared(runner: Runner) -> ModelDevice {
    let config = Config::single(WqMode::Shared, 16, 1);
    ModelDevice::start(ModelOptions::default().with_config(config).with_runner(runner)).unwrap()
}

/// Regression: a ring without slots was masked by its length minus one.
#[test]
fn a_device_never_enabled_can_be_reset() {
    for code in [CommandCode::ResetDevice, CommandCode::AbortAll, CommandCode::ResetWq, CommandCode::AbortPasid] {
        ModelDevice::power_on(ModelOptions::default()).unwrap().command(command(code, 1)).unwrap();
    }
}

/// Regression: an empty write was executed nevertheless, faulted, and the code searched for the lost entry in an empty
/// list.
#[test]
fn create_delta_of_a_pasid_without_memory_is_a_page_fault() {
    let device = ModelDevice::start(ModelOptions::default()).unwrap();
    assert!(device.add_pasid(5));
    let stranger = device.portal_as(4, PortalKind::UnlimitedMsix, None, 0x999);
    let record = RecordCell::new();
    let delta = Descriptor::create_delta(0x1000, 0x2000, 64, 0x3000, 80).with_record(record.address());
    assert_eq!(offer(&*stranger, delta), Offer::Taken);
    let friend = device.portal_as(4, PortalKind::UnlimitedMsix, None, 5);
    assert_eq!(offer(&*friend, nop(&record)), Offer::Taken);
    assert_eq!(record.read().unwrap().status(), Status::Success);
}

/// Regression: a helper could complete the next command with the words of the previous one.
#[test]
fn each_command_of_several_threads_does_its_own_work() {
    for runner in [Runner::Inline, Runner::Threaded, Runner::Auto] {
        let device = ModelDevice::start(ModelOptions::default().with_runner(runner)).unwrap();
        std::thread::scope(|scope| {
            for wq in [4, 5] {
                let device = &device;
                scope.spawn(move || {
                    for _ in 0..500 {
                        device.command(command(CommandCode::DisableWq, 1 << wq)).unwrap();
                        device.command(command(CommandCode::EnableWq, wq)).unwrap();
                    }
                });
            }
        });
        assert!([4, 5].iter().all(|wq| self::device(&device).wq_state(*wq) == WqState::Enabled));
    }
}

/// Regression: engines stop in a halted device, so a command that waited for them waited for ever and blocked the
/// reset.
#[test]
fn a_halt_ends_the_active_command_and_a_reset_recovers() {
    let model = shared(Runner::Inline);
    let portal = model.portal("wq0.0").unwrap();
    let record = RecordCell::new();
    model.hold(true);
    assert_eq!(offer(&*portal, nop(&record)), Offer::Taken);
    assert!(device(&model).start_command(command(CommandCode::DrainAll, 0)));
    device(&model).set_pci(PciControl { bus_master: false, ..PciControl::SHARED_VIRTUAL_MEMORY });
    model.hold(false);
    model.advance();
    assert_eq!(device(&model).state(), DeviceState::Halted);
    assert_eq!(device(&model).cmd_status().error_code(), CommandError::Halted.code());
    model.command(command(CommandCode::ResetDevice, 0)).unwrap();
    assert_eq!(device(&model).state(), DeviceState::Disabled);
    assert!(record.status().is_none());
}

/// Regression: the holder of the inline lock checked for more work in its own group only.
#[test]
fn work_left_to_a_busy_submitter_is_done_before_it_returns() {
    let model = ModelDevice::start(ModelOptions::default()).unwrap();
    let (long, short) = (model.portal("wq0.0").unwrap(), model.portal("wq0.1").unwrap());
    let mut buffer = vec![0_u8; 64 << 20];
    let records = [RecordCell::new(), RecordCell::new()];
    let fill = Descriptor::fill(7, buffer.as_mut_ptr() as u64, 64 << 20).with_record(records[0].address());
    let begun = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = scope.spawn(move || {
            begun.store(true, Ordering::Release);
            offer(&*long, fill)
        });
        while !begun.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        assert_eq!(offer(&*short, nop(&records[1])), Offer::Taken);
        assert_eq!(busy.join().unwrap(), Offer::Taken);
    });
    assert!(records.iter().all(|record| record.status().is_some()), "left undone until a thread calls drive");
}

/// Regression: the inline runner checked for a hold only at its start.
#[test]
fn nothing_is_executed_while_engines_are_held() {
    for runner in [Runner::Inline, Runner::Threaded, Runner::Auto] {
        let model = shared(runner);
        let portal = model.portal("wq0.0").unwrap();
        for _ in 0..20 {
            model.hold(true);
            let record = RecordCell::new();
            assert_eq!(offer(&*portal, nop(&record)), Offer::Taken);
            std::thread::sleep(Duration::from_micros(200));
            assert!(record.status().is_none());
            model.hold(false);
            while record.status().is_none() {
                portal.drive();
            }
        }
    }
}

/// Regression: a descriptor abandoned behind others stayed in the queue that was then disabled.
#[test]
fn a_disabled_queue_is_empty() {
    let model = shared(Runner::Inline);
    assert!(model.add_pasid(2));
    let records = [RecordCell::new(), RecordCell::new()];
    model.hold(true);
    for (pasid, record) in (1..).zip(&records) {
        assert_eq!(offer(&*model.portal_as(0, PortalKind::UnlimitedMsix, None, pasid), nop(record)), Offer::Taken);
    }
    model.command(command(CommandCode::AbortPasid, 2)).unwrap();
    while records[0].status().is_none() {
        assert_eq!(model.step_engine(0), Some(Progress::Worked));
    }
    model.hold(false);
    model.command(command(CommandCode::DisableWq, 1)).unwrap();
    assert_eq!(device(&model).wq_occupancy(0), 0);
    assert!(records[1].status().is_none());
}

/// Regression: a submitter that had read size and slots of the old configuration used them to write into the new one.
#[test]
fn queues_survive_reconfiguration_under_submitters() {
    let model = ModelDevice::start(ModelOptions::of(Preset::Spr).with_runner(Runner::Threaded)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (model, stop) = (&model, &stop);
            scope.spawn(move || {
                let portal = model.portal_as(4, PortalKind::UnlimitedMsix, None, 1);
                while !stop.load(Ordering::Relaxed) {
                    let _ = offer(&*portal, Descriptor::nop());
                }
            });
        }
        let end = Instant::now() + Duration::from_millis(700);
        let stride = 32;
        let (mut sizes, wqcfg) = ([4_u64, 28], telpher_model::layout::WQCFG);
        while Instant::now() < end {
            model.command(command(CommandCode::DisableDevice, 0)).unwrap();
            sizes.swap(0, 1);
            for (wq, size) in [(0, sizes[0]), (4, sizes[1])] {
                device(&model).write_register(wqcfg + wq * stride, 4, size);
                device(&model).write_register(wqcfg + wq * stride + 4, 4, size);
            }
            model.command(command(CommandCode::EnableDevice, 0)).unwrap();
            model.command(command(CommandCode::EnableWq, 0)).unwrap();
            model.command(command(CommandCode::EnableWq, 4)).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    model.command(command(CommandCode::DrainAll, 0)).unwrap();
    assert_eq!(device(&model).wq_occupancy(4), 0);
    assert_eq!(device(&model).read_register(offset::SWERROR, 8) & 1, 0, "nothing was lost");
}
