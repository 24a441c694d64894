//! Which of the program's descriptors are ours: one byte per number, checked before anything else.
//!
//! The byte is a hint. A descriptor may be closed without this library seeing it (inside the C library, by a direct
//! system call) and its number reused. So before acting on a hint the caller asks the kernel what the descriptor is,
//! and clears a wrong hint. Queues' nodes and guards are not in this table: see `node` and `guard`.
#![allow(unsafe_code, reason = "a page that the kernel empties in a forked child")]

use crate::sync::{AtomicI32, AtomicPtr, AtomicU8, AtomicU32, Ordering};
use crate::sys;
use std::os::fd::RawFd;

/// Descriptor numbers that are tracked; a process has higher ones only if root has raised the system's limit.
const NUMBERS: usize = 1 << 20;

/// The presumed kind of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Not ours.
    Foreign = 0,
    /// An open attribute.
    Attribute = 1,
    /// A directory from which paths can reach our files, or any entry of the shadow tree.
    Watched = 2,
    /// An event of a device's perf PMU.
    PerfEvent = 3,
    /// A window to this process's memory.
    Window = 4,
}

static KINDS: [AtomicU8; NUMBERS] = [const { AtomicU8::new(0) }; NUMBERS];
/// Highest number that was ever ours or a node's.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

/// The presumed kind of a descriptor. Costs one load.
#[inline]
pub(crate) fn kind(fd: RawFd) -> Kind {
    // Relaxed: a hint; a program that uses one descriptor in two threads at once must synchronise itself.
    let code = usize::try_from(fd).ok().and_then(|fd| KINDS.get(fd)).map_or(0, |kind| kind.load(Ordering::Relaxed));
    match code {
        1 => Kind::Attribute,
        2 => Kind::Watched,
        3 => Kind::PerfEvent,
        4 => Kind::Window,
        _ => Kind::Foreign,
    }
}

/// Records the kind of a descriptor.
pub(crate) fn set(fd: RawFd, kind: Kind) {
    let Some(entry) = usize::try_from(fd).ok().and_then(|fd| KINDS.get(fd)) else { return };
    // Relaxed: as in `kind`.
    if entry.load(Ordering::Relaxed) == kind as u8 || !belongs_here() {
        return;
    }
    entry.store(kind as u8, Ordering::Relaxed);
    if kind != Kind::Foreign {
        notice(fd);
    }
}

/// Records that a descriptor must be examined when a range of descriptors is closed.
pub(crate) fn notice(fd: RawFd) {
    // Relaxed: a bound for loops.
    HIGHEST.fetch_max(fd, Ordering::Relaxed);
}

/// Highest number that was ever ours or a node's; -1 if there was none.
pub(crate) fn highest() -> RawFd {
    HIGHEST.load(Ordering::Relaxed)
}

/// A page with the process number; the kernel clears it in a forked child.
static OWNER: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Creates that page; called once, before there are other threads.
pub(crate) fn start() {
    let (length, anonymous) = (4096, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let protection = sys::word(libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new mapping at an address that the kernel picks.
    let page = unsafe { sys::call(libc::SYS_mmap, [0, length, protection, sys::word(anonymous), sys::word(-1), 0]) };
    let Ok(page) = page else { return };
    // SAFETY: the mapping made above, which no other code knows.
    let wiped = unsafe { sys::call(libc::SYS_madvise, [page, length, sys::word(libc::MADV_WIPEONFORK), 0, 0, 0]) };
    if wiped.is_ok() {
        let page = std::ptr::with_exposed_provenance_mut::<AtomicU32>(page);
        // Release: pairs with the Acquire in `belongs_here`.
        OWNER.store(page, Ordering::Release);
    }
}

/// False in a child of vfork(2) (and similar), which has its own descriptors but shares this memory: its changes to
/// descriptors before it executes a program must not be recorded here.
pub(crate) fn belongs_here() -> bool {
    // Acquire: pairs with the Release in `start`.
    let page = OWNER.load(Ordering::Acquire);
    // SAFETY: null, or the page of `start`, which is never unmapped, is aligned, and contains only this number.
    let Some(owner) = (unsafe { page.as_ref() }) else { return true };
    let process = sys::process();
    // Relaxed: a single number; a forked child has one thread at its first check.
    match owner.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => true,
        Err(owner) => owner == process,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_foreign_until_it_is_set() {
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
            set(fd, Kind::Watched);
            assert_eq!(kind(fd), Kind::Foreign);
        }
    }

    #[test]
    fn a_forked_child_owns_its_table_and_a_vforked_one_does_not() {
        start();
        assert!(belongs_here());
        // SAFETY: a raw clone that shares memory with the child; the child makes only system calls and ends. The parent
        // waits in the kernel meanwhile, as for vfork.
        let vforked = unsafe { child(libc::CLONE_VM | libc::CLONE_VFORK) };
        assert_eq!(vforked, 1);
        // SAFETY: a plain fork; the child makes only system calls and ends.
        let forked = unsafe { child(0) };
        assert_eq!(forked, 0);
    }

    /// Runs `belongs_here` in a child; returns 0 if its result was true.
    ///
    /// # Safety
    /// The flags are those of fork or vfork.
    unsafe fn child(flags: std::ffi::c_int) -> std::ffi::c_int {
        extern "C" fn ask(_: *mut std::ffi::c_void) -> std::ffi::c_int {
            std::ffi::c_int::from(!belongs_here())
        }
        let mut stack = vec![0_u128; 4096];
        // SAFETY: the stack outlives the child, which the parent waits for.
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
