//! Mappings: mmap of a node creates a portal, and every change of mappings updates the portals in its range.
//!
//! A portal is a read-only page of zeros: stores into it trap and reach the queue. It behaves like the kernel's mapping
//! of a device: EPERM and EINVAL in the same cases, and a forked child does not inherit it.
#![allow(unsafe_code, reason = "replaces the C library's functions of these names")]

use crate::node::{self, Access};
use crate::observe;
use crate::portal::{PORTAL_BYTES, PORTALS, Portal};
use crate::start::start;
use crate::sys::{self, Errno, call, word};
use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;

/// The kernel's page size.
const PAGE: usize = 4096;
const _: () = assert!(PAGE as u64 == PORTAL_BYTES);
/// Flags of mmap(2) that choose the portal's address; all others have no effect on it, or are checked.
const PLACEMENT: c_int = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_32BIT | libc::MAP_POPULATE;

/// mmap(2).
///
/// # Safety
/// As mmap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn mmap(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    start();
    let requested = MmapCall { address: address.expose_provenance(), len, protection, flags, fd, offset };
    // SAFETY: forwarded.
    let mapped = unsafe { map(&requested) };
    mapped.map_or_else(
        |error| {
            sys::set_errno(error);
            libc::MAP_FAILED
        },
        std::ptr::with_exposed_provenance_mut,
    )
}

/// mmap(2) under its other name, with the same offset type.
///
/// # Safety
/// As mmap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn mmap64(
    address: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: forwarded.
    unsafe { mmap(address, len, protection, flags, fd, offset) }
}

/// munmap(2).
///
/// # Safety
/// As munmap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn munmap(address: *mut c_void, len: usize) -> c_int {
    let address = address.expose_provenance();
    observe::unmapped(address as u64, len as u64);
    if is_range(address, len) {
        unmap_portals(address, len);
    }
    // SAFETY: forwarded.
    let done = unsafe { call(libc::SYS_munmap, [address, len, 0, 0, 0, 0]) };
    sys::answer_int(done.map(|_| 0))
}

/// mremap(2), whose last argument is present only with some flags.
///
/// # Safety
/// As mremap(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn mremap(
    address: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new_address: *mut c_void,
) -> *mut c_void {
    let (address, to) = (address.expose_provenance(), new_address.expose_provenance());
    // A range that moves or shrinks counts as unmapped for the check.
    if new_len < old_len || flags & libc::MREMAP_FIXED != 0 {
        let gone = if flags & libc::MREMAP_FIXED != 0 {
            (address, old_len)
        } else {
            (address.wrapping_add(new_len), old_len - new_len)
        };
        observe::unmapped(gone.0 as u64, gone.1 as u64);
    }
    if flags & libc::MREMAP_FIXED != 0 && is_range(to, new_len) {
        unmap_portals(to, new_len);
    }
    // SAFETY: forwarded.
    let moved = unsafe { remap([address, old_len, new_len, word(flags), to, 0]) };
    moved.map_or_else(
        |error| {
            sys::set_errno(error);
            libc::MAP_FAILED
        },
        std::ptr::with_exposed_provenance_mut,
    )
}

/// mprotect(2).
///
/// # Safety
/// As mprotect(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn mprotect(address: *mut c_void, len: usize, protection: c_int) -> c_int {
    // SAFETY: forwarded.
    sys::answer_int(unsafe { protect(address.expose_provenance(), len, protection) }.map(|()| 0))
}

/// madvise(2).
///
/// # Safety
/// As madvise(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    let address = address.expose_provenance();
    let touched = is_range(address, len) && PORTALS.first_in(address as u64, (address + len) as u64).is_some();
    // The kernel refuses these on a device's pages; other advice has no effect on them.
    let refused = [
        libc::MADV_DOFORK,
        libc::MADV_DONTNEED,
        libc::MADV_FREE,
        libc::MADV_REMOVE,
        libc::MADV_COLD,
        libc::MADV_PAGEOUT,
        libc::MADV_WIPEONFORK,
        libc::MADV_POPULATE_READ,
        libc::MADV_POPULATE_WRITE,
    ];
    if touched && refused.contains(&advice) {
        return sys::answer_int(Err(Errno::INVAL));
    }
    // SAFETY: forwarded.
    let done = unsafe { call(libc::SYS_madvise, [address, len, word(advice), 0, 0, 0]) };
    sys::answer_int(done.map(|_| 0))
}

