//! Windows between processes, with a host that refuses or delays what it is asked.

use super::{close, close_range, closefrom, dup2, dup3, ioctl};
use crate::files::table::{self, Kind};
use crate::submit::Portals;
use crate::sys;
use crate::tests::{case, map, open, processes, submissions};
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::mpsc::channel;
use std::time::Duration;
use telpher_abi::registers::WqCfg;
use telpher_abi::{Descriptor, Status, WindowFlags};
use telpher_interpose::{Handler, Offer, SubmitInstruction};
use telpher_model::Preset;
use telpher_portal::RecordCell;
use telpher_vdev_wire::message::Opened;

/// A device with windows.
fn with_windows(opened: &mut Opened) {
    let capabilities = Preset::V2Full.capabilities();
    opened.version = capabilities.version;
    opened.gen_cap = capabilities.gen_cap.0[0];
    opened.wq_cap = capabilities.wq_cap.0[0];
    opened.grp_cap = capabilities.grp_cap.0[0];
    opened.cmd_cap = capabilities.cmd_cap;
    opened.op_cap = capabilities.op_cap.0;
    opened.id_cap = capabilities.id_cap.0[0];
    opened.wq_cfg = WqCfg(opened.wq_cfg).with_op_config(capabilities.op_cap).0;
}

/// IDXD_WIN_CREATE of all memory.
fn create(queue: RawFd) -> RawFd {
    let mut argument = [0_u8; 24];
    argument[20] = 3;
    // SAFETY: the argument has 24 bytes, as the request requires.
    let window = unsafe { ioctl(queue, 0xc018_6465, argument.as_mut_ptr().expose_provenance()) };
    assert!(window >= 0, "errno {}", sys::errno());
    window
}

#[test]
fn an_update_that_the_host_refuses_does_not_succeed() {
    case(
        "symbols::descriptors::window_tests::an_update_that_the_host_refuses_does_not_succeed",
        with_windows,
        |host| {
            let portal = map(open()).unwrap();
            let update = |errno| {
                host.answer_updates(errno);
                let record = RecordCell::new();
                let flags = WindowFlags::READ | WindowFlags::ENABLE;
                let descriptor = Descriptor::update_window(0, 0x1000, 0x1000, flags).with_record(record.address());
                assert_eq!(Portals.enqueue(SubmitInstruction::Enqcmd, portal, &descriptor.0), Offer::Taken);
                submissions::await_status(&record)
            };
            assert_eq!(update(0), Status::Success);
            for errno in [libc::EACCES, libc::EINVAL, libc::EIO] {
                assert_eq!(update(errno), Status::UpdateWindowEntry, "errno {errno}");
            }
        },
    );
}

#[test]
fn every_call_that_closes_a_window_waits_for_its_accesses() {
    case(
        "symbols::descriptors::window_tests::every_call_that_closes_a_window_waits_for_its_accesses",
        with_windows,
        |host| {
            let queue = open();
            let received = |window| {
                table::set(window, Kind::Foreign);
                // SAFETY: as below.
                unsafe { close(window) }
            };
            let all_from = |window| {
                // SAFETY: as below.
                unsafe { closefrom(window) };
                0
            };
            // SAFETY: the case owns the descriptors that are closed.
            let calls: [(&str, &dyn Fn(RawFd) -> c_int); 6] = unsafe {
                [
                    ("close", &|window| close(window)),
                    ("dup2", &|window| dup2(libc::STDERR_FILENO, window)),
                    ("dup3", &|window| dup3(libc::STDERR_FILENO, window, libc::O_CLOEXEC)),
                    ("close_range", &|window| close_range(window.cast_unsigned(), window.cast_unsigned(), 0)),
                    ("closefrom", &all_from),
                    ("close of a descriptor that was received", &received),
                ]
            };
            for (number, (name, call)) in (1..).zip(calls) {
                // High, so that closefrom closes nothing of the case.
                let window = sys::descriptor(sys::fcntl(create(queue), libc::F_DUPFD, 900).unwrap());
                table::set(window, Kind::Window);
                let before = host.settles();
                assert!(call(window) >= 0, "{name}: errno {}", sys::errno());
                assert_eq!(host.settles(), before + 1, "{name}");
                assert_eq!(host.closed_windows(), (1..=number).collect::<Vec<u64>>(), "{name}");
                let _ = sys::close(window);
            }
        },
    );
}

#[test]
fn a_close_whose_window_may_still_be_accessed_reports_it() {
    case(
        "symbols::descriptors::window_tests::a_close_whose_window_may_still_be_accessed_reports_it",
        with_windows,
        |host| {
            let window = create(open());
            host.answer_settles(libc::EIO);
            // SAFETY: the case owns the descriptor.
            assert_eq!((unsafe { close(window) }, sys::errno()), (-1, libc::EIO));
            assert!(sys::fcntl(window, libc::F_GETFD, 0).is_err(), "it is closed");
        },
    );
}

/// The file of a process's memory, which the host gets for a window, is in no child.
#[test]
fn a_child_that_is_forked_meanwhile_has_no_file_of_its_parent_s_memory() {
    let name =
        "symbols::descriptors::window_tests::a_child_that_is_forked_meanwhile_has_no_file_of_its_parent_s_memory";
    case(name, with_windows, |host| {
        let queue = open();
        let (asked, asking) = channel();
        let (forked, has_forked) = channel();
        host.before_create(move || {
            asked.send(()).unwrap();
            // Without the lock the child is made now; with it, only after this time has passed.
            let _ = has_forked.recv_timeout(Duration::from_secs(1));
        });
        let forking = std::thread::spawn(move || {
            asking.recv().unwrap();
            processes::child(|| {
                let is_memory = |fd: RawFd| {
                    let mut text = [0; 64];
                    let path = std::ffi::CString::new(format!("/proc/self/fd/{fd}")).unwrap();
                    // SAFETY: a string, and a buffer with its length.
                    let len = unsafe { libc::readlink(path.as_ptr(), text.as_mut_ptr(), text.len()) };
                    let text: Vec<u8> =
                        text[..usize::try_from(len).unwrap_or(0)].iter().map(|byte| byte.cast_unsigned()).collect();
                    text.ends_with(b"/mem")
                };
                i32::from((0..1024).any(is_memory))
            });
            let _ = forked.send(());
        });
        create(queue);
        forking.join().unwrap();
    });
}
