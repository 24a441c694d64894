//! A modelled device behind its portals, with each runner: the behaviour on which programs rely.
#![allow(unsafe_code, reason = "submissions are vouched for here, by the buffers each test owns")]

use std::sync::Arc;
use telpher_abi::registers::{Command, CommandCode, WqState};
use telpher_abi::{CompletionRecord, Descriptor, Flags, Status};
use telpher_device::{Config, ModelDevice, ModelOptions, Preset, Residency, Runner, StartError, WqMode};
use telpher_model::PciControl;
use telpher_portal::{Offer, Portal, RecordCell, Submission};

const RUNNERS: [Runner; 3] = [Runner::Inline, Runner::Threaded, Runner::Auto];

fn offer(portal: &dyn Portal, descriptor: Descriptor) -> Offer {
    // SAFETY: each test keeps the buffers and records of its descriptors until it has seen the record, or uses none.
    portal.offer(&unsafe { Submission::vouch(descriptor) })
}

fn wait(portal: &dyn Portal, record: &RecordCell) -> CompletionRecord {
    loop {
        if let Some(record) = record.read() {
            return record;
        }
        portal.drive();
        std::thread::yield_now();
    }
}

fn run(portal: &dyn Portal, descriptor: Descriptor) -> CompletionRecord {
    let record = RecordCell::new();
    assert_eq!(offer(portal, descriptor.with_record(record.address())), Offer::Taken);
    wait(portal, &record)
}

fn address<T>(of: &[T]) -> u64 {
    of.as_ptr() as u64
}

#[test]
fn a_copy_arrives_on_every_queue_of_every_preset() {
    for preset in Preset::ALL {
        for runner in RUNNERS {
            let device = ModelDevice::start(ModelOptions::of(preset).with_runner(runner)).unwrap();
            for queue in device.enabled_queues() {
                let portal = device.portal(&format!("wq0.{queue}")).unwrap();
                let src: Vec<u8> = (0..=255).cycle().take(10_000).collect();
                let dst = vec![0_u8; 10_000];
                let record = run(&*portal, Descriptor::memory_move(address(&src), address(&dst), 10_000));
                assert_eq!(record.status(), Status::Success);
                assert_eq!(std::hint::black_box(&dst), &src);
            }
        }
    }
}

#[test]
fn an_unmapped_source_is_a_page_fault_with_its_address() {
    for runner in RUNNERS {
        let device = ModelDevice::start(ModelOptions::default().with_runner(runner)).unwrap();
        let portal = device.portal("wq0.0").unwrap();
        let dst = [0_u8; 64];
        let record = run(&*portal, Descriptor::memory_move(0x10, address(&dst), 64));
        assert_eq!((record.status(), record.fault_address(), record.bytes_completed()), (Status::PageFault, 0x10, 0));
        let blocking = Descriptor::memory_move(0x10, address(&dst), 64).and_flags(Flags::BLOCK_ON_FAULT);
        assert_eq!(run(&*portal, blocking).status(), Status::PageFaultRefused);
    }
}

#[test]
fn a_batch_with_a_fence_runs_in_order() {
    for runner in RUNNERS {
        let device = ModelDevice::start(ModelOptions::default().with_runner(runner)).unwrap();
        let portal = device.portal("wq0.0").unwrap();
        let (a, b, c) = ([7_u8; 512], [0_u8; 512], [0_u8; 512]);
        let records = [RecordCell::new(), RecordCell::new()];
        let list = [
            Descriptor::memory_move(address(&a), address(&b), 512).with_record(records[0].address()),
            Descriptor::memory_move(address(&b), address(&c), 512)
                .with_record(records[1].address())
                .and_flags(Flags::FENCE),
        ];
        let record = run(&*portal, Descriptor::batch(address(&list), 2));
        assert_eq!((record.status(), record.bytes_completed()), (Status::Success, 2));
        assert_eq!(std::hint::black_box(&c), &a);
    }
}

#[test]
fn a_failed_member_abandons_members_from_the_fence_on() {
    let device = ModelDevice::start(ModelOptions::default()).unwrap();
    let portal = device.portal("wq0.0").unwrap();
    let records = [RecordCell::new(), RecordCell::new(), RecordCell::new()];
    let mut list = [Descriptor::nop(); 3];
    for (member, record) in list.iter_mut().zip(&records) {
        *member = member.with_record(record.address());
    }
    list[0] = Descriptor::memory_move(0x10, address(&list), 1).with_record(records[0].address());
    list[2] = list[2].and_flags(Flags::FENCE);
    let record = run(&*portal, Descriptor::batch(address(&list), 3));
    assert_eq!((record.status(), record.bytes_completed()), (Status::BatchFail, 2));
    assert!(records[2].status().is_none());
}

