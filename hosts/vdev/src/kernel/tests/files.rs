//! Nodes: open, attach, write, release, reports. Source: K612 `cdev.c`; observed clients.

use super::*;
use crate::tree::Entry;
use Stage::{Configured, Enabled};
use telpher_abi::registers::{DeviceState, GrpCfg, WqCfg, WqState};
use telpher_abi::{EventLogEntry, SwError};
use telpher_vdev_wire::message::{DEDICATED, Opened, Report, ReportKind};

const LATEST: Abi = Abi::V6_12;
const SHARED: &str = "/dev/dsa/wq0.0";
const OWN: &str = "/dev/dsa/wq0.1";

fn enabled() -> Kernel {
    brought(Preset::Spr, LATEST, Enabled)
}

#[test]
fn a_dedicated_queue_opens_once_and_again_after_release() {
    let mut kernel = enabled();
    let first = kernel.open(OWN, caller(10, 1)).unwrap();
    for other in [caller(10, 1), caller(11, 2)] {
        assert_eq!(kernel.open(OWN, other), Err(Errno::BUSY));
    }
    assert_eq!(get(&mut kernel, "wq0.1/clients").as_deref(), Ok("1"));
    kernel.release(first.open);
    assert_eq!(get(&mut kernel, "wq0.1/clients").as_deref(), Ok("0"));
    assert!(kernel.open(OWN, caller(11, 2)).is_ok());
    kernel.release(first.open);
    assert_eq!(get(&mut kernel, "wq0.1/clients").as_deref(), Ok("1"), "a second release is ignored");
}

#[test]
fn a_shared_queue_opens_for_all_and_each_address_space_has_its_own_pasid() {
    let mut kernel = enabled();
    let one = kernel.open(SHARED, caller(10, 1)).unwrap();
    let again = kernel.open("/dev/char/511:0", caller(10, 1)).unwrap();
    let other = kernel.open(SHARED, caller(11, 2)).unwrap();
    assert_eq!(one.pasid, again.pasid);
    assert_ne!(one.pasid, other.pasid);
    assert_ne!(one.open, again.open);
    assert_eq!(get(&mut kernel, "wq0.0/clients").as_deref(), Ok("3"));
    assert_eq!(get(&mut kernel, "dsa0/clients").as_deref(), Ok("3"));
    assert_eq!(kernel.show("/sys/module/idxd/refcnt"), Ok(b"3\n".to_vec()));
    for open in [one.open, again.open, other.open] {
        kernel.release(open);
    }
    assert_eq!(get(&mut kernel, "dsa0/clients").as_deref(), Ok("0"));
    assert_eq!(kernel.open(SHARED, caller(10, 1)).unwrap().pasid, one.pasid, "as long as the address space exists");
}

#[test]
fn only_nodes_open() {
    let mut kernel = enabled();
    assert_eq!(kernel.open("/dev/dsa/wq0.2", caller(1, 1)), Err(Errno::NOENT));
    assert_eq!(kernel.open("/dev/char/511:9", caller(1, 1)), Err(Errno::NOENT));
    assert_eq!(kernel.open("/dev/dsa", caller(1, 1)), Err(Errno::ISDIR));
    assert_eq!(kernel.open(&path("dsa0/state"), caller(1, 1)), Err(Errno::NXIO));
    assert_eq!(kernel.attach(77, caller(1, 1)), Err(Errno::BADF));
    assert_eq!(kernel.may_write(77, caller(1, 1), false), Err(Errno::BADF));
    assert_eq!(kernel.report(77, &Report::default()), Err(Errno::BADF));
}

#[test]
fn a_child_and_an_executed_program_are_not_the_opener() {
    let mut kernel = enabled();
    let opened = kernel.open(SHARED, caller(10, 1)).unwrap();
    assert_eq!(kernel.attach(opened.open, caller(10, 1)), Ok(opened));
    for other in [caller(11, 2), caller(10, 3), caller(10, 0)] {
        assert_eq!(kernel.attach(opened.open, other), Err(Errno::PERM), "{other:?}");
        assert_eq!(kernel.may_write(opened.open, other, false), Err(Errno::PERM), "{other:?}");
    }
}

