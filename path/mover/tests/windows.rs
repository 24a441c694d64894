//! Windows between processes: the owner of the memory is this test binary again, run for one test.
#![cfg(not(loom))]
#![allow(clippy::cast_possible_truncation, reason = "offsets within a few pages")]

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use telpher_abi::registers::{GenCap, OpCap};
use telpher_abi::{Opcode, Status};
use telpher_device::{OpenOptions, Runner};
use telpher_mover::{
    GrantError, JobError, Mover, Outcome, Policy, Threshold, Via, Window, WindowDone, WindowError, WindowPath,
};
use telpher_portal::{
    AttachedWindow, CreatedWindow, Offer, Portal, QueueInfo, QueueMode, Submission, WindowError as PortalError,
};

/// Set in the environment of an owner: whether others may write.
const OWNER: &str = "TELPHER_MOVER_TEST_OWNER";
/// A generous limit.
const LONG: Duration = Duration::from_secs(60);
const LEN: usize = 5 * 4096 + 100;

/// A process that grants a buffer.
struct Owner {
    child: Child,
    control: UnixStream,
    file: OwnedFd,
}

impl Owner {
    fn new(writable: bool) -> Owner {
        let (mut control, theirs) = UnixStream::pair().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_owner_grants", "--nocapture"])
            .env(OWNER, if writable { "write" } else { "read" })
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut number = [0; 4];
        control.read_exact(&mut number).unwrap();
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let file = pidfd_getfd(process, i32::from_le_bytes(number), PidfdGetfdFlags::empty()).unwrap();
        Owner { child, control, file }
    }

    fn files(&self) -> [BorrowedFd<'_>; 1] {
        [self.file.as_fd()]
    }

