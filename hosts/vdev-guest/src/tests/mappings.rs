//! Portals: their addresses, mmap(2)'s results, and what keeps a file open.

use super::{PAGE, case, map, map_as, open, pointer, unmap};
use crate::portal::PORTALS;
use crate::symbols::map::{madvise, mprotect, mremap, munmap};
use crate::{guard, node, sys};
use telpher_interpose::Handler;

const SHARED: i32 = libc::MAP_SHARED;
const PRIVATE: i32 = libc::MAP_PRIVATE;
const WRITE: i32 = libc::PROT_WRITE;
const READ: i32 = libc::PROT_READ;

fn is_portal(address: u64) -> bool {
    crate::submit::Portals.is_portal(address)
}

#[test]
fn mmap_returns_the_drivers_results() {
    case(
        "tests::mappings::mmap_returns_the_drivers_results",
        |_| (),
        |_| {
            let [both, reads, writes] = [libc::O_RDWR, libc::O_RDONLY, libc::O_WRONLY]
                .map(|mode| node::open(super::NODE, mode.cast_unsigned()).unwrap());
            for (fd, len, protection, flags, answer) in [
                (both, PAGE, WRITE, SHARED, None),
                (both, PAGE, READ | WRITE, SHARED | libc::MAP_POPULATE, None),
                (both, 1, WRITE, SHARED, None),
                (both, PAGE, WRITE, PRIVATE, None),
                (both, PAGE, WRITE, libc::MAP_SHARED_VALIDATE, None),
                (both, PAGE + 1, WRITE, SHARED, Some(libc::EINVAL)),
                (both, 1 << 40, WRITE, SHARED, Some(libc::EINVAL)),
                (both, 0, WRITE, SHARED, Some(libc::EINVAL)),
                (both, PAGE, WRITE, 0, Some(libc::EINVAL)),
                (reads, PAGE, WRITE, SHARED, Some(libc::EACCES)),
                (reads, PAGE, READ, SHARED, None),
                (reads, PAGE, WRITE, PRIVATE, None),
                (writes, PAGE, WRITE, SHARED, Some(libc::EACCES)),
                (-1, PAGE, WRITE, SHARED, Some(libc::EBADF)),
            ] {
                let mapped = map_as(fd, len, protection, flags);
                assert_eq!(mapped.err(), answer, "{fd} {len} {protection} {flags}");
                if let Ok(address) = mapped {
                    let reaches = protection & WRITE != 0 && flags & libc::MAP_TYPE != PRIVATE;
                    assert_eq!([is_portal(address), is_portal(address + 4095)], [reaches; 2]);
                    assert!(!is_portal(address + PAGE as u64));
                    assert_eq!(unmap(address), 0);
                    assert!(!is_portal(address));
                }
            }
            // SAFETY: refused because of its offset.
            let odd = unsafe { crate::symbols::map::mmap(std::ptr::null_mut(), PAGE, WRITE, SHARED, both, 8) };
            assert_eq!((odd, sys::errno()), (libc::MAP_FAILED, libc::EINVAL));
            // SAFETY: every page-aligned offset is equivalent to zero.
            let far = unsafe { crate::symbols::map::mmap(std::ptr::null_mut(), PAGE, WRITE, SHARED, both, 1 << 20) };
            assert_ne!(far, libc::MAP_FAILED);
        },
    );
}

#[test]
fn an_unsafe_device_is_not_mapped() {
    let adapt = |opened: &mut telpher_vdev_wire::message::Opened| opened.mmap_errno = libc::EPERM;
    case("tests::mappings::an_unsafe_device_is_not_mapped", adapt, |_| {
        let fd = open();
        assert_eq!(map(fd), Err(libc::EPERM));
        assert_eq!(map_as(fd, 2 * PAGE, WRITE, SHARED), Err(libc::EPERM));
    });
}

