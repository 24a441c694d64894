//! Descriptors of this library inside the program: at high numbers, and out of the program's reach.
//!
//! A mapping of a queue keeps the open file as the kernel's mapping would: by a duplicate. Programs close what they do not
//! know (close_range, loops over all numbers, twice the same), so those calls ask here first.

use crate::sync::{AtomicI32, Ordering};
use crate::sys::{self, Errno};
use std::os::fd::RawFd;

/// Most descriptors this library keeps. Source: chosen; one for each open file that is mapped.
const MAX_GUARDS: usize = 1024;
/// Highest number from which guards are looked for: the kernel's table of descriptors grows with the highest one.
const HIGHEST_BASE: u64 = 3072;

const NONE: i32 = -1;

static GUARDS: [AtomicI32; MAX_GUARDS] = [const { AtomicI32::new(NONE) }; MAX_GUARDS];
/// One past the highest place ever taken.
static USED: AtomicI32 = AtomicI32::new(0);

/// True for a descriptor the program must not see: closing it answers EBADF, a range of closes leaves it out.
#[inline]
pub(crate) fn is_guard(fd: RawFd) -> bool {
    fd >= 0 && used().iter().any(|guard| guard.load(Ordering::Relaxed) == fd)
}

/// The lowest guard at or above a number.
pub(crate) fn next(from: RawFd) -> Option<RawFd> {
    used().iter().map(|guard| guard.load(Ordering::Relaxed)).filter(|fd| *fd >= from.max(0)).min()
}

/// A guarded duplicate of a descriptor.
///
/// # Errors
/// The system's refusal, or EMFILE.
pub(crate) fn duplicate(fd: RawFd) -> Result<RawFd, Errno> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let base = usize::try_from(HIGHEST_BASE.min(limit / 4 * 3)).unwrap_or_default();
    let copy = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, base).map(sys::descriptor)?;
    for (place, guard) in GUARDS.iter().enumerate() {
        // Relaxed: a number of its own, published by nothing; whoever closes everything at this very moment loses a race
        // that it has with any other thread's open, too.
        if guard.compare_exchange(NONE, copy, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            USED.fetch_max(i32::try_from(place + 1).unwrap_or(i32::MAX), Ordering::Relaxed);
            return Ok(copy);
        }
    }
    let _ = sys::close(copy);
    Err(Errno::MFILE)
}

/// Where a guard's number is kept: another number once the guard has been moved, negative once it is closed.
pub(crate) fn place_of(fd: RawFd) -> Option<&'static AtomicI32> {
    used().iter().find(|guard| fd >= 0 && guard.load(Ordering::Relaxed) == fd)
}

/// Closes a guard.
pub(crate) fn close(fd: RawFd) {
    for guard in used() {
        if guard.compare_exchange(fd, NONE, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let _ = sys::close(fd);
            return;
        }
    }
}

/// Moves a guard away from a number that the program wants for a duplicate (dup2, dup3). The answer is true if one lay there.
///
/// # Errors
/// The system's refusal, or EMFILE.
pub(crate) fn make_room(fd: RawFd) -> Result<bool, Errno> {
    for guard in used() {
        if guard.load(Ordering::Relaxed) == fd {
            let base = usize::try_from(fd).unwrap_or_default() + 1;
            let copy = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, base).map(sys::descriptor)?;
            crate::node::guard_moved(fd, copy);
            // Release: who reads the new number finds the file there.
            guard.store(copy, Ordering::Release);
            return Ok(true);
        }
    }
    Ok(false)
}

/// Closes them all: in a forked child, whose mappings are gone.
pub(crate) fn close_all() {
    for guard in used() {
        let fd = guard.swap(NONE, Ordering::Relaxed);
        if fd >= 0 {
            let _ = sys::close(fd);
        }
    }
}

fn used() -> &'static [AtomicI32] {
    let used = usize::try_from(USED.load(Ordering::Relaxed)).unwrap_or_default();
    &GUARDS[..used.min(MAX_GUARDS)]
}