/// The arguments of mmap(2).
#[derive(Clone, Copy, Debug)]
struct MmapCall {
    address: usize,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: RawFd,
    offset: i64,
}

/// # Safety
/// As mmap(2).
unsafe fn map(requested: &MmapCall) -> Result<usize, Errno> {
    let MmapCall { address, len, protection, flags, fd, offset } = *requested;
    let access = if flags & libc::MAP_ANONYMOUS == 0 { access_of(fd, flags, len) } else { None };
    if flags & libc::MAP_FIXED != 0 {
        observe::unmapped(address as u64, len as u64);
    }
    let replaces = flags & libc::MAP_FIXED != 0 && is_range(address, len);
    let Some(access) = access else {
        if replaces {
            unmap_portals(address, len);
        }
        let arguments = [address, len, word(protection), word(flags), word(fd), bits(offset)];
        // SAFETY: forwarded.
        let mapped = unsafe { call(libc::SYS_mmap, arguments) };
        // The file system cannot map the file; if this is an unknown node, return the driver's errno instead.
        if mapped == Err(Errno::NODEV)
            && flags & libc::MAP_ANONYMOUS == 0
            && node::join(fd)
            && let Some(access) = node::access(fd)
        {
            check(requested, access)?;
        }
        return mapped;
    };
    check(requested, access)?;
    if replaces {
        unmap_portals(address, len);
    }
    let shared = flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
    // A private mapping of device pages is copied at the first store: then it is an ordinary page that does not reach
    // the queue.
    let real = if shared { portal_protection(protection) } else { protection };
    let flags = flags & PLACEMENT | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the program requested a mapping there.
    let base = unsafe { call(libc::SYS_mmap, [address, PAGE, word(real), word(flags), usize::MAX, 0]) }?;
    // SAFETY: the page just mapped. The driver's mappings are not inherited by children (VM_DONTCOPY).
    let _ = unsafe { call(libc::SYS_madvise, [base, PAGE, word(libc::MADV_DONTFORK), 0, 0, 0]) };
    if shared {
        let writable = protection & libc::PROT_WRITE != 0;
        let portal = Portal { address: base as u64, file: access.number, writable, may_write: access.may_write };
        if let Err(error) = node::page_mapped(fd, portal) {
            // SAFETY: the page just mapped, which no other code knows.
            let _ = unsafe { call(libc::SYS_munmap, [base, PAGE, 0, 0, 0, 0]) };
            return Err(error);
        }
    }
    Ok(base)
}

/// Converts an offset to the argument of a system call.
fn bits(offset: i64) -> usize {
    // Cannot lose bits: both have 64.
    usize::try_from(offset.cast_unsigned()).unwrap_or_default()
}

/// The node behind a descriptor, if it is one. A file of the namespace view becomes known here, at its first mapping.
fn access_of(fd: RawFd, flags: c_int, len: usize) -> Option<Access> {
    if fd < 0 {
        return None;
    }
    let may_be = node::is_node(fd) || (len <= PAGE && flags & libc::MAP_TYPE != libc::MAP_PRIVATE);
    if may_be && node::join(fd) { node::access(fd) } else { None }
}