#[test]
fn a_file_lives_as_long_as_a_descriptor_or_a_page() {
    case(
        "tests::mappings::a_file_lives_as_long_as_a_descriptor_or_a_page",
        |_| (),
        |host| {
            let fd = open();
            let (first, second) = (map(fd).unwrap(), map(fd).unwrap());
            let copy = sys::descriptor(sys::fcntl(fd, libc::F_DUPFD, 0).unwrap());
            node::duplicated(fd, copy);
            assert_eq!((node::queue(copy), node::is_node(copy)), (Some((0, 0)), true));
            for close in [fd, copy] {
                node::close(close).unwrap();
                assert!(!node::is_node(close) && !host.is_gone(1));
            }
            let guarded = guard::next(0).unwrap();
            assert!(guard::is_guard(guarded) && guarded >= 256);
            assert!(is_portal(first) && is_portal(second));
            assert_eq!((unmap(first), host.is_gone(1)), (0, false));
            assert_eq!((unmap(second), host.is_gone(1)), (0, true));
            assert_eq!(guard::next(0), None);
            assert!(PORTALS.is_empty());
            assert_eq!(node::close(fd), Err(sys::Errno::BADF));
            // The number is free again.
            assert_eq!(open(), fd);
            node::close(fd).unwrap();
            assert!(host.is_gone(2));
        },
    );
}

#[test]
fn a_guard_moves_out_of_the_way() {
    case(
        "tests::mappings::a_guard_moves_out_of_the_way",
        |_| (),
        |host| {
            let fd = open();
            let portal = map(fd).unwrap();
            node::close(fd).unwrap();
            let guarded = guard::next(0).unwrap();
            assert_eq!(guard::make_room(guarded, node::guard_moved), Ok(true));
            assert_eq!(guard::make_room(guarded, node::guard_moved), Ok(false));
            sys::close(guarded).unwrap();
            assert!(!host.is_gone(1));
            assert_eq!((unmap(portal), host.is_gone(1)), (0, true));
        },
    );
}

#[test]
fn changes_of_mappings_update_the_portals_in_the_range() {
    case(
        "tests::mappings::changes_of_mappings_update_the_portals_in_the_range",
        |_| (),
        |host| {
            let fd = open();
            let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base = map_as(-1, 40 * PAGE, READ | WRITE, anonymous).unwrap();
            let page = |n: u64| base + n * PAGE as u64;
            let fixed = |n: u64, flags, fd| {
                // SAFETY: the range was mapped above for this.
                let at =
                    unsafe { crate::symbols::map::mmap(pointer(page(n)), PAGE, WRITE, flags | libc::MAP_FIXED, fd, 0) };
                assert_eq!(at, pointer(page(n)));
            };
            for n in [3, 4, 7, 30] {
                fixed(n, SHARED, fd);
            }
            assert_eq!([2, 3, 4, 5, 7, 30].map(|n| is_portal(page(n))), [false, true, true, false, true, true]);
            // SAFETY: the following calls change only the range mapped above.
            unsafe {
                // Another mapping replaces a portal.
                fixed(3, anonymous, -1);
                assert!(!is_portal(page(3)));
                pointer(page(3)).cast::<u8>().write_volatile(1);
                // Protection of portals and other pages together.
                assert_eq!(mprotect(pointer(page(2)), 4 * PAGE, READ), 0);
                assert!(!is_portal(page(4)));
                assert_eq!(mprotect(pointer(page(2)), 4 * PAGE, READ | WRITE), 0);
                assert!(is_portal(page(4)));
                pointer(page(5)).cast::<u8>().write_volatile(1);
                assert_eq!(pointer(page(4)).cast::<u64>().read_volatile(), 0);
                assert_eq!(mprotect(pointer(page(4)), PAGE, libc::PROT_NONE), 0);
                assert!(!is_portal(page(4)));
                assert_eq!(mprotect(pointer(page(4)), PAGE, WRITE), 0);
                // Advice that the kernel refuses on a device's page.
                for advice in [libc::MADV_DOFORK, libc::MADV_DONTNEED] {
                    assert_eq!((madvise(pointer(page(6)), 3 * PAGE, advice), sys::errno()), (-1, libc::EINVAL));
                }
                assert_eq!(madvise(pointer(page(8)), PAGE, libc::MADV_DONTNEED), 0);
                // Moving, growing, copying.
                let grown = mremap(pointer(page(7)), PAGE, 2 * PAGE, libc::MREMAP_MAYMOVE, std::ptr::null_mut());
                assert_eq!((grown, sys::errno()), (libc::MAP_FAILED, libc::EFAULT));
                let copied = mremap(pointer(page(7)), 0, PAGE, libc::MREMAP_MAYMOVE, std::ptr::null_mut());
                assert_eq!((copied, sys::errno()), (libc::MAP_FAILED, libc::EINVAL));
                let moves = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                // Onto another portal, which is removed.
                assert_eq!(mremap(pointer(page(7)), PAGE, PAGE, moves, pointer(page(30))), pointer(page(30)));
                assert_eq!((is_portal(page(7)), is_portal(page(30))), (false, true));
                node::close(fd).unwrap();
                assert!(!host.is_gone(1));
                assert_eq!((munmap(pointer(base + 1), PAGE), sys::errno()), (-1, libc::EINVAL));
                assert_eq!(munmap(pointer(base), 40 * PAGE), 0);
            }
            assert!(PORTALS.is_empty() && host.is_gone(1));
        },
    );
}

