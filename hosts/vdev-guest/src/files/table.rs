//! Which of the program's descriptors are ours: a byte for each number, looked at before anything else is done.
//!
//! The byte is a hint. A descriptor may be closed where nobody sees it (inside the C library, by a system call made directly)
//! and its number be given to something else; so whoever acts on a hint asks the kernel what the descriptor is, and takes the
//! hint back if it was wrong. Queues' nodes and guards are not here: see `node` and `guard`.
#![allow(unsafe_code, reason = "a page that the kernel empties in a forked child")]

use crate::sync::{AtomicI32, AtomicPtr, AtomicU8, AtomicU32, Ordering};
use crate::sys;
use std::os::fd::RawFd;

/// Numbers that are followed; a process may have more only if root has raised the system's own limit.
const NUMBERS: usize = 1 << 20;

/// What a descriptor may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Not ours.
    Foreign = 0,
    /// An open attribute.
    Attribute = 1,
    /// A directory from which something of ours can be reached, or anything in the shadow tree.
    Place = 2,
}

static KINDS: [AtomicU8; NUMBERS] = [const { AtomicU8::new(0) }; NUMBERS];
/// Highest number that was ever ours or a node's.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

/// What a descriptor may be. Costs one load.
#[inline]
pub(crate) fn kind(fd: RawFd) -> Kind {
    // Relaxed: a hint; what a program does with one descriptor in two threads at once it has to order itself.
    let code = usize::try_from(fd).ok().and_then(|fd| KINDS.get(fd)).map_or(0, |kind| kind.load(Ordering::Relaxed));
    match code {
        1 => Kind::Attribute,
        2 => Kind::Place,
        _ => Kind::Foreign,
    }
}

/// Says what a descriptor is from now on.
pub(crate) fn set(fd: RawFd, kind: Kind) {
    let Some(place) = usize::try_from(fd).ok().and_then(|fd| KINDS.get(fd)) else { return };
    // Relaxed: as in `kind`.
    if place.load(Ordering::Relaxed) == kind as u8 || !belongs_here() {
        return;
    }
    place.store(kind as u8, Ordering::Relaxed);
    if kind != Kind::Foreign {
        notice(fd);
    }
}

/// Says that a descriptor is something to look at when a range is closed.
pub(crate) fn notice(fd: RawFd) {
    // Relaxed: a bound for loops.
    HIGHEST.fetch_max(fd, Ordering::Relaxed);
}

/// Highest number that was ever ours or a node's; -1 if there was none.
pub(crate) fn highest() -> RawFd {
    HIGHEST.load(Ordering::Relaxed)
}

/// A page with the process's number, empty in a forked child however it was forked.
static OWNER: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Makes that page; called once, before there are threads.
pub(crate) fn start() {
    let (length, anonymous) = (4096, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let protection = sys::word(libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe { sys::call(libc::SYS_mmap, [0, length, protection, sys::word(anonymous), sys::word(-1), 0]) };
    let Ok(page) = page else { return };
    // SAFETY: the mapping made above, which nobody else knows.
    let wiped = unsafe { sys::call(libc::SYS_madvise, [page, length, sys::word(libc::MADV_WIPEONFORK), 0, 0, 0]) };
    if wiped.is_ok() {
        let page = std::ptr::with_exposed_provenance_mut::<AtomicU32>(page);
        // Release: pairs with the Acquire in `belongs_here`.
        OWNER.store(page, Ordering::Release);
    }
}

/// False in a child of vfork(2) (and the like), which has descriptors of its own but shares this memory: what it does with its
/// descriptors before it executes something must not be noted here.
pub(crate) fn belongs_here() -> bool {
    // Acquire: pairs with the Release in `start`.
    let page = OWNER.load(Ordering::Acquire);
    // SAFETY: null, or the page of `start`, which is never unmapped, is aligned, and holds nothing but this number.
    let Some(owner) = (unsafe { page.as_ref() }) else { return true };
    let process = sys::process();
    // Relaxed: one number; in a forked child there is one thread when it is first asked.
    match owner.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => true,
        Err(owner) => owner == process,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_foreign_until_it_is_said_to_be_ours() {
        assert_eq!(kind(70_000), Kind::Foreign);
        set(70_000, Kind::Attribute);
        assert_eq!(kind(70_000), Kind::Attribute);
        assert!(highest() >= 70_000);
        set(70_000, Kind::Foreign);
        assert_eq!(kind(70_000), Kind::Foreign);
    }

    #[test]
    fn numbers_out_of_range_are_foreign() {
        for fd in [-1, i32::MIN, i32::MAX] {
            set(fd, Kind::Place);
            assert_eq!(kind(fd), Kind::Foreign);
        }
    }

    #[test]
    fn a_forked_child_owns_its_table_and_a_vforked_one_does_not() {
        start();
        assert!(belongs_here());
        // SAFETY: a raw clone without new memory for the child; it makes system calls only, and ends. The parent waits in the
        // kernel meanwhile, as for vfork.
        let vforked = unsafe { child(libc::CLONE_VM | libc::CLONE_VFORK) };
        assert_eq!(vforked, 1);
        // SAFETY: a plain fork; the child makes system calls only, and ends.
        let forked = unsafe { child(0) };
        assert_eq!(forked, 0);
    }

    /// Runs `belongs_here` in a child; 0 if it answered true.
    ///
    /// # Safety
    /// The flags are those of fork or vfork.
    unsafe fn child(flags: std::ffi::c_int) -> std::ffi::c_int {
        extern "C" fn ask(_: *mut std::ffi::c_void) -> std::ffi::c_int {
            std::ffi::c_int::from(!belongs_here())
        }
        let mut stack = vec![0_u128; 4096];
        // SAFETY: the stack outlives the child, which is waited for.
        unsafe {
            let top = stack.as_mut_ptr().add(stack.len());
            let child = libc::clone(ask, top.cast(), flags | libc::SIGCHLD, std::ptr::null_mut());
            assert!(child > 0);
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            libc::WEXITSTATUS(status)
        }
    }
}
