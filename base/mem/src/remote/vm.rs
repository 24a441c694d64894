//! The system calls that copy bytes to and from another process' memory.
#![allow(unsafe_code, reason = "process_vm_readv, process_vm_writev and kcmp")]

use crate::PAGE_BYTES;
use crate::map::SMALL_BYTES;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use telpher_os::page_presence::BATCH_PAGES;

/// Bytes moved at once; a multiple of the patterns' 16 bytes. Source: chosen; large enough to hide the cost of a system
/// call, and within L2.
pub(super) const CHUNK_BYTES: usize = 64 << 10;
/// Pages of one chunk; an unaligned chunk may touch one more.
pub(super) const CHUNK_PAGES: usize = CHUNK_BYTES / SMALL_BYTES;
const _: () = assert!(CHUNK_PAGES < BATCH_PAGES);

/// The most parts of one transfer: the pages that a chunk touches.
const MAX_PARTS: usize = CHUNK_PAGES + 1;

/// Compare address spaces. Source: Linux `include/uapi/linux/kcmp.h`.
const KCMP_VM: libc::c_int = 1;

/// The end of a range that is processed first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    Ascending,
    Descending,
}

/// Returns the offset of an address in its page.
pub(super) fn in_page(address: u64) -> usize {
    usize::try_from(address % PAGE_BYTES).expect("below a page")
}

/// Another process, which may have ended.
#[derive(Debug)]
pub(super) struct Process {
    id: libc::pid_t,
    /// Detects whether the id still refers to the same process.
    handle: OwnedFd,
}

/// The signature of both transfer calls.
type Call = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

/// The parts of a transfer in the order of their processing: bytes of the local buffer, and addresses in the other
/// process.
struct Parts {
    local: [libc::iovec; MAX_PARTS],
    remote: [libc::iovec; MAX_PARTS],
    count: usize,
}

impl Parts {
    fn new() -> Parts {
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Parts { local: [nothing; MAX_PARTS], remote: [nothing; MAX_PARTS], count: 0 }
    }

    /// Adds `len` bytes, at `offset` of the local buffer and at `address + offset` in the other process.
    fn push(&mut self, buffer: *mut u8, address: u64, offset: usize, len: usize) {
        // Addresses have 64 bits here.
        let remote = usize::try_from(address.wrapping_add(offset as u64)).unwrap_or(usize::MAX);
        self.local[self.count] = libc::iovec { iov_base: buffer.wrapping_add(offset).cast(), iov_len: len };
        self.remote[self.count] = libc::iovec { iov_base: std::ptr::without_provenance_mut(remote), iov_len: len };
        self.count += 1;
    }

    /// Splits a range of at most a chunk: one part if ascending, one part a page if descending.
    fn of_range(buffer: *mut u8, address: u64, len: usize, order: Order) -> Parts {
        let mut parts = Parts::new();
        let mut end = len;
        while order == Order::Descending && end > 0 {
            let behind = address.wrapping_add(end as u64);
            // Bytes of the remaining range that lie on its last page.
            let in_page = usize::try_from((behind - 1) % PAGE_BYTES + 1).unwrap_or(SMALL_BYTES);
            let from = end.saturating_sub(in_page);
            parts.push(buffer, address, from, end - from);
            end = from;
        }
        if end > 0 {
            parts.push(buffer, address, 0, end);
        }
        parts
    }
}

