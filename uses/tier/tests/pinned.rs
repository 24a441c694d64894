//! Pages that a device has pinned, with io_uring as the device: they stay, and what it writes there is not lost.
#![allow(unsafe_code, reason = "io_uring by system calls")]

mod common;

use common::{FAST, PAGE, heap, skip};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use telpher_mem::PageSize;

/// Source: UAPI linux/io_uring.h, like all constants below.
const SQ_RING: libc::off_t = 0;
const SQES: libc::off_t = 0x1000_0000;
const SINGLE_MMAP: u32 = 1 << 0;
const GETEVENTS: libc::c_uint = 1 << 0;
const REGISTER_BUFFERS: libc::c_uint = 0;
const UNREGISTER_BUFFERS: libc::c_uint = 1;
const READ_FIXED: u8 = 4;

/// The words of `struct io_uring_params`: entries of both rings, features, and offsets.
const PARAMS: usize = 30;
const SQ_ENTRIES: usize = 0;
const CQ_ENTRIES: usize = 1;
const FEATURES: usize = 5;
const SQ_TAIL: usize = 11;
const SQ_ARRAY: usize = 16;
const CQES: usize = 25;

/// A ring of one request, with its buffer registered.
struct Ring {
    fd: OwnedFd,
    params: [u32; PARAMS],
    rings: *mut u8,
    sqes: *mut u64,
}

impl Ring {
    /// Fails with the system's error if io_uring is not available.
    fn new(buffer: std::ops::Range<u64>) -> io::Result<Ring> {
        let mut params = [0_u32; PARAMS];
        let done = |result: libc::c_long| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
        // SAFETY: the kernel fills the parameters, whose 120 bytes live for the call; the descriptor is new.
        let fd = unsafe {
            let made = done(libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()))?;
            OwnedFd::from_raw_fd(i32::try_from(made).unwrap())
        };
        assert!(params[FEATURES] & SINGLE_MMAP != 0, "Linux 5.4");
        let map = |len: u32, at| {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
            // SAFETY: a new mapping of the ring, at a free address.
            let map = unsafe { libc::mmap(std::ptr::null_mut(), len as usize, protection, flags, fd.as_raw_fd(), at) };
            assert_ne!(map, libc::MAP_FAILED, "{}", io::Error::last_os_error());
            map
        };
        let requests = params[SQ_ARRAY] + params[SQ_ENTRIES] * 4;
        let answers = params[CQES] + params[CQ_ENTRIES] * 16;
        let (rings, sqes) = (map(requests.max(answers), SQ_RING).cast(), map(64, SQES).cast());
        let vector = [buffer.start, buffer.end - buffer.start];
        let op = REGISTER_BUFFERS;
        // SAFETY: one iovec, which lives for the call; the pages are the caller's.
        done(unsafe { libc::syscall(libc::SYS_io_uring_register, fd.as_raw_fd(), op, vector.as_ptr(), 1) })?;
        Ok(Ring { fd, params, rings, sqes })
    }

    /// Reads from the beginning of a file into the registered buffer. May be called once.
    fn read(&self, file: &std::fs::File, to: u64, len: u32) -> i32 {
        let file = u64::from(file.as_raw_fd().cast_unsigned());
        // SAFETY: the entry, the ring's indexes and its first answer lie in this ring's mappings, at the offsets that
        // the kernel returned.
        unsafe {
            let entry = [u64::from(READ_FIXED) | file << 32, 0, to, u64::from(len), 7, 0, 0, 0];
            self.sqes.cast::<[u64; 8]>().write(entry);
            let at = |offset: usize| self.rings.add(self.params[offset] as usize);
            at(SQ_ARRAY).cast::<u32>().write(0);
            // Release: pairs with the kernel's Acquire, which reads the entry after it.
            (*at(SQ_TAIL).cast::<AtomicU32>()).store(1, Ordering::Release);
            let (fd, none) = (self.fd.as_raw_fd(), std::ptr::null::<u8>());
            assert_eq!(libc::syscall(libc::SYS_io_uring_enter, fd, 1, 1, GETEVENTS, none, 0), 1);
            let [user_data, answer] = at(CQES).cast::<[u64; 2]>().read_volatile();
            assert_eq!(user_data, 7);
            #[allow(clippy::cast_possible_truncation, reason = "the answer is the word's lower half")]
            let answer = answer as u32;
            answer.cast_signed()
        }
    }

    fn unregister(&self) {
        // SAFETY: a call without memory of ours.
        let done = unsafe {
            let (op, none) = (UNREGISTER_BUFFERS, std::ptr::null::<u8>());
            libc::syscall(libc::SYS_io_uring_register, self.fd.as_raw_fd(), op, none, 0)
        };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
    }
}