#[test]
fn a_full_shared_queue_answers_retry_and_loses_nothing() {
    for runner in RUNNERS {
        let options = ModelOptions::default().with_config(Config::single(WqMode::Shared, 16, 1)).with_runner(runner);
        let device = ModelDevice::start(options).unwrap();
        let portal = device.portal("wq0.0").unwrap();
        device.hold(true);
        let records: Vec<RecordCell> = (0..17).map(|_| RecordCell::new()).collect();
        for (n, record) in records.iter().enumerate() {
            let expected = if n < 16 { Offer::Taken } else { Offer::Retry };
            assert_eq!(offer(&*portal, Descriptor::nop().with_record(record.address())), expected);
        }
        device.hold(false);
        for record in &records[..16] {
            assert_eq!(wait(&*portal, record).status(), Status::Success);
        }
        assert!(records[16].status().is_none());
    }
}

#[test]
fn an_overrun_dedicated_queue_drops_and_raises_0x53() {
    let options = ModelOptions::default().with_config(Config::single(WqMode::Dedicated, 4, 1));
    let device = ModelDevice::start(options).unwrap();
    let portal = device.portal("wq0.0").unwrap();
    device.hold(true);
    for _ in 0..5 {
        assert_eq!(offer(&*portal, Descriptor::nop()), Offer::Taken);
    }
    // SAFETY: no event log is configured.
    let error = unsafe { device.device() }.sw_error();
    assert!(error.valid());
    assert_eq!((error.error_code(), error.wq_index()), (0x53, 0));
    device.hold(false);
}

#[test]
fn disabling_a_queue_finishes_what_it_holds() {
    for runner in RUNNERS {
        let device = ModelDevice::start(ModelOptions::default().with_runner(runner)).unwrap();
        let portal = device.portal("wq0.4").unwrap();
        let records: Vec<RecordCell> = (0..8).map(|_| RecordCell::new()).collect();
        for record in &records {
            assert_eq!(offer(&*portal, Descriptor::nop().with_record(record.address())), Offer::Taken);
        }
        device.command(Command::new(CommandCode::DisableWq, 1 << 4)).unwrap();
        assert!(records.iter().all(|record| record.status().is_some()));
        assert_eq!(offer(&*portal, Descriptor::nop()), Offer::Retry);
    }
}

#[test]
fn an_abort_leaves_records_unwritten() {
    let options = ModelOptions::default().with_config(Config::single(WqMode::Shared, 16, 1));
    let device = ModelDevice::start(options).unwrap();
    let portal = device.portal("wq0.0").unwrap();
    device.hold(true);
    let record = RecordCell::new();
    assert_eq!(offer(&*portal, Descriptor::nop().with_record(record.address())), Offer::Taken);
    device.command(Command::new(CommandCode::AbortWq, 1)).unwrap();
    device.hold(false);
    assert!(record.status().is_none());
    assert_eq!(run(&*portal, Descriptor::nop()).status(), Status::Success);
}

#[test]
fn a_strict_device_reports_pages_never_touched() {
    let device = ModelDevice::start(ModelOptions::default().with_residency(Residency::Strict)).unwrap();
    let portal = device.portal("wq0.0").unwrap();
    let src = vec![1_u8; 3 << 20];
    // Fresh from the system, so none of its pages is present yet.
    let dst = vec![0_u8; 3 << 20];
    let copy = Descriptor::memory_move(address(&src), address(&dst), 3 << 20);
    let record = run(&*portal, copy);
    assert_eq!(record.status(), Status::PageFault);
    assert!(record.status_byte().is_write());
    assert_eq!(run(&*portal, copy.and_flags(Flags::BLOCK_ON_FAULT)).status(), Status::Success);
    assert_eq!(std::hint::black_box(&dst), &src);
}

#[test]
fn many_submitters_on_one_shared_queue_all_get_their_own_bytes() {
    for runner in RUNNERS {
        let options = ModelOptions::default().with_config(Config::single(WqMode::Shared, 32, 4)).with_runner(runner);
        let device = ModelDevice::start(options).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let portal: Arc<dyn Portal> = device.portal("wq0.0").unwrap();
                scope.spawn(move || {
                    let record = RecordCell::new();
                    for round in 0..500_u32 {
                        let src = [thread ^ round.to_le_bytes()[0]; 96];
                        let dst = [0_u8; 96];
                        record.clear();
                        let copy =
                            Descriptor::memory_move(address(&src), address(&dst), 96).with_record(record.address());
                        while offer(&*portal, copy) == Offer::Retry {
                            std::thread::yield_now();
                        }
                        assert_eq!(wait(&*portal, &record).status(), Status::Success);
                        assert_eq!(std::hint::black_box(&dst), &src);
                    }
                });
            }
        });
    }
}

#[test]
fn an_unattended_device_is_enabled_as_configured_and_refuses_as_any_other() {
    let config = Config::single(WqMode::Shared, 16, 2);
    let spr = Preset::Spr.capabilities();
    let device = ModelDevice::unattended(spr, PciControl::SHARED_VIRTUAL_MEMORY, &config).unwrap();
    assert_eq!(device.wq_state(0), WqState::Enabled);
    let no_pasid = PciControl { pasid: false, ..PciControl::SHARED_VIRTUAL_MEMORY };
    let refused = ModelDevice::unattended(spr, no_pasid, &config).unwrap_err();
    assert!(matches!(refused, StartError::Command(_)), "{refused}");
}