/// The kernel's checks in their order: the call, the file's mode, the driver. Source: K612 `mm/mmap.c`, `cdev.c`.
fn check(requested: &MmapCall, access: Access) -> Result<(), Errno> {
    let MmapCall { address, len, protection, flags, offset, .. } = *requested;
    if len == 0 || !offset.cast_unsigned().is_multiple_of(PORTAL_BYTES) {
        return Err(Errno::INVAL);
    }
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 && !address.is_multiple_of(PAGE) {
        return Err(Errno::INVAL);
    }
    match flags & libc::MAP_TYPE {
        libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE => {
            if protection & libc::PROT_WRITE != 0 && !access.may_write {
                return Err(Errno::ACCESS);
            }
        }
        libc::MAP_PRIVATE => {}
        _ => return Err(Errno::INVAL),
    }
    if !access.may_read {
        return Err(Errno::ACCESS);
    }
    // Otherwise a signal handler of the program that closes the file would wait for this thread.
    let _deferred = telpher_interpose::signals::defer();
    let inside = if access.own { node::enter(access.number) } else { None };
    // The driver checks for an unsafe device first, then for another address space; both give EPERM.
    let Some(inside) = inside else { return Err(Errno::PERM) };
    match node::replica(&inside).opened().mmap_errno {
        0 if len > PAGE => Err(Errno::INVAL),
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

/// The real protection of a portal page: readable if the program requested access, never writable.
fn portal_protection(protection: c_int) -> c_int {
    // On x86 a writable page is readable also without PROT_READ.
    if protection & (libc::PROT_READ | libc::PROT_WRITE) != 0 { libc::PROT_READ } else { libc::PROT_NONE }
}

/// True for a valid range of pages, if there are portals.
fn is_range(address: usize, len: usize) -> bool {
    !PORTALS.is_empty() && len != 0 && address.is_multiple_of(PAGE) && address.checked_add(len).is_some()
}

/// Removes the portals of a range that is about to be unmapped.
fn unmap_portals(address: usize, len: usize) {
    let end = (address + len.next_multiple_of(PAGE)) as u64;
    while let Some(portal) = PORTALS.first_in(address as u64, end) {
        node::page_unmapped(portal);
    }
}

/// # Safety
/// As mremap(2).
unsafe fn remap(arguments: [usize; 6]) -> Result<usize, Errno> {
    let [address, old_len, new_len, ..] = arguments;
    let portal = if is_range(address, old_len.max(1)) { PORTALS.find(address as u64) } else { None };
    let Some(portal) = portal else {
        // SAFETY: forwarded.
        return unsafe { call(libc::SYS_mremap, arguments) };
    };
    // Source: K612 `mm/mremap.c`: a device's mapping (VM_DONTEXPAND, VM_PFNMAP) is neither duplicated nor grown.
    if old_len == 0 {
        return Err(Errno::INVAL);
    }
    if new_len > old_len {
        return Err(Errno::FAULT);
    }
    // SAFETY: forwarded; the page keeps its flags at the new address.
    let moved = unsafe { call(libc::SYS_mremap, arguments) }?;
    if moved != address {
        node::page_changed(portal, Some(moved as u64));
    }
    Ok(moved)
}

/// # Safety
/// As mprotect(2).
unsafe fn protect(address: usize, len: usize, protection: c_int) -> Result<(), Errno> {
    let mut begin = address;
    let end = address.saturating_add(len);
    while is_range(begin, end.saturating_sub(begin)) {
        let Some(portal) = PORTALS.first_in(begin as u64, end as u64) else { break };
        let page = usize::try_from(portal.address).map_err(|_| Errno::INVAL)?;
        let writable = protection & libc::PROT_WRITE != 0;
        if writable && !portal.may_write {
            return Err(Errno::ACCESS);
        }
        if page > begin {
            // SAFETY: forwarded, for the pages before the portal.
            unsafe { call(libc::SYS_mprotect, [begin, page - begin, word(protection), 0, 0, 0]) }?;
        }
        // SAFETY: the portal's page, which is never made writable.
        unsafe { call(libc::SYS_mprotect, [page, PAGE, word(portal_protection(protection)), 0, 0, 0]) }?;
        node::page_changed(Portal { writable, ..portal }, None);
        begin = page + PAGE;
    }
    if begin >= end && begin != address {
        return Ok(());
    }
    // SAFETY: forwarded, for the remaining pages.
    unsafe { call(libc::SYS_mprotect, [begin, end.wrapping_sub(begin), word(protection), 0, 0, 0]) }.map(|_| ())
}