impl Process {
    /// Opens the process with this id; refuses a process that shares this process' memory.
    pub(super) fn new(id: u32) -> io::Result<Process> {
        let process = i32::try_from(id).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        let handle = pidfd_open(process, PidfdFlags::empty())?;
        let id = process.as_raw_pid();
        // SAFETY: takes numbers only.
        let same = unsafe { libc::syscall(libc::SYS_kcmp, libc::getpid(), id, KCMP_VM, 0, 0) };
        // If kcmp is refused, this still detects the plain case.
        if same == 0 || id.cast_unsigned() == std::process::id() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "that is this process' own memory"));
        }
        Ok(Process { id, handle })
    }

    /// False once the process has ended: its id may then be reused.
    fn is_alive(&self) -> bool {
        let mut ended = [PollFd::new(&self.handle, PollFlags::IN)];
        poll(&mut ended, Some(&Timespec::default())) == Ok(0)
    }

    /// Reads at most a chunk. Returns how many bytes were read, from the end that `order` starts with, up to the first
    /// failure.
    pub(super) fn read(&self, address: u64, into: &mut [u8], order: Order) -> usize {
        let parts = Parts::of_range(into.as_mut_ptr(), address, into.len(), order);
        // SAFETY: the parts lie in `into`, which is borrowed mutably for the call.
        unsafe { self.transfer(libc::process_vm_readv, &parts) }
    }

    /// Writes at most a chunk. Returns how many bytes were written, from the end that `order` starts with, up to the
    /// first failure. Nothing past the failure was written.
    pub(super) fn write(&self, address: u64, from: &[u8], order: Order) -> usize {
        let parts = Parts::of_range(from.as_ptr().cast_mut(), address, from.len(), order);
        // SAFETY: the parts lie in `from`, which is borrowed for the call and only read.
        unsafe { self.transfer(libc::process_vm_writev, &parts) }
    }

    /// Writes byte 0 after all others; true if all were written.
    pub(super) fn write_first_byte_last(&self, address: u64, from: &[u8; 32]) -> bool {
        let mut parts = Parts::new();
        parts.push(from.as_ptr().cast_mut(), address, 1, from.len() - 1);
        parts.push(from.as_ptr().cast_mut(), address, 0, 1);
        // The kernel copies part by part, and x86 stores become visible in order.
        // SAFETY: the parts lie in `from`, which is borrowed for the call and only read.
        unsafe { self.transfer(libc::process_vm_writev, &parts) == from.len() }
    }

    /// Makes the kernel bring a page in as for a store (a shared page is copied), without storing anything. The kernel
    /// pins the page of the other process, and then fails to read from the local address.
    pub(super) fn pin_for_writing(&self, address: u64) {
        // A page that cannot be pinned makes the access fail that follows.
        let _ = self.try_pin_for_writing(address);
    }

    /// As [`pin_for_writing`](Process::pin_for_writing).
    ///
    /// # Errors
    /// EPERM if this process may not access the other one's memory, ESRCH if that one has ended. A page that does not
    /// exist, or that no store may change, is not reported.
    pub(super) fn try_pin_for_writing(&self, address: u64) -> io::Result<()> {
        let mut parts = Parts::new();
        // Nothing is mapped on the first page of an address space (`vm.mmap_min_addr`), so no byte is written.
        parts.push(std::ptr::without_provenance_mut(8), address, 0, 1);
        // SAFETY: the kernel only reads from this process, and an address that is not mapped is an error to it.
        let moved = unsafe { self.transfer_parts(libc::process_vm_writev, &parts) };
        match moved.map_err(|error| (error.raw_os_error(), error)) {
            Err((code, error)) if code != Some(libc::EFAULT) => Err(error),
            _ => Ok(()),
        }
    }

    /// # Safety
    /// The parts' buffer allows what `call` does with it: `process_vm_readv` writes it, `process_vm_writev` reads it.
    unsafe fn transfer(&self, call: Call, parts: &Parts) -> usize {
        // SAFETY: the caller's promise is this function's.
        unsafe { self.transfer_parts(call, parts) }.unwrap_or(0)
    }

    /// # Safety
    /// As for [`transfer`](Process::transfer).
    unsafe fn transfer_parts(&self, call: Call, parts: &Parts) -> io::Result<usize> {
        if parts.count == 0 {
            return Ok(0);
        }
        if !self.is_alive() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let count = parts.count as libc::c_ulong;
        // SAFETY: the caller guarantees the buffer; the kernel checks the addresses in the other process.
        let moved = unsafe { call(self.id, parts.local.as_ptr(), count, parts.remote.as_ptr(), count, 0) };
        // Negative: an error at the first byte.
        usize::try_from(moved).map_err(|_| io::Error::last_os_error())
    }

    /// True if the mapping at an address allows stores; false if nothing is mapped there.
    pub(super) fn is_writable(&self, address: u64) -> bool {
        let mut text = String::new();
        let read = File::open(format!("/proc/{}/maps", self.id)).and_then(|mut file| file.read_to_string(&mut text));
        read.is_ok() && self.is_alive() && text.lines().find_map(|line| permits_stores(line, address)).unwrap_or(false)
    }

    /// Opens the table that shows which of its pages are present.
    pub(super) fn pagemap(&self) -> io::Result<OwnedFd> {
        File::open(format!("/proc/{}/pagemap", self.id)).map(OwnedFd::from)
    }
}

/// Returns whether a line of /proc/PID/maps allows stores; `None` if it does not cover the address.
fn permits_stores(line: &str, address: u64) -> Option<bool> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
    (from..to).contains(&address).then(|| words.next().is_some_and(|flags| flags.as_bytes().get(1) == Some(&b'w')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_covers_its_own_range_only() {
        let line = "7f0000001000-7f0000003000 rw-p 00000000 00:00 0 [heap]";
        assert_eq!(permits_stores(line, 0x7f00_0000_1000), Some(true));
        assert_eq!(permits_stores(line, 0x7f00_0000_2fff), Some(true));
        assert_eq!(permits_stores(line, 0x7f00_0000_3000), None);
        assert_eq!(permits_stores("7f0000001000-7f0000003000 r-xp 0 0:0 0", 0x7f00_0000_1000), Some(false));
        assert_eq!(permits_stores("", 0), None);
        assert_eq!(permits_stores("x-y rw-p", 0), None);
    }

    #[test]
    fn this_process_and_no_process_are_refused() {
        for id in [std::process::id(), 0, u32::MAX] {
            assert!(Process::new(id).is_err(), "{id}");
        }
    }

    #[test]
    fn descending_parts_are_pages_from_the_top() {
        let parts = |address, len| {
            let parts = Parts::of_range(std::ptr::null_mut(), address, len, Order::Descending);
            parts.remote[..parts.count].iter().map(|part| (part.iov_base as u64, part.iov_len)).collect::<Vec<_>>()
        };
        assert_eq!(parts(0x1ff0, 0x2020), [(0x4000, 0x10), (0x3000, 0x1000), (0x2000, 0x1000), (0x1ff0, 0x10)]);
        assert_eq!(parts(0x1000, 0x1000), [(0x1000, 0x1000)]);
        assert_eq!(parts(0x1001, 3), [(0x1001, 3)]);
        assert_eq!(parts(0x1000, 0), []);
        assert_eq!(parts(0xfff, CHUNK_BYTES).len(), MAX_PARTS);
    }
}
