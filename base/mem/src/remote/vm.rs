//! Bytes to and from another process' memory: the system calls.
#![allow(unsafe_code, reason = "process_vm_readv, process_vm_writev, pidfd_open, kcmp and poll")]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Parts of one transfer, at most.
const MAX_PARTS: usize = 18;

/// Comparison of address spaces. Source: Linux `include/uapi/linux/kcmp.h`.
const KCMP_VM: libc::c_int = 1;

/// A part of a transfer: an address over there, and how many bytes. The parts of a transfer follow each other here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) address: u64,
    pub(super) len: usize,
}

/// Another process, alive or not.
#[derive(Debug)]
pub(super) struct Process {
    id: libc::pid_t,
    /// Tells whether the number still means the same process.
    handle: OwnedFd,
}

impl Process {
    /// The process of a number; refuses one that has this process' own memory.
    pub(super) fn new(id: u32) -> io::Result<Process> {
        let id = libc::pid_t::try_from(id).ok().filter(|id| *id > 0).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: pidfd_open and kcmp take numbers; the descriptor is new and owned by nobody else.
        let (handle, same) = unsafe {
            let handle = libc::syscall(libc::SYS_pidfd_open, id, 0);
            let handle = i32::try_from(handle).ok().filter(|handle| *handle >= 0).ok_or_else(io::Error::last_os_error)?;
            let same = libc::syscall(libc::SYS_kcmp, libc::getpid(), id, KCMP_VM, 0, 0);
            (OwnedFd::from_raw_fd(handle), same)
        };
        // A kernel without kcmp answers ENOSYS; then at least the plain case is caught.
        if same == 0 || u32::try_from(id).is_ok_and(|id| id == std::process::id()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "that is this process' own memory"));
        }
        Ok(Process { id, handle })
    }

    /// False once it has ended: its number may then become another process'.
    fn is_alive(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.handle.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, which outlives the call.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 0 }
    }

    /// Reads the parts, in their order, into `into`, whose length is their sum. Returns the bytes read before the first that
    /// could not be.
    pub(super) fn read(&self, parts: &[Part], into: &mut [u8]) -> usize {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: the kernel writes `into`, which is borrowed mutably for the call.
        unsafe { self.transfer(libc::process_vm_readv, local, parts) }
    }

    /// Writes `from` to the parts, in their order. Returns the bytes written before the first that could not be; behind it
    /// nothing was.
    pub(super) fn write(&self, parts: &[Part], from: &[u8]) -> usize {
        let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
        // SAFETY: the kernel only reads `from`, which is borrowed for the call.
        unsafe { self.transfer(libc::process_vm_writev, local, parts) }
    }

    /// Makes the kernel bring a page in as for a store (a copy of a shared page is made), without storing anything: it pins the
    /// page over there first, then finds nothing to read here.
    pub(super) fn pin_for_writing(&self, address: u64) {
        // The first page of an address space is never mapped (`vm.mmap_min_addr`); should it be, one byte of it is written
        // where the caller wanted to write anyway.
        let nothing = libc::iovec { iov_base: std::ptr::without_provenance_mut(8), iov_len: 1 };
        // SAFETY: the kernel only reads here, and checks before it does.
        unsafe { self.transfer(libc::process_vm_writev, nothing, &[Part { address, len: 1 }]) };
    }

    /// # Safety
    /// `call` is one of the two, and may read or write what `local` names.
    unsafe fn transfer(&self, call: Call, local: libc::iovec, parts: &[Part]) -> usize {
        let mut remote = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MAX_PARTS];
        assert!(parts.len() <= MAX_PARTS, "a chunk is cut into pages");
        for (place, part) in remote.iter_mut().zip(parts) {
            // Addresses have 64 bits here.
            let address = usize::try_from(part.address).unwrap_or(usize::MAX);
            *place = libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: part.len };
        }
        if !self.is_alive() {
            return 0;
        }
        // SAFETY: the kernel checks the addresses over there, and knows how many of `remote` count; `local` is the caller's.
        let moved = unsafe { call(self.id, &raw const local, 1, remote.as_ptr(), parts.len() as libc::c_ulong, 0) };
        usize::try_from(moved).unwrap_or(0)
    }

    /// True if the mapping of an address allows stores; false if there is none.
    pub(super) fn is_writable(&self, address: u64) -> bool {
        let mut text = String::new();
        let read = File::open(format!("/proc/{}/maps", self.id)).and_then(|mut file| file.read_to_string(&mut text));
        read.is_ok() && self.is_alive() && text.lines().find_map(|line| permits(line, address)).unwrap_or(false)
    }

    /// The table that tells which of its pages are present.
    pub(super) fn pagemap(&self) -> io::Result<File> {
        File::open(format!("/proc/{}/pagemap", self.id))
    }
}

/// What both calls look like.
type Call = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

/// Whether a line of /proc/PID/maps allows stores, if it is the line of that address.
fn permits(line: &str, address: u64) -> Option<bool> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
    (from..to).contains(&address).then(|| words.next().is_some_and(|flags| flags.as_bytes().get(1) == Some(&b'w')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_speaks_for_its_own_range() {
        let line = "7f0000001000-7f0000003000 rw-p 00000000 00:00 0 [heap]";
        assert_eq!(permits(line, 0x7f00_0000_1000), Some(true));
        assert_eq!(permits(line, 0x7f00_0000_2fff), Some(true));
        assert_eq!(permits(line, 0x7f00_0000_3000), None);
        assert_eq!(permits("7f0000001000-7f0000003000 r-xp 0 0:0 0", 0x7f00_0000_1000), Some(false));
        assert_eq!(permits("", 0), None);
        assert_eq!(permits("x-y rw-p", 0), None);
    }

    #[test]
    fn this_process_and_no_process_are_refused() {
        for id in [std::process::id(), 0, u32::MAX] {
            assert!(Process::new(id).is_err(), "{id}");
        }
    }
}