#[test]
fn a_file_opened_without_a_guest_belongs_to_the_first_guest_of_its_process_that_attaches() {
    let mut kernel = enabled();
    for node in [SHARED, OWN] {
        let opened = kernel.open(node, caller(10, 0)).unwrap();
        assert_eq!(kernel.attach(opened.open, caller(11, 5)), Err(Errno::PERM), "another process");
        let joined = kernel.attach(opened.open, caller(10, 7)).unwrap();
        assert_eq!((joined.open, joined.pasid), (opened.open, opened.pasid));
        assert_eq!(kernel.attach(opened.open, caller(10, 8)), Err(Errno::PERM), "the process after exec()");
        assert!(kernel.may_write(opened.open, caller(10, 7), false).is_ok());
        kernel.release(opened.open);
    }
    // An address space number that already has a PASID keeps it.
    let known = kernel.open(SHARED, caller(20, 9)).unwrap();
    let bare = kernel.open(OWN, caller(20, 0)).unwrap();
    assert_ne!(bare.pasid, known.pasid);
    let joined = kernel.attach(bare.open, caller(20, 9)).unwrap();
    assert_eq!(joined.pasid, known.pasid);
    assert_eq!(WqCfg(joined.wq_cfg).pasid(), known.pasid, "the queue gets it");
}

#[test]
fn open_files_are_in_sysfs_from_6_4_on() {
    for abi in Abi::ALL {
        let mut kernel = fresh(Preset::Spr, abi);
        script(&mut kernel, SETTINGS_DEDICATED);
        bind(&mut kernel, "idxd", "dsa0").unwrap();
        bind(&mut kernel, "user", "wq0.1").unwrap();
        let before = kernel.structure();
        let opened = kernel.open(OWN, caller(4711, 1)).unwrap();
        let directory = "wq0.1/dsa!wq0.1/file0";
        if abi >= Abi::V6_6 {
            assert_eq!(get(&mut kernel, &format!("{directory}/pid")).as_deref(), Ok("4711"));
            assert_eq!(get(&mut kernel, &format!("{directory}/cr_faults")).as_deref(), Ok("0"));
            assert_eq!(get(&mut kernel, &format!("{directory}/cr_fault_failures")).as_deref(), Ok("0"));
            assert_ne!(kernel.structure(), before);
            assert!(kernel.entry(&path("file0")).is_ok());
        } else {
            assert_eq!(kernel.structure(), before);
        }
        kernel.release(opened.open);
        assert_eq!(kernel.entry(&path(directory)), Err(Errno::NOENT), "{abi:?}");
        assert_eq!(kernel.entry(&path("file0")), Err(Errno::NOENT), "{abi:?}");
    }
}

/// A single dedicated queue, which every kernel version has.
const SETTINGS_DEDICATED: &[(&str, &str)] = &[
    ("engine0.0/group_id", "0"),
    ("wq0.1/group_id", "0"),
    ("wq0.1/mode", "dedicated"),
    ("wq0.1/size", "16"),
    ("wq0.1/priority", "10"),
    ("wq0.1/type", "user"),
    ("wq0.1/name", "two"),
    ("wq0.1/driver_name", "user"),
];

#[test]
fn file_numbers_are_the_lowest_free() {
    let mut kernel = enabled();
    let opens: Vec<u64> = (0..3).map(|_| kernel.open(SHARED, caller(1, 1)).unwrap().open).collect();
    kernel.release(opens[1]);
    assert_eq!(kernel.entry(&path("wq0.0/dsa!wq0.0/file1")), Err(Errno::NOENT));
    kernel.open(OWN, caller(1, 1)).unwrap();
    assert_eq!(kernel.entry(&path("wq0.1/dsa!wq0.1/file1")), Ok(Entry::Directory));
    assert_eq!(kernel.entry(&path("wq0.0/dsa!wq0.0/file2")), Ok(Entry::Directory));
}

