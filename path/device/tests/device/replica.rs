//! A device made from one queue's registers.
#![allow(unsafe_code, reason = "the tests vouch for their own buffers")]

use telpher_abi::registers::{GenCfg, GrpCfg, PortalKind, WqCfg};
use telpher_abi::{CompletionRecord, Descriptor, DeviceError, Status, StatusByte};
use telpher_device::{ModelDevice, ModelOptions, Preset, QueueImage, ReplicaReport, Runner, StartError};
use telpher_mem::{Local, Space, StableBufMut, Strict, WriteHint};
use telpher_model::{Capabilities, Identity, Write};
use telpher_portal::{Offer, RecordCell, Submission};

const PASID: u32 = 1;
const SHARED: Write = Write::Deferrable(Identity { pasid: PASID, privileged: false });

fn image(dedicated: bool) -> QueueImage {
    let wq_cfg = WqCfg::default()
        .with_size(8)
        .with_threshold(if dedicated { 0 } else { 6 })
        .with_dedicated(dedicated)
        .with_priority(1)
        .with_pasid_enable(true)
        .with_pasid(if dedicated { PASID } else { 0 })
        .with_max_batch_shift(5)
        .with_max_transfer_shift(20)
        .with_op_config(Preset::Full.capabilities().op_cap);
    // The bits of two queues: the neighbour's must be ignored.
    let grp_cfg =
        GrpCfg::default().with_wqs(0b1010).with_engines(0b1100).with_tc_a(1).with_tc_b(1).with_read_buffers_allowed(96);
    let gen_cfg = GenCfg::default().with_global_read_buffer_limit(96).0[0];
    QueueImage { wq: 3, group: 2, gen_cfg, grp_cfg, wq_cfg, event_log_entries: 0 }
}

fn memory() -> Box<dyn Space> {
    // SAFETY: the descriptors below use buffers of their tests, or unmapped addresses.
    Box::new(unsafe { Local::new() })
}

fn options(runner: Runner) -> ModelOptions {
    ModelOptions::of(Preset::Full).with_runner(runner)
}

fn start(image: &QueueImage) -> ModelDevice {
    ModelDevice::replica(options(Runner::Inline), image, PASID, memory()).unwrap()
}

fn submit(device: &ModelDevice, write: Write, descriptor: Descriptor) -> Offer {
    // SAFETY: as in `memory`; every buffer outlives the wait for its record.
    device.submit(3, PortalKind::LimitedMsix, write, &unsafe { Submission::vouch(descriptor) })
}

/// Returns the device's reports for its driver, which accesses the same memory.
fn notices(device: &ModelDevice) -> Vec<ReplicaReport> {
    let mut notices = Vec::new();
    device.take_reports(memory().as_ref(), |notice| notices.push(notice));
    notices
}

#[test]
fn a_queue_of_an_image_executes_for_its_pasid() {
    for runner in [Runner::Inline, Runner::Threaded] {
        let device = ModelDevice::replica(options(runner), &image(false), PASID, memory()).unwrap();
        let (source, mut target, record) = ([7_u8; 100], [0_u8; 100], RecordCell::new());
        let copy = Descriptor::memory_move(source.as_ptr() as u64, target.as_mut_ptr() as u64, 100);
        assert_eq!(submit(&device, SHARED, copy.with_record(record.address())), Offer::Taken);
        assert!(device.drain(|| false));
        assert_eq!(record.read().unwrap().status(), Status::Success);
        assert_eq!(source, target);
        assert_eq!(device.enabled_queues(), [3]);
    }
}

#[test]
fn the_wrong_kind_of_write_is_lost_or_answered_by_retry() {
    let nop = Descriptor::nop();
    assert_eq!(submit(&start(&image(false)), Write::Posted, nop), Offer::Lost);
    assert_eq!(submit(&start(&image(true)), SHARED, nop), Offer::Retry);
    assert_eq!(submit(&start(&image(true)), Write::Posted, nop), Offer::Taken);
}

