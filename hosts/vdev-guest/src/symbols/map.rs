//! Mappings: mmap of a node makes a portal, and whoever changes mappings meets the portals in the range.
//!
//! A portal is a page of zeros that can only be read: stores into it trap and reach the queue. It looks to the program as the
//! kernel's mapping of a device does: EPERM and EINVAL where that has them, nothing left of it in a forked child.
#![allow(unsafe_code, reason = "stands in front of the C library's functions of these names")]

use crate::node::{self, Access};
use crate::observe;
use crate::portal::{PORTAL_BYTES, PORTALS, Portal};
use crate::start::start;
use crate::sys::{self, Errno, call, word};
use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;

/// A page, as the kernel counts them.
const PAGE: usize = 4096;
const _: () = assert!(PAGE as u64 == PORTAL_BYTES);
/// Flags of mmap(2) that say where the portal may lie; all others mean nothing for it, or are checked.
const PLACING: c_int = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_32BIT | libc::MAP_POPULATE;

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
    let asked = Asked { address: address.expose_provenance(), len, protection, flags, fd, offset };
    // SAFETY: forwarded.
    let mapped = unsafe { map(&asked) };
    mapped.map_or_else(
        |error| {
            sys::set_errno(error);
            libc::MAP_FAILED
        },
        std::ptr::with_exposed_provenance_mut,
    )
}

/// mmap(2) with the other name of the same offset type.
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
        leave(address, len);
    }
    // SAFETY: forwarded.
    let done = unsafe { call(libc::SYS_munmap, [address, len, 0, 0, 0, 0]) };
    sys::answer_int(done.map(|_| 0))
}

/// mremap(2), whose last argument is there only with some flags.
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
    // What moves or shrinks is the device's no more than what is unmapped.
    if new_len < old_len || flags & libc::MREMAP_FIXED != 0 {
        let gone = if flags & libc::MREMAP_FIXED != 0 {
            (address, old_len)
        } else {
            (address.wrapping_add(new_len), old_len - new_len)
        };
        observe::unmapped(gone.0 as u64, gone.1 as u64);
    }
    if flags & libc::MREMAP_FIXED != 0 && is_range(to, new_len) {
        leave(to, new_len);
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
    // What the kernel refuses on a device's pages; the rest does nothing to them.
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

/// What mmap(2) was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    address: usize,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: RawFd,
    offset: i64,
}

/// # Safety
/// As mmap(2).
unsafe fn map(asked: &Asked) -> Result<usize, Errno> {
    let Asked { address, len, protection, flags, fd, offset } = *asked;
    let access = if flags & libc::MAP_ANONYMOUS == 0 { access_of(fd, flags, len) } else { None };
    if flags & libc::MAP_FIXED != 0 {
        observe::unmapped(address as u64, len as u64);
    }
    let replaces = flags & libc::MAP_FIXED != 0 && is_range(address, len);
    let Some(access) = access else {
        if replaces {
            leave(address, len);
        }
        let arguments = [address, len, word(protection), word(flags), word(fd), bits(offset)];
        // SAFETY: forwarded.
        let mapped = unsafe { call(libc::SYS_mmap, arguments) };
        // The file system maps no file; of a node that is not known yet, the driver would have told what is wrong.
        if mapped == Err(Errno::NODEV)
            && flags & libc::MAP_ANONYMOUS == 0
            && node::join(fd)
            && let Some(access) = node::access(fd)
        {
            check(asked, access)?;
        }
        return mapped;
    };
    check(asked, access)?;
    if replaces {
        leave(address, len);
    }
    let shared = flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
    // A private mapping of device pages is copied at the first store: an ordinary page, and no way to the queue.
    let real = if shared { portal_protection(protection) } else { protection };
    let flags = flags & PLACING | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the program asked for a mapping there.
    let base = unsafe { call(libc::SYS_mmap, [address, PAGE, word(real), word(flags), usize::MAX, 0]) }?;
    // SAFETY: the page just mapped. The driver's mappings are not inherited by children (VM_DONTCOPY).
    let _ = unsafe { call(libc::SYS_madvise, [base, PAGE, word(libc::MADV_DONTFORK), 0, 0, 0]) };
    if shared {
        let writable = protection & libc::PROT_WRITE != 0;
        let portal = Portal { address: base as u64, file: access.number, writable, may_write: access.may_write };
        if let Err(error) = node::page_mapped(fd, portal) {
            // SAFETY: the page just mapped, which nobody knows of.
            let _ = unsafe { call(libc::SYS_munmap, [base, PAGE, 0, 0, 0, 0]) };
            return Err(error);
        }
    }
    Ok(base)
}

/// An offset as the argument of a system call.
fn bits(offset: i64) -> usize {
    // Cannot lose bits: both have 64.
    usize::try_from(offset.cast_unsigned()).unwrap_or_default()
}

/// The node behind a descriptor, if it is one. A file of the file-system view becomes known here, at its first mapping.
fn access_of(fd: RawFd, flags: c_int, len: usize) -> Option<Access> {
    if fd < 0 {
        return None;
    }
    let may_be = node::is_node(fd) || (len <= PAGE && flags & libc::MAP_TYPE != libc::MAP_PRIVATE);
    if may_be && node::join(fd) { node::access(fd) } else { None }
}

/// What the kernel checks, in its order: the call, the file's mode, the driver. Source: K612 `mm/mmap.c`, `cdev.c`.
fn check(asked: &Asked, access: Access) -> Result<(), Errno> {
    let Asked { address, len, protection, flags, offset, .. } = *asked;
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
    // A handler of the program that closes the file would wait for this thread to come out.
    let _put_off = telpher_interpose::signals::defer();
    let inside = if access.own { node::enter(access.number) } else { None };
    // Refused for being unsafe comes before refused for being another's; both are EPERM.
    let Some(inside) = inside else { return Err(Errno::PERM) };
    match node::replica(&inside).opened.mmap_errno {
        0 if len > PAGE => Err(Errno::INVAL),
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

/// What a portal's page is really mapped with: it can be read if the program's page could, and never stored into.
fn portal_protection(protection: c_int) -> c_int {
    // Without PROT_READ, x86 lets a page that can be written be read as well.
    if protection & (libc::PROT_READ | libc::PROT_WRITE) != 0 { libc::PROT_READ } else { libc::PROT_NONE }
}

/// True for what the kernel takes as a range of pages.
fn is_range(address: usize, len: usize) -> bool {
    !PORTALS.is_empty() && len != 0 && address.is_multiple_of(PAGE) && address.checked_add(len).is_some()
}

/// The portals of a range are about to go.
fn leave(address: usize, len: usize) {
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
    // SAFETY: forwarded; the page keeps its flags where it goes.
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
            // SAFETY: forwarded, for what lies before the portal.
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
    // SAFETY: forwarded, for what is left.
    unsafe { call(libc::SYS_mprotect, [begin, end.wrapping_sub(begin), word(protection), 0, 0, 0]) }.map(|_| ())
}