#[test]
fn user_submission_depends_on_kernel_version_and_privilege() {
    let (refused, eperm, einval) = (Errno::INVAL, Errno::PERM.raw_os_error(), Errno::INVAL.raw_os_error());
    for (abi, rawio, mmap, write, batch) in [
        (Abi::V5_15, false, 0, einval, 0),
        (Abi::V6_1, false, eperm, 0, einval),
        (Abi::V6_6, false, eperm, 0, einval),
        (Abi::V6_12, false, eperm, 0, einval),
        (Abi::V6_12, true, 0, 0, einval),
    ] {
        let mut kernel = Kernel::new(&Hardware::default(), abi, rawio).unwrap();
        script(&mut kernel, SETTINGS_DEDICATED);
        bind(&mut kernel, "idxd", "dsa0").unwrap();
        bind(&mut kernel, "user", "wq0.1").unwrap();
        let opened = kernel.open(OWN, caller(1, 1)).unwrap();
        assert_eq!((opened.mmap_errno, opened.write_errno, opened.write_batch_errno), (mmap, write, batch), "{abi:?}");
        let may = |batch| kernel.may_write(opened.open, caller(1, 1), batch);
        assert_eq!(may(false), if write == 0 { Ok(()) } else { Err(refused) }, "{abi:?}");
        assert_eq!(may(true), Err(refused), "{abi:?}");
        // With rawio the portal can be mapped, but the operation stays hidden.
        let operations = get(&mut kernel, "dsa0/op_cap").unwrap();
        let hidden = if abi == Abi::V5_15 { "0x1003f03ff 0 0 0" } else { "00000001,003f03fd" };
        assert!(operations.ends_with(hidden), "{abi:?}: {operations}");
    }
}

/// A device set up as the guest does it: this queue, its group, its engines.
fn replica(opened: &Opened) -> Box<telpher_model::Device> {
    use telpher_abi::registers::{Command, CommandCode, offset};
    let capabilities = opened.capabilities();
    let pci = telpher_model::PciControl::SHARED_VIRTUAL_MEMORY;
    let device = telpher_model::Device::new(capabilities, pci).unwrap();
    // This test has no memory for an event log.
    device.write_register(offset::GENCFG, 4, opened.gen_cfg & !(1 << 13));
    let table = |base: u64, stride: u64, index: u32, words: &[u64]| {
        for (word, at) in words.iter().zip((base + stride * u64::from(index)..).step_by(8)) {
            device.write_register(at, 8, *word);
        }
    };
    let words = 4 << capabilities.wq_cap.wqcfg_size_shift();
    table(telpher_model::layout::GRPCFG, 64, opened.group, &opened.grp_cfg);
    table(telpher_model::layout::WQCFG, 8 * words as u64, opened.wq, &opened.wq_cfg[..words]);
    for (code, operand) in [(CommandCode::EnableDevice, 0), (CommandCode::EnableWq, opened.wq)] {
        assert!(device.start_command(Command::new(code, operand)));
        assert_eq!(device.cmd_status().error_code(), 0, "{code:?}");
    }
    device
}

