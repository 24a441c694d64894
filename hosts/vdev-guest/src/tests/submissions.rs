//! Submissions to the queue and their results.

use super::{PAGE, case, dedicated, map, open, pointer};
use crate::submit::Portals;
use crate::sys::Errno;
use telpher_abi::registers::{GenCfg, WqCfg};
use telpher_abi::{CompletionRecord, Descriptor, DeviceError, Status};
use telpher_interpose::{Handler, Monitor, Offer, SubmitInstruction};
use telpher_portal::RecordCell;
use telpher_vdev_wire::message::{ReportKind, STRICT, THREADED};

fn enqcmd(portal: u64, descriptor: Descriptor) -> Offer {
    Portals.enqueue(SubmitInstruction::Enqcmd, portal, &descriptor.0)
}

fn write(fd: i32, descriptors: &[Descriptor]) -> Result<usize, Errno> {
    crate::submit::write(fd, descriptors.as_ptr().cast(), size_of_val(descriptors))
}

fn nop(record: &RecordCell) -> Descriptor {
    Descriptor::nop().with_record(record.address())
}

pub(crate) fn await_status(record: &RecordCell) -> Status {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    loop {
        if let Some(record) = record.read() {
            return record.status();
        }
        assert!(std::time::Instant::now() < end, "no record");
        std::thread::yield_now();
    }
}

#[test]
fn a_copy_through_the_portal_is_executed_in_this_process() {
    for flags in [0, THREADED, STRICT] {
        case(
            "tests::submissions::a_copy_through_the_portal_is_executed_in_this_process",
            |opened| opened.flags |= flags,
            |_| {
                let portal = map(open()).unwrap();
                let (source, mut target) = (vec![0x5a_u8; 100_000], vec![0_u8; 100_000]);
                for offset in (0..PAGE as u64).step_by(64) {
                    target.fill(0);
                    let record = RecordCell::new();
                    let copy = Descriptor::memory_move(source.as_ptr() as u64, target.as_mut_ptr() as u64, 100_000);
                    assert_eq!(enqcmd(portal + offset, copy.with_record(record.address())), Offer::Taken);
                    assert_eq!(await_status(&record), Status::Success);
                    assert_eq!(source, target);
                }
            },
        );
    }
}

#[test]
fn a_program_may_use_the_number_of_the_pagemap() {
    let adapt = |opened: &mut telpher_vdev_wire::message::Opened| opened.flags |= STRICT;
    case("tests::submissions::a_program_may_use_the_number_of_the_pagemap", adapt, |_| {
        let (fd, record) = (open(), RecordCell::new());
        let kept = crate::guard::next(0).unwrap();
        let mut target = [0_u8; 64];
        let fill = Descriptor::fill(0x11, target.as_mut_ptr() as u64, 64).with_record(record.address());
        assert_eq!(crate::guard::make_room(kept, crate::node::guard_moved), Ok(true));
        // SAFETY: the number is free for the program now.
        unsafe {
            let zeros = libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY);
            assert_eq!(libc::dup2(zeros, kept), kept);
        }
        assert_eq!(write(fd, &[fill]), Ok(64));
        assert_eq!(await_status(&record), Status::Success);
        assert_eq!(target[0], 0x11);
    });
}

#[test]
fn a_posted_write_to_a_shared_queue_is_lost() {
    case(
        "tests::submissions::a_posted_write_to_a_shared_queue_is_lost",
        |_| (),
        |_| {
            let (portal, record) = (map(open()).unwrap(), RecordCell::new());
            let _ = Portals.enqueue(SubmitInstruction::Movdir64b, portal, &nop(&record).0);
            assert_eq!(record.read(), None);
        },
    );
}

#[test]
fn enqcmd_to_a_dedicated_queue_gets_retry() {
    case("tests::submissions::enqcmd_to_a_dedicated_queue_gets_retry", dedicated, |_| {
        let (portal, record) = (map(open()).unwrap(), RecordCell::new());
        assert_eq!(enqcmd(portal, nop(&record)), Offer::Retry);
        assert_eq!(record.read(), None);
        for how in [SubmitInstruction::Movdir64b, SubmitInstruction::Store] {
            let record = RecordCell::new();
            let _ = Portals.enqueue(how, portal, &nop(&record).0);
            assert_eq!(record.read().unwrap().status(), Status::Success);
        }
    });
}