    /// Has the owner revoke the grant; returns its buffer.
    fn revoke(&mut self) -> Vec<u8> {
        self.control.write_all(&[0]).unwrap();
        let mut buffer = vec![0; LEN];
        self.control.read_exact(&mut buffer).unwrap();
        buffer
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn byte(at: usize) -> u8 {
    (at * 7 % 251) as u8
}

/// Not a test: the code of an owner.
#[test]
fn the_owner_grants() {
    let Ok(access) = std::env::var(OWNER) else { return };
    let mut control = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let buffer: Vec<u8> = (0..LEN).map(byte).collect();
    let mover = Mover::cpu();
    let grant = if access == "write" { mover.grant(buffer) } else { mover.grant_readable(buffer) }.unwrap();
    control.write_all(&grant.files()[0].as_raw_fd().to_le_bytes()).unwrap();
    if control.read_exact(&mut [0]).is_ok() {
        let buffer = grant.revoke(LONG).unwrap();
        control.write_all(&buffer).unwrap();
        // Ends when the other side has seen enough.
        let _ = control.read_exact(&mut [0]);
    }
    std::process::exit(0);
}

fn mover(device: &str, windows: WindowPath) -> Mover {
    let options = OpenOptions { runner: Runner::Inline };
    let opened = telpher_device::open(&device.parse().unwrap(), options).unwrap();
    Mover::new(opened.portals, Policy { windows, ..Policy::default() })
}

fn done(outcome: Outcome, via: Via) -> WindowDone {
    WindowDone { outcome, via }
}

/// Every operation, with lengths on both sides of the threshold, against naive loops over a copy of the owner's bytes.
fn every_operation(device: &str, long: Via) {
    let mut owner = Owner::new(true);
    let window = mover(device, WindowPath::DeviceOrCpu).open_window(&owner.files()).unwrap();
    assert_eq!((window.len(), window.has_device()), (LEN as u64, long == Via::Device));
    let mut expected: Vec<u8> = (0..LEN).map(byte).collect();
    for (at, len, via) in [(0, LEN, long), (1, 4096, long), (4097, 9000, long), (3, 100, Via::Cpu), (LEN, 0, Via::Cpu)]
    {
        let range = at..at + len;
        let (at, len) = (at as u64, len as u64);
        let mut bytes = vec![0; range.len()];
        assert_eq!(window.read(at, &mut bytes).unwrap(), done(Outcome::Done, via), "{device} {range:?}");
        assert_eq!(bytes, expected[range.clone()]);
        bytes.reverse();
        assert_eq!(window.write(at, &bytes).unwrap(), done(Outcome::Done, via));
        expected[range.clone()].reverse();
        assert_eq!(window.compare(at, &bytes).unwrap(), done(Outcome::Equal, via));
        if let Some(last) = bytes.last_mut() {
            *last ^= 1;
            let different = Outcome::Different { at: len - 1 };
            assert_eq!(window.compare(at, &bytes).unwrap(), done(different, via));
        }
        let pattern = 0x0807_0605_0403_0201;
        assert_eq!(window.fill(at, len, pattern).unwrap(), done(Outcome::Done, via));
        (1..=8).cycle().zip(&mut expected[range.clone()]).for_each(|(byte, place)| *place = byte);
        assert_eq!(window.compare_pattern(at, len, pattern).unwrap(), done(Outcome::Equal, via));
        if len > 0 {
            assert_eq!(window.write(at + len - 1, &[99]).unwrap(), done(Outcome::Done, Via::Cpu));
            expected[range.end - 1] = 99;
            let different = Outcome::Different { at: len - 1 };
            assert_eq!(window.compare_pattern(at, len, pattern).unwrap(), done(different, via));
        }
    }
    assert_eq!(owner.revoke(), expected);
    assert!(matches!(window.read(0, &mut [0; 8]), Err(WindowError::Grant(GrantError::Revoked))));
}

#[test]
fn a_device_with_windows_does_long_operations_and_the_cpu_short_ones() {
    every_operation("model:v2-full", Via::Device);
}

#[test]
fn a_device_with_windows_in_address_mode_only_does_them_too() {
    every_operation("model:srf", Via::Device);
}

#[test]
fn the_cpu_does_all_without_a_device_or_with_one_without_windows() {
    every_operation("cpu", Via::Cpu);
    every_operation("model:spr", Via::Cpu);
}

#[test]
fn a_policy_that_wants_a_device_gets_it_for_every_length_or_an_error() {
    let mut owner = Owner::new(true);
    let window = mover("model:v2-full", WindowPath::Device).open_window(&owner.files()).unwrap();
    assert_eq!(window.write(0, &[1; 3]).unwrap(), done(Outcome::Done, Via::Device));
    let pattern = u64::from_le_bytes([1, 1, 1, byte(3), byte(4), byte(5), byte(6), 99]);
    assert_eq!(window.compare_pattern(0, 8, pattern).unwrap(), done(Outcome::Different { at: 7 }, Via::Device));
    assert_eq!(window.read(LEN as u64, &mut []).unwrap(), done(Outcome::Done, Via::Cpu));
    for device in ["cpu", "model:spr"] {
        let error = mover(device, WindowPath::Device).open_window(&owner.files()).unwrap_err();
        assert!(matches!(error, WindowError::NoDevice { .. }), "{device}: {error}");
        assert!(error.to_string().contains("windows=device-or-cpu"), "{error}");
    }
    owner.revoke();
    let error = window.read(0, &mut [0; 8]).unwrap_err();
    assert!(matches!(error, WindowError::Grant(GrantError::Revoked)), "{error}");
}

#[test]
fn nothing_outside_of_the_grant_and_nothing_read_only_is_touched() {
    for device in ["cpu", "model:v2-full"] {
        let mut owner = Owner::new(false);
        let window = mover(device, WindowPath::DeviceOrCpu).open_window(&owner.files()).unwrap();
        let end = LEN as u64;
        for (at, len) in [(end, 1), (end - 5000, 5001), (0, LEN + 1), (u64::MAX, 2), (u64::MAX - 4095, 4096)] {
            let outside = |error| matches!(error, WindowError::Grant(GrantError::Outside { .. }));
            assert!(outside(window.read(at, &mut vec![0; len]).unwrap_err()));
            assert!(outside(window.compare(at, &vec![0; len]).unwrap_err()));
            assert!(outside(window.compare_pattern(at, len as u64, 0).unwrap_err()));
        }
        for len in [1, 5000] {
            let read_only = |error| matches!(error, WindowError::Grant(GrantError::ReadOnly));
            assert!(read_only(window.write(0, &vec![1; len]).unwrap_err()));
            assert!(read_only(window.fill(0, len as u64, 1).unwrap_err()));
        }
        assert_eq!(owner.revoke(), (0..LEN).map(byte).collect::<Vec<_>>());
    }
}

#[test]
fn an_owner_that_dies_ends_its_windows() {
    for device in ["cpu", "model:v2-full"] {
        let owner = Owner::new(true);
        let window = mover(device, WindowPath::DeviceOrCpu).open_window(&owner.files()).unwrap();
        window.write(0, &[1; 8000]).unwrap();
        drop(owner);
        for len in [8, 8000] {
            let error = window.read(0, &mut vec![0; len]).unwrap_err();
            assert!(matches!(error, WindowError::Grant(GrantError::Gone { .. })), "{device}: {error}");
        }
    }
}

#[test]
fn windows_come_and_go_without_using_up_the_device() {
    let owner = Owner::new(true);
    let mover = mover("model:v2-full", WindowPath::Device);
    let open = || mover.open_window(&owner.files());
    for _ in 0..100 {
        open().unwrap().write(0, &[1; 8]).unwrap();
    }
    let all: Vec<Window> = std::iter::from_fn(|| open().ok()).take(100).collect();
    assert!((8..100).contains(&all.len()), "{}", all.len());
    let error = open().unwrap_err();
    assert!(error.to_string().contains("all windows of the device are in use"), "{error}");
    all.iter().for_each(|window| assert_eq!(window.write(0, &[1; 8]).unwrap().via, Via::Device));
    drop(all);
    assert_eq!(open().unwrap().write(0, &[1; 8]).unwrap().via, Via::Device);
}

/// A window's memory is never another window's, also while windows are opened and closed by several threads.
#[test]
fn threads_that_open_windows_of_two_owners_see_only_their_own_bytes() {
    let owners = [Owner::new(true), Owner::new(true)];
    let mover = mover("model:v2-full", WindowPath::Device);
    std::thread::scope(|scope| {
        for (number, owner) in owners.iter().enumerate() {
            let mover = &mover;
            scope.spawn(move || {
                let mark = [50 + number as u8; 64];
                for _ in 0..200 {
                    let window = mover.open_window(&owner.files()).unwrap();
                    window.write(0, &mark).unwrap();
                    let mut bytes = [0; 64];
                    window.read(0, &mut bytes).unwrap();
                    assert_eq!(bytes, mark);
                }
            });
        }
    });
}

#[test]
fn files_that_are_no_grant_are_refused() {
    let null = std::fs::File::open("/dev/null").unwrap();
    for device in ["cpu", "model:v2-full"] {
        let mover = mover(device, WindowPath::DeviceOrCpu);
        let error = mover.open_window(&[&null]).unwrap_err();
        assert!(matches!(error, WindowError::Grant(GrantError::NotAGrant { .. })), "{error}");
        assert!(matches!(mover.open_window(&[&null; 0]), Err(WindowError::Files { given: 0 })));
        assert!(matches!(mover.open_window(&[&null, &null, &null]), Err(WindowError::Files { given: 3 })));
        let error = mover.grant(Vec::new()).unwrap_err();
        assert!(error.buffer.is_empty() && matches!(error.source, WindowError::Grant(GrantError::Range { .. })));
    }
}

/// A queue whose driver makes windows, as Intel's outside of Linux does. It takes descriptors and ends them all with
/// one status, and does nothing else.
#[derive(Debug)]
struct DriverQueue {
    info: QueueInfo,
    closed: Arc<AtomicUsize>,
    status: Status,
}

const HANDLE: u16 = 5;

impl DriverQueue {
    fn portal(status: Status, closed: &Arc<AtomicUsize>) -> Arc<dyn Portal> {
        let operations = [Opcode::InterDomainCopy, Opcode::InterDomainCompare, Opcode::UpdateWindow];
        let operations = operations.iter().fold(OpCap::default(), |all, op| all.with(*op, true));
        let info = QueueInfo {
            name: "wq0.0".into(),
            mode: QueueMode::Shared,
            size: 16,
            max_transfer: 1 << 21,
            max_batch: 1,
            block_on_fault: false,
            gen_cap: GenCap::default(),
            dsa_cap_0: telpher_abi::registers::DsaCap0::default(),
            operations,
            numa_node: None,
        };
        Arc::new(DriverQueue { info, closed: Arc::clone(closed), status })
    }
}

#[allow(unsafe_code, reason = "a portal that writes records")]
mod portal {
    use super::*;
    use telpher_abi::{CompletionRecord, StatusByte};
    use telpher_mem::{Local, Space};

    // SAFETY: it writes the record, keeps nothing, and does not unwind.
    unsafe impl Portal for DriverQueue {
        fn info(&self) -> &QueueInfo {
            &self.info
        }

        fn offer(&self, submission: &Submission) -> Offer {
            let descriptor = submission.descriptor();
            assert!(descriptor.handle_2() == HANDLE || descriptor.handle_1() == HANDLE);
            if descriptor.opcode() == Opcode::UpdateWindow {
                self.closed.fetch_add(1, Ordering::Relaxed);
            }
            let status = if descriptor.opcode() == Opcode::UpdateWindow { Status::Success } else { self.status };
            let record = CompletionRecord::new(StatusByte::new(status));
            // SAFETY: the submission's promise.
            let space = unsafe { Local::new() };
            space.write_record(descriptor.completion_address(), &record.0).unwrap();
            Offer::Taken
        }

        unsafe fn create_window(&self, base: u64, size: u64, writable: bool) -> Result<CreatedWindow, PortalError> {
            assert!(base != 0 && size == LEN as u64 && writable);
            let file = std::io::pipe().unwrap().0.into();
            Ok(CreatedWindow { file, handle: HANDLE })
        }

        fn attach_window(&self, file: BorrowedFd<'_>) -> Result<AttachedWindow, PortalError> {
            use rustix::fs::{FileType, fstat};
            if FileType::from_raw_mode(fstat(file).unwrap().st_mode) != FileType::Fifo {
                return Err(PortalError::Refused { why: "it is no window of the driver".into() });
            }
            Ok(AttachedWindow::new(HANDLE, ()))
        }
    }
}

#[test]
fn a_driver_with_windows_makes_attaches_and_closes_them() {
    let closed = Arc::new(AtomicUsize::new(0));
    let policy = Policy { windows: WindowPath::Device, threshold: Threshold::all(0), ..Policy::default() };
    let mover = Mover::new([DriverQueue::portal(Status::Success, &closed)], policy);
    let grant = mover.grant(vec![7; LEN]).unwrap();
    assert_eq!(grant.files().len(), 2);
    let window = mover.open_window(&grant.files()).unwrap();
    assert_eq!(window.write(0, &[1; 9]).unwrap(), done(Outcome::Done, Via::Device));
    assert_eq!(window.compare(9, &[1; 9]).unwrap(), done(Outcome::Equal, Via::Device));
    // The device does not have this operation, and the policy keeps the CPU from it.
    assert!(matches!(window.fill(0, 8, 1), Err(WindowError::Job(JobError::Unsupported { .. }))));
    // Without the driver's file, the driver has no window to attach.
    let error = mover.open_window(&grant.files()[..1]).unwrap_err();
    assert!(error.to_string().contains("it is no window of the driver"), "{error}");
    assert_eq!(grant.revoke(LONG).unwrap(), vec![7; LEN]);
    assert_eq!(closed.load(Ordering::Relaxed), 1);
    drop(mover.grant(vec![7; LEN]).unwrap());
    assert_eq!(closed.load(Ordering::Relaxed), 2);
}

#[test]
fn what_a_device_refuses_the_cpu_does_if_it_may() {
    let closed = Arc::new(AtomicUsize::new(0));
    for status in [Status::InterDomainHandle, Status::InterDomainAborted, Status::InvalidFlags, Status::BadOpcode] {
        let mover = |windows| {
            let policy = Policy { windows, threshold: Threshold::all(0), ..Policy::default() };
            Mover::new([DriverQueue::portal(status, &closed)], policy)
        };
        let owner = mover(WindowPath::DeviceOrCpu);
        let grant = owner.grant(vec![7; LEN]).unwrap();
        let window = owner.open_window(&grant.files()).unwrap();
        assert_eq!(window.write(3, &[8; 9]).unwrap(), done(Outcome::Done, Via::Cpu), "{status}");
        let strict = mover(WindowPath::Device).open_window(&grant.files()).unwrap();
        assert!(matches!(strict.write(3, &[9; 9]), Err(WindowError::Job(_))), "{status}");
        assert_eq!(grant.revoke(LONG).unwrap()[2..13], [7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7]);
    }
}