#[test]
fn an_opener_gets_a_device_that_works_without_other_queues() {
    for preset in Preset::ALL {
        let mut kernel = brought(preset, LATEST, Configured);
        // Other queues of the group, read buffers and limits must not prevent that.
        script(
            &mut kernel,
            &[
                ("group0.0/read_buffers_reserved", "8"),
                ("dsa0/read_buffer_limit", "64"),
                ("group0.0/use_read_buffer_limit", "1"),
                ("wq0.0/block_on_fault", "1"),
                ("wq0.0/max_transfer_size", "65536"),
            ],
        );
        for group in 1..4 {
            script(&mut kernel, &[(&format!("group0.{group}/read_buffers_allowed"), "88")]);
        }
        bind(&mut kernel, "idxd", "dsa0").unwrap();
        bind(&mut kernel, "user", "wq0.0").unwrap();
        bind(&mut kernel, "user", "wq0.1").unwrap();

        let shared = kernel.open(SHARED, caller(1, 1)).unwrap();
        let config = WqCfg(shared.wq_cfg);
        assert_eq!((shared.device, shared.wq, shared.group, shared.flags & DEDICATED), (0, 0, 0, 0));
        assert_eq!((config.size(), config.threshold(), config.priority()), (16, 8, 10));
        assert!(config.pasid_enable() && config.block_on_fault() && !config.dedicated() && !config.privileged());
        assert_eq!((config.max_transfer_shift(), config.max_batch_shift()), (16, 5));
        assert_eq!((config.state_code(), config.occupancy()), (0, 0));
        let group = GrpCfg(shared.grp_cfg);
        assert_eq!((group.wqs(), group.engines()), (0b1, 0b1111));
        assert_eq!((group.read_buffers_reserved(), group.tc_a(), group.tc_b()), (8, 1, 1));
        assert!(group.use_global_limit());
        assert_eq!(shared.event_log_entries, if matches!(preset, Preset::Spr | Preset::SprFw2) { 0 } else { 64 });
        assert_eq!(shared.enqcmds_retries, 32);
        assert_eq!(shared.gen_cfg & 0xff, 64);
        assert_eq!(shared.gen_cfg >> 12 & 1, 1, "user interrupts");
        let device = replica(&shared);
        assert_eq!((device.state(), device.wq_state(0)), (DeviceState::Enabled, WqState::Enabled));

        let own = kernel.open(OWN, caller(2, 2)).unwrap();
        let config = WqCfg(own.wq_cfg);
        assert_eq!((own.wq, own.flags & DEDICATED, GrpCfg(own.grp_cfg).wqs()), (1, DEDICATED, 0b10));
        assert_eq!((config.pasid(), config.pasid_enable(), config.dedicated()), (own.pasid, true, true));
        assert_eq!(replica(&own).wq_state(1), WqState::Enabled);
        kernel.release(own.open);
        let next = kernel.open(OWN, caller(1, 1)).unwrap();
        assert_eq!(WqCfg(next.wq_cfg).pasid(), shared.pasid, "the next opener's");
    }
}

#[test]
fn a_file_of_a_reset_queue_does_not_affect_the_new_queue() {
    let mut kernel = enabled();
    let old = kernel.open(OWN, caller(1, 1)).unwrap();
    assert_eq!(unbind(&mut kernel, "user", "wq0.1"), Ok(()), "clients do not prevent it");
    assert_eq!(kernel.entry("/dev/dsa/wq0.1"), Err(Errno::NOENT));
    assert_eq!(get(&mut kernel, "wq0.1/clients").as_deref(), Ok("0"));
    assert_eq!(kernel.attach(old.open, caller(1, 1)), Ok(old));
    script(
        &mut kernel,
        SETTINGS_DEDICATED
            .split_at(2)
            .1
            .iter()
            .filter(|line| line.0 != "wq0.1/size")
            .copied()
            .collect::<Vec<_>>()
            .as_slice(),
    );
    assert_eq!(bind(&mut kernel, "user", "wq0.1"), Ok(()));
    assert_eq!(get(&mut kernel, "wq0.1/cdev_minor").as_deref(), Ok("2"), "the old file still has number 1");
    let new = kernel.open(OWN, caller(2, 2)).unwrap();
    kernel.release(old.open);
    assert_eq!(get(&mut kernel, "wq0.1/clients").as_deref(), Ok("1"));
    assert_eq!(kernel.open(OWN, caller(3, 3)), Err(Errno::BUSY));
    assert_eq!(WqCfg(kernel.attach(new.open, caller(2, 2)).unwrap().wq_cfg).pasid(), new.pasid);
}

fn report(kind: ReportKind, words: [u64; 8]) -> Report {
    Report { kind: kind as u32, reserved: 0, words }
}