#[test]
fn other_processes_claims_leave_a_process_its_share() {
    case(
        "tests::submissions::other_processes_claims_leave_a_process_its_share",
        |_| (),
        |host| {
            let (portal, record) = (map(open()).unwrap(), RecordCell::new());
            let (board, rows) = (host.board(), host.rows());
            board.as_ref().used.store(10, std::sync::atomic::Ordering::Relaxed);
            board.as_ref().files.store(10, std::sync::atomic::Ordering::Relaxed);
            // Whatever another process claims, this one's share is free: it never gets Retry.
            let row = rows.as_ref().row(9).unwrap();
            for others in [11, 12, u32::MAX, 0] {
                row.store(others, std::sync::atomic::Ordering::Relaxed);
                for _ in 0..1000 {
                    assert_eq!(enqcmd(portal, nop(&record)), Offer::Taken, "{others}");
                }
            }
            assert_eq!(
                rows.as_ref().row(3).unwrap().load(std::sync::atomic::Ordering::Relaxed),
                0,
                "nothing of ours waits"
            );
        },
    );
}

#[test]
fn a_disabled_queue_accepts_nothing() {
    case(
        "tests::submissions::a_disabled_queue_accepts_nothing",
        |_| (),
        |host| {
            let fd = open();
            let (portal, record) = (map(fd).unwrap(), RecordCell::new());
            host.set_enabled(false);
            assert_eq!(enqcmd(portal, nop(&record)), Offer::Retry);
            assert_eq!(write(fd, &[nop(&record)]), Err(Errno::AGAIN));
            host.set_enabled(true);
            assert_eq!(enqcmd(portal, nop(&record)), Offer::Taken);
            // A queue that is enabled again is another queue: its configuration may differ.
            host.board().as_ref().generation.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            assert_eq!(enqcmd(portal, nop(&record)), Offer::Retry);
        },
    );
}

#[test]
fn write_accepts_whole_descriptors_and_returns_the_bytes() {
    case(
        "tests::submissions::write_accepts_whole_descriptors_and_returns_the_bytes",
        |_| (),
        |_| {
            let fd = open();
            let records = [RecordCell::new(), RecordCell::new(), RecordCell::new()];
            let all: Vec<Descriptor> = records.iter().map(nop).collect();
            assert_eq!(crate::submit::write(fd, all.as_ptr().cast(), 2 * 64 + 63), Ok(128));
            assert_eq!(records.each_ref().map(|record| record.read().is_some()), [true, true, false]);
            assert_eq!(crate::submit::write(fd, all.as_ptr().cast(), 63), Ok(0));
            // The second is refused after the first was submitted.
            let misaligned = Descriptor::nop().with_record(records[0].address() + 8);
            assert_eq!(write(fd, &[all[2], misaligned]), Ok(64));
            assert_eq!(write(fd, &[misaligned]), Err(Errno::INVAL));
            // Checked even if no record is requested.
            let mut silent = Descriptor::nop();
            silent.0[1] = 8;
            assert_eq!(write(fd, &[silent]), Err(Errno::INVAL));
            assert_eq!(crate::submit::write(fd, std::ptr::without_provenance(8), 64), Err(Errno::FAULT));
            let read_only = crate::node::open(super::NODE, 0).unwrap();
            assert_eq!(write(read_only, &[all[0]]), Err(Errno::BADF));
        },
    );
}

#[test]
fn write_returns_the_drivers_errors() {
    let adapt = |opened: &mut telpher_vdev_wire::message::Opened| opened.write_batch_errno = libc::EINVAL;
    case("tests::submissions::write_returns_the_drivers_errors", adapt, |_| {
        let fd = open();
        let record = RecordCell::new();
        let list = [nop(&RecordCell::new()), nop(&RecordCell::new())];
        let batch = Descriptor::batch(list.as_ptr() as u64, 2).with_record(record.address());
        assert_eq!(write(fd, &[batch]), Err(Errno::INVAL));
        assert_eq!(write(fd, &[nop(&record)]), Ok(64));
    });
}