#[test]
fn pages_pinned_by_io_uring_stay_and_their_neighbours_move() {
    let test = "pages_pinned_by_io_uring_stay_and_their_neighbours_move";
    let Some(heap) = heap(test, 4 << 20) else { return };
    let mut arena = heap.arena(2 << 20, PageSize::Small).unwrap();
    arena[..16 * 4096].fill(1);
    let start = arena.addresses().start;
    let ring = match Ring::new(start + 5 * PAGE..start + 7 * PAGE) {
        Ok(ring) => ring,
        Err(error) => return skip::skip(test, &format!("no io_uring: {error}")),
    };
    let moved = heap.migrate(arena.addresses(), FAST).unwrap();
    assert_eq!((moved.pages, moved.left.pinned, moved.left.all()), (14, 2, 2), "{moved:?}");
    assert_eq!(heap.residency(start + 5 * PAGE..start + 7 * PAGE).unwrap(), [0, 2]);

    let mut exe = std::fs::File::open("/proc/self/exe").unwrap();
    assert_eq!(ring.read(&exe, start + 5 * PAGE, 8192), 8192);
    let mut head = vec![0; 8192];
    exe.read_exact(&mut head).unwrap();
    assert!(arena[5 * 4096..7 * 4096] == head, "the program sees what io_uring has written");

    ring.unregister();
    let moved = heap.migrate(arena.addresses(), FAST).unwrap();
    assert_eq!((moved.pages, moved.left.already), (2, 14), "{moved:?}");
    assert!(arena[5 * 4096..7 * 4096] == head);
    let rest = arena[..5 * 4096].iter().chain(&arena[7 * 4096..16 * 4096]);
    assert!(rest.into_iter().all(|&byte| byte == 1));
    assert_eq!(heap.stats().lost, 0);
}

#[test]
fn a_huge_page_partly_pinned_by_io_uring_stays_whole() {
    let test = "a_huge_page_partly_pinned_by_io_uring_stays_whole";
    let Some(heap) = heap(test, 16 << 20) else { return };
    let mut arena = heap.arena(4 << 20, PageSize::Huge).unwrap();
    arena.fill(1);
    let start = arena.addresses().start;
    let ring = match Ring::new(start + 5 * PAGE..start + 7 * PAGE) {
        Ok(ring) => ring,
        Err(error) => return skip::skip(test, &format!("no io_uring: {error}")),
    };
    let moved = heap.migrate(arena.addresses(), FAST).unwrap();
    let huge = moved.huge > 0;
    if !huge {
        return skip::skip(test, "there are no huge pages");
    }
    assert_eq!((moved.pages, moved.left.pinned, moved.left.all()), (512, 512, 512), "{moved:?}");
    // The refusal has not split the huge page.
    ring.unregister();
    let moved = heap.migrate(arena.addresses(), FAST).unwrap();
    assert_eq!((moved.huge, moved.left.already), (512, 512), "{moved:?}");
    assert!(arena.iter().all(|&byte| byte == 1) && heap.stats().lost == 0);
}
