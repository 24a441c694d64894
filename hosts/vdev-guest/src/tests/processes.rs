//! Child processes and exit.

use super::{case, map, open};
use crate::portal::PORTALS;
use crate::{control, guard, node, run, sys};
use telpher_abi::Descriptor;
use telpher_mem::Space;

/// The function that runs when a process ends.
pub(super) fn finish() {
    crate::symbols::process::finish();
}

/// Forks; the child runs `act` and exits with its result, which must be 0.
pub(crate) fn child(act: impl FnOnce() -> i32) {
    // SAFETY: the child takes no locks that other threads of the parent may hold: the host's thread holds none while it
    // waits, and the fork takes this library's.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            let status = act();
            sys::call(libc::SYS_exit_group, [sys::word(status), 0, 0, 0, 0, 0]).unwrap();
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0));
    }
}

#[test]
fn a_forked_child_has_descriptors_and_nothing_else() {
    case(
        "tests::processes::a_forked_child_has_descriptors_and_nothing_else",
        |_| (),
        |host| {
            let fd = open();
            let portal = map(fd).unwrap();
            let parent = run::space();
            child(|| {
                let nop = Descriptor::nop();
                let checks = [
                    run::space() != parent,
                    node::is_node(fd),
                    node::queue(fd) == Some((0, 0)),
                    PORTALS.is_empty(),
                    guard::next(0).is_none(),
                    map(fd) == Err(libc::EPERM),
                    crate::submit::write(fd, nop.0.as_ptr().cast(), 64) == Err(sys::Errno::PERM),
                    // The page does not exist.
                    !crate::faults::memory().page_request(portal, false),
                ];
                let failed = checks.iter().position(|check| !check).map_or(0, |at| at + 1);
                i32::try_from(failed).unwrap()
            });
            assert!(!host.is_gone(1));
            assert!(PORTALS.find(portal).is_some());
            // A child that opens the node is a separate client.
            child(|| {
                let own = node::open(super::NODE, libc::O_RDWR.cast_unsigned()).unwrap();
                let mapped = map(own).is_ok();
                let record = telpher_portal::RecordCell::new();
                let nop = Descriptor::nop().with_record(record.address());
                let written = crate::submit::write(own, nop.0.as_ptr().cast(), 64) == Ok(64) && record.read().is_some();
                i32::from(!(mapped && written))
            });
            let spaces = host.spaces();
            assert_eq!((spaces.len(), spaces[0] != spaces[1]), (2, true));
            assert!(host.is_gone(2) && !host.is_gone(1));
        },
    );
}

#[test]
fn a_child_keeps_the_file_after_its_parent_has_closed_it() {
    case(
        "tests::processes::a_child_keeps_the_file_after_its_parent_has_closed_it",
        |_| (),
        |host| {
            let fd = open();
            let mut pipe = [0; 2];
            // SAFETY: an array of two descriptors; the child only reads and exits.
            unsafe {
                assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
                let child = libc::fork();
                if child == 0 {
                    libc::close(pipe[1]);
                    libc::read(pipe[0], (&raw mut pipe).cast(), 1);
                    sys::call(libc::SYS_exit_group, [0; 6]).unwrap();
                }
                node::close(fd).unwrap();
                assert!(!host.is_gone(1));
                libc::close(pipe[1]);
                assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
            }
            assert!(host.is_gone(1));
        },
    );
}

#[test]
fn a_descriptor_kept_across_exec_is_recognised_as_foreign() {
    case(
        "tests::processes::a_descriptor_kept_across_exec_is_recognised_as_foreign",
        |_| (),
        |_| {
            let fd = open();
            // As in a newly executed program: this library does not know the number.
            let copy = sys::descriptor(sys::fcntl(fd, libc::F_DUPFD, 0).unwrap());
            assert!(!node::is_node(copy));
            assert!(node::adopt(copy));
            assert_eq!((node::queue(copy), map(copy)), (Some((0, 0)), Err(libc::EPERM)));
            assert!(!node::adopt(0));
            node::close(copy).unwrap();
            assert!(map(fd).is_ok());
        },
    );
}

#[test]
fn children_work_after_a_fork_while_other_threads_open_and_close() {
    case(
        "tests::processes::children_work_after_a_fork_while_other_threads_open_and_close",
        |_| (),
        |_| {
            let done = std::sync::atomic::AtomicBool::new(false);
            let order = std::sync::atomic::Ordering::SeqCst;
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while !done.load(order) {
                            let fd = open();
                            let page = map(fd).unwrap();
                            node::close(fd).unwrap();
                            super::unmap(page);
                        }
                    });
                }
                for _ in 0..50 {
                    child(|| {
                        let Ok(fd) = node::open(super::NODE, libc::O_RDWR.cast_unsigned()) else { return 1 };
                        if map(fd).is_err() {
                            return 2;
                        }
                        i32::from(node::close(fd).is_err())
                    });
                }
                done.store(true, order);
            });
        },
    );
}

#[test]
fn a_missing_host_is_an_io_error() {
    case(
        "tests::processes::a_missing_host_is_an_io_error",
        |_| (),
        |_| {
            let mut text = [0; 100];
            let shown = control::show(b"/sys/x", &mut text).unwrap();
            assert_eq!(&text[..shown], b"text of /sys/x\n");
            assert_eq!(control::store(b"/sys/x", 0, b"1\n"), Ok(2));
            assert_eq!(node::open(b"/dev/dsa/wq9.9", 2), Err(sys::Errno::NXIO));
            let directory = String::from_utf8(run::directory().to_vec()).unwrap();
            std::fs::remove_file(directory + "/socket").unwrap();
            assert_eq!(control::show(b"/sys/x", &mut text), Err(sys::Errno::IO));
            assert_eq!(node::open(super::NODE, 2), Err(sys::Errno::IO));
        },
    );
}