#[test]
fn a_full_shared_queue_answers_retry_at_its_threshold_and_a_full_dedicated_one_reports() {
    let shared = start(&image(false));
    shared.hold(true);
    for _ in 0..6 {
        assert_eq!(submit(&shared, SHARED, Descriptor::nop()), Offer::Taken);
    }
    assert_eq!((submit(&shared, SHARED, Descriptor::nop()), shared.occupancy(3)), (Offer::Retry, 6));
    shared.hold(false);
    assert!(shared.drain(|| false));
    assert_eq!((shared.occupancy(3), shared.has_reports()), (0, false));

    let dedicated = start(&image(true));
    dedicated.hold(true);
    for _ in 0..8 {
        assert_eq!(submit(&dedicated, Write::Posted, Descriptor::nop()), Offer::Taken);
    }
    assert_eq!(submit(&dedicated, Write::Posted, Descriptor::nop()), Offer::Lost);
    assert!(dedicated.has_reports());
    let error = dedicated.take_sw_error().unwrap();
    assert_eq!((error.error_code(), error.wq_index()), (DeviceError::QueueOverflow.code(), 3));
    assert_eq!(dedicated.take_sw_error(), None);
    assert!(!dedicated.has_reports());
}

#[test]
fn a_device_made_to_halt_takes_nothing_and_reports_it() {
    let device = start(&image(false));
    device.halt();
    assert!(device.is_halted() && device.has_reports());
    assert_eq!(submit(&device, SHARED, Descriptor::nop()), Offer::Retry);
    let [ReplicaReport::Halt(error)] = notices(&device)[..] else { panic!("no halt") };
    assert_eq!(error.error_code(), DeviceError::ConfigurationChange.code());
    assert!(device.drain(|| false), "nothing to wait for");
}

#[test]
fn a_drain_that_cannot_finish_is_given_up() {
    let device = start(&image(false));
    device.hold(true);
    assert_eq!(submit(&device, SHARED, Descriptor::nop()), Offer::Taken);
    let mut looks = 0;
    assert!(!device.drain(|| {
        looks += 1;
        looks == 3
    }));
    device.hold(false);
    assert!(device.drain(|| false), "the one that was given up is brought to its end first");
}

/// The record cannot be written, and the function has no page requests: the log holds the record.
#[test]
fn the_replicas_own_log_holds_records_that_cannot_be_written() {
    let gen_cfg = GenCfg::default().with_global_read_buffer_limit(96).with_event_log(true).0[0];
    let entries = 64;
    let wq_cfg = image(false).wq_cfg.with_prs_disable(true);
    let image = QueueImage { gen_cfg, wq_cfg, event_log_entries: entries, ..image(false) };
    let device = start(&image);
    let nowhere = 0x20;
    // More than the log holds, so that it wraps around.
    for round in 0..3 * u64::from(entries) {
        assert_eq!(submit(&device, SHARED, Descriptor::nop().with_record(nowhere)), Offer::Taken);
        assert!(device.has_reports(), "round {round}");
        let [ReplicaReport::Logged { entry, settled: false }] = notices(&device)[..] else { panic!("round {round}") };
        assert_eq!(entry.error_code(), Status::CompletionRecordFault.code());
        assert_eq!((entry.address(), entry.pasid(), entry.record_required()), (nowhere, PASID, true));
        assert_eq!(CompletionRecord(entry.record().0).status(), Status::Success);
        assert!(!device.has_reports());
    }
}

#[test]
fn without_its_capability_there_is_no_log() {
    let image =
        QueueImage { gen_cfg: GenCfg::default().with_event_log(true).0[0] | 96, event_log_entries: 64, ..image(true) };
    let device = ModelDevice::replica(ModelOptions::of(Preset::Spr), &image, PASID, memory()).unwrap();
    assert_eq!(notices(&device), []);
}