#[test]
fn a_page_of_a_file_open_for_reading_never_becomes_a_portal() {
    case(
        "tests::mappings::a_page_of_a_file_open_for_reading_never_becomes_a_portal",
        |_| (),
        |_| {
            let fd = node::open(super::NODE, 0).unwrap();
            let page = map_as(fd, PAGE, READ, SHARED).unwrap();
            // SAFETY: the page mapped above.
            let changed = unsafe { mprotect(pointer(page), PAGE, READ | WRITE) };
            assert_eq!((changed, sys::errno(), is_portal(page)), (-1, libc::EACCES, false));
        },
    );
}

#[test]
fn a_queue_can_be_mapped_thousands_of_times() {
    case(
        "tests::mappings::a_queue_can_be_mapped_thousands_of_times",
        |_| (),
        |host| {
            let fd = open();
            let pages: Vec<u64> = (0..5000).map(|_| map(fd).unwrap()).collect();
            assert!(pages.iter().all(|page| is_portal(*page)));
            node::close(fd).unwrap();
            assert!(pages.iter().all(|page| unmap(*page) == 0));
            assert!(host.is_gone(1) && PORTALS.is_empty());
        },
    );
}

#[test]
fn threads_may_submit_while_others_unmap_and_close() {
    case(
        "tests::mappings::threads_may_submit_while_others_unmap_and_close",
        |_| (),
        |host| {
            let addresses: [std::sync::atomic::AtomicU64; 2] = Default::default();
            let done = std::sync::atomic::AtomicBool::new(false);
            let order = std::sync::atomic::Ordering::SeqCst;
            std::thread::scope(|scope| {
                for address in &addresses {
                    scope.spawn(|| {
                        let nop = telpher_abi::Descriptor::nop();
                        while !done.load(order) {
                            let _ = crate::submit::Portals.enqueue(
                                telpher_interpose::SubmitInstruction::Enqcmd,
                                address.load(order),
                                &nop.0,
                            );
                        }
                    });
                }
                for round in 0..2000 {
                    let fd = open();
                    let page = map(fd).unwrap();
                    addresses[round % 2].store(page, order);
                    node::close(fd).unwrap();
                    assert_eq!(unmap(page), 0);
                    assert!(host.is_gone(round + 1));
                }
                done.store(true, order);
            });
        },
    );
}