#[test]
fn a_reported_error_shows_in_errors_and_wakes_pollers() {
    for (abi, expected) in [
        (Abi::V6_12, "00000000,00000000,00000000,00001000,00000000,00000000,00000000,00015309"),
        (Abi::V6_1, "0x0000000000015309 0x0000000000000000 0x0000000000001000 0x0000000000000000"),
    ] {
        let mut kernel = brought(Preset::Spr, abi, Enabled);
        let opened = kernel.open(SHARED, caller(1, 1)).unwrap();
        let error = SwError::default()
            .with_valid(true)
            .with_wq_index_valid(true)
            .with_wq_index(1)
            .with_error_code(0x53)
            .with_address(0x1000);
        let [a, b, c, d] = error.0;
        assert_eq!(kernel.report(opened.open, &report(ReportKind::SwError, [a, b, c, d, 0, 0, 0, 0])), Ok(()));
        assert_eq!(get(&mut kernel, "dsa0/errors").as_deref(), Ok(expected));
        assert!(kernel.poll_ready(0));
        assert!(!kernel.poll_ready(1));
        assert_eq!(kernel.report(opened.open, &Report { kind: 99, ..Report::default() }), Err(Errno::INVAL));
    }
}

#[test]
fn the_event_log_counts_records_and_shows_entries() {
    let log = "/sys/kernel/debug/idxd/dsa0/event_log";
    let mut kernel = brought(Preset::Full, LATEST, Enabled);
    let opened = kernel.open(SHARED, caller(1, 1)).unwrap();
    let entry =
        |code: u8| EventLogEntry::default().with_descriptor_valid(true).with_error_code(code).with_address(0x5000);
    for code in [0x1a, 0x27, 0x12] {
        assert_eq!(kernel.report(opened.open, &report(ReportKind::EventLog, entry(code).0)), Ok(()));
    }
    kernel.report(opened.open, &report(ReportKind::EventLogFailed, entry(0x1a).0)).unwrap();
    let file = "wq0.0/dsa!wq0.0/file0";
    assert_eq!(get(&mut kernel, &format!("{file}/cr_faults")).as_deref(), Ok("1"));
    assert_eq!(get(&mut kernel, &format!("{file}/cr_fault_failures")).as_deref(), Ok("1"));
    let text = String::from_utf8(kernel.show(log).unwrap()).unwrap();
    assert!(text.starts_with("Event Log head 3 tail 3 interrupt pending 0\n\n"), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains("fault addr 0x5000")).count(), 3);
    assert_eq!(kernel.read_at(log, 6, 3), Ok(b"Log".to_vec()));
    assert_eq!(kernel.write_at(log, 0, b"x"), Err(Errno::ACCESS));
    assert_eq!(fresh(Preset::Full, Abi::V6_1).entry(log), Err(Errno::NOENT));
    assert_eq!(fresh(Preset::Spr, LATEST).entry(log), Err(Errno::NOENT));
}

#[test]
fn a_reported_halt_stops_every_queue_of_the_device() {
    let mut kernel = enabled();
    let opened = kernel.open(SHARED, caller(1, 1)).unwrap();
    let own = kernel.open(OWN, caller(2, 2)).unwrap();
    let words = [0x5401, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(kernel.report(opened.open, &report(ReportKind::Halted, words)), Ok(()));
    assert_eq!(get(&mut kernel, "dsa0/state").as_deref(), Ok("halted"));
    assert_eq!(get(&mut kernel, "dsa0/errors").unwrap().rsplit(',').next(), Some("00005401"));
    assert!(kernel.queues().iter().all(|(.., enabled)| !enabled));
    kernel.release(own.open);
    kernel.release(opened.open);
    assert_eq!(get(&mut kernel, "dsa0/state").as_deref(), Ok("halted"));
    assert_eq!(bind(&mut kernel, "idxd", "dsa0"), Err(Errno::BUSY));
}