#[test]
fn an_image_no_driver_could_have_enabled_is_refused_with_the_devices_reason() {
    let image = QueueImage { wq_cfg: WqCfg::default(), ..image(true) };
    let refused = ModelDevice::replica(options(Runner::Inline), &image, PASID, memory());
    assert!(matches!(refused, Err(StartError::Command(_))), "{refused:?}");
    let capabilities = Capabilities { msix_entries: 0, ..Preset::Spr.capabilities() };
    let refused =
        ModelDevice::replica(ModelOptions { capabilities, ..options(Runner::Inline) }, &image, PASID, memory());
    assert!(matches!(refused, Err(StartError::Capabilities(_))), "{refused:?}");
}

#[test]
fn an_untouched_page_faults_in_a_strict_space_and_the_log_does_not() {
    let region = telpher_mem::Region::new(4096, telpher_mem::PageSize::Small).unwrap();
    let gen_cfg = GenCfg::default().with_global_read_buffer_limit(96).with_event_log(true).0[0];
    let wq_cfg = image(false).wq_cfg.with_prs_disable(true);
    let image = QueueImage { gen_cfg, wq_cfg, event_log_entries: 64, ..image(false) };
    // SAFETY: as in `memory`.
    let strict = Strict::new(unsafe { Local::new() });
    let device = ModelDevice::replica(options(Runner::Inline), &image, PASID, Box::new(strict)).unwrap();
    let untouched = region.as_ptr() as u64;
    assert_eq!(submit(&device, SHARED, Descriptor::nop().with_record(untouched)), Offer::Taken);
    // The driver's own write brings the page in.
    let [ReplicaReport::Logged { entry, settled: true }] = notices(&device)[..] else { panic!("no entry") };
    assert_eq!(entry.address(), untouched);
    let mut status = [0];
    memory().read(untouched, &mut status).unwrap();
    assert_eq!(status, [StatusByte::new(Status::Success).0]);
}

/// Returns the batch record that the driver writes, for a batch in an event log with a member whose record the driver
/// could not write either.
fn batch_record_that_the_driver_writes(members: u32, readable: u32) -> CompletionRecord {
    let mut list = telpher_mem::Region::new(8192, telpher_mem::PageSize::Small).unwrap();
    let gen_cfg = GenCfg::default().with_global_read_buffer_limit(96).with_event_log(true).0[0];
    let wq_cfg = image(false).wq_cfg.with_prs_disable(true);
    let image = QueueImage { gen_cfg, wq_cfg, event_log_entries: 64, ..image(false) };
    // SAFETY: as in `memory`.
    let strict = Strict::new(unsafe { Local::new() });
    let device = ModelDevice::replica(options(Runner::Inline), &image, PASID, Box::new(strict)).unwrap();
    // The second page is never touched, so the list cannot be read there.
    let first = list.address_mut() + 4096 - u64::from(readable) * 64;
    let nowhere = 0x20;
    for index in 0..readable {
        let member = Descriptor::nop().with_record(nowhere);
        memory().write(first + u64::from(index) * 64, &member.to_bytes(), WriteHint::Cache).unwrap();
    }
    let record = RecordCell::new();
    let batch = Descriptor::batch(first, members).with_record(record.address());
    assert_eq!(submit(&device, SHARED, batch), Offer::Taken);
    let notices = notices(&device);
    let last = notices.last().copied();
    let Some(ReplicaReport::Logged { entry, settled: true }) = last else { panic!("the batch's entry is {last:?}") };
    assert_eq!(entry.error_code(), Status::BatchEventLog.code());
    assert_eq!(notices.len(), readable as usize + 1);
    record.read().unwrap()
}

/// Linux changes only a Success. The status of an unreadable list must reach the program; otherwise it would not resume
/// after that point.
#[test]
fn the_driver_keeps_the_status_of_a_batch_whose_list_could_not_be_read() {
    let unread = batch_record_that_the_driver_writes(3, 2);
    assert_eq!((unread.status(), unread.bytes_completed(), unread.result()), (Status::BatchPageFault, 2, 1));
    let read = batch_record_that_the_driver_writes(2, 2);
    assert_eq!((read.status(), read.bytes_completed(), read.result()), (Status::BatchFail, 2, 1));
}