#[test]
fn a_full_dedicated_queue_is_reported_to_the_driver() {
    let adapt = |opened: &mut telpher_vdev_wire::message::Opened| {
        dedicated(opened);
        opened.flags |= THREADED;
    };
    case("tests::submissions::a_full_dedicated_queue_is_reported_to_the_driver", adapt, |host| {
        let portal = map(open()).unwrap();
        // Long enough that the 16 entries fill up while the first is copied.
        let (source, mut target) = (vec![1_u8; 1 << 21], vec![0_u8; 1 << 21]);
        let copy = Descriptor::memory_move(source.as_ptr() as u64, target.as_mut_ptr() as u64, 1 << 21);
        for _ in 0..200 {
            let _ = Portals.enqueue(SubmitInstruction::Movdir64b, portal, &copy.0);
        }
        let reports = host.reports();
        assert!(!reports.is_empty());
        for report in reports {
            assert_eq!(report.kind, ReportKind::SwError as u32);
            let [first, second, third, fourth, ..] = report.words;
            let error = telpher_abi::SwError([first, second, third, fourth]);
            assert_eq!((error.error_code(), error.wq_index()), (DeviceError::QueueOverflow.code(), 0));
        }
        super::processes::finish();
    });
}

/// The device has no page requests, so the record's fault goes to the log, and the driver populates the page.
#[test]
fn a_record_that_faults_is_written_by_the_driver_from_its_log() {
    for flags in [STRICT, STRICT | THREADED] {
        let adapt = |opened: &mut telpher_vdev_wire::message::Opened| {
            opened.flags |= flags;
            opened.event_log_entries = 64;
            opened.gen_cfg |= GenCfg::default().with_event_log(true).0[0];
            opened.wq_cfg = WqCfg(opened.wq_cfg).with_block_on_fault(false).with_prs_disable(true).0;
        };
        case("tests::submissions::a_record_that_faults_is_written_by_the_driver_from_its_log", adapt, |host| {
            let portal = map(open()).unwrap();
            // Never touched.
            let record =
                super::map_as(-1, PAGE, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let record = record.unwrap();
            assert_eq!(enqcmd(portal, Descriptor::nop().with_record(record)), Offer::Taken);
            // SAFETY: the page mapped above.
            let status = || unsafe { pointer(record).cast::<u8>().read_volatile() };
            while status() == 0 {
                std::thread::yield_now();
            }
            assert_eq!(Status::from_code(status()), Status::Success);
            // Not mapped at all: the driver cannot write it either.
            assert_eq!(enqcmd(portal, Descriptor::nop().with_record(0x20)), Offer::Taken);
            super::processes::finish();
            let kinds: Vec<u32> = host.reports().iter().map(|report| report.kind).collect();
            let (log, failed) = (ReportKind::EventLog as u32, ReportKind::EventLogFailed as u32);
            assert_eq!(kinds, [log, log, failed]);
            assert_eq!(host.reports()[1].words[2], 0x20, "address");
        });
    }
}

#[test]
fn a_wait_ends_with_its_line_its_deadline_or_the_limit() {
    case(
        "tests::submissions::a_wait_ends_with_its_line_its_deadline_or_the_limit",
        |_| (),
        |_| {
            let line = Box::new(CompletionRecord::default());
            let address = std::ptr::from_ref(&*line).addr() as u64 & !63;
            let mut held = [0; 8];
            for (at, word) in held.iter_mut().enumerate() {
                // SAFETY: the line around a box's first bytes belongs to the heap; a volatile read is what a monitor
                // does.
                *word = unsafe { pointer(address).cast::<u64>().add(at).read_volatile() };
            }
            let armed = Monitor { address, line: held };
            assert!(Portals.wait(Some(&armed), 0, u64::MAX), "the system's limit");
            assert!(Portals.wait(None, 0, u64::MAX), "the system's limit");
            assert!(!Portals.wait(Some(&armed), 0, 0), "a deadline that has passed");
            let changed = Monitor { line: held.map(|word| word ^ 1), ..armed };
            assert!(!Portals.wait(Some(&changed), 0, u64::MAX), "a line that has changed");
            assert!(
                !Portals.wait(Some(&Monitor { address: 1 << 63, line: [0; 8] }), 0, u64::MAX),
                "a line that is gone"
            );
        },
    );
}
