//! Descriptors that this library keeps in the program: at high numbers, and protected from the program.
//!
//! A mapping of a queue must keep the open file alive, as the kernel's mapping would; a duplicate descriptor does.
//! Programs close descriptors they do not know (close_range, loops over all numbers, some twice), so those calls check
//! for guards first.

use crate::sync::{AtomicI32, Ordering};
use crate::sys::{self, Errno};
use std::os::fd::RawFd;

/// Most descriptors that this library keeps. Source: chosen; one per mapped open file.
const MAX_GUARDS: usize = 1024;
/// Highest number from which a free guard number is searched: the kernel's descriptor table grows with the highest
/// number.
const HIGHEST_BASE: u64 = 3072;

const NONE: i32 = -1;

static GUARDS: [AtomicI32; MAX_GUARDS] = [const { AtomicI32::new(NONE) }; MAX_GUARDS];
/// One past the highest element ever used.
static USED: AtomicI32 = AtomicI32::new(0);

/// True for a descriptor that the program must not see: closing it returns EBADF, and closing a range skips it.
#[inline]
pub(crate) fn is_guard(fd: RawFd) -> bool {
    fd >= 0 && used().iter().any(|guard| guard.load(Ordering::Relaxed) == fd)
}

/// The lowest guard at or above a number.
pub(crate) fn next(from: RawFd) -> Option<RawFd> {
    used().iter().map(|guard| guard.load(Ordering::Relaxed)).filter(|fd| *fd >= from.max(0)).min()
}

/// Creates a guarded duplicate of a descriptor.
///
/// # Errors
/// The system's refusal, or EMFILE.
pub(crate) fn duplicate(fd: RawFd) -> Result<RawFd, Errno> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let base = usize::try_from(HIGHEST_BASE.min(limit / 4 * 3)).unwrap_or_default();
    let copy = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, base).map(sys::descriptor)?;
    for (place, guard) in GUARDS.iter().enumerate() {
        // Relaxed: the number publishes nothing. A thread that closes everything at this moment has the same race with
        // any other thread's open.
        if guard.compare_exchange(NONE, copy, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            USED.fetch_max(i32::try_from(place + 1).unwrap_or(i32::MAX), Ordering::Relaxed);
            return Ok(copy);
        }
    }
    let _ = sys::close(copy);
    Err(Errno::MFILE)
}

/// The variable with a guard's number: it changes when the guard is moved, and is negative after it is closed.
pub(crate) fn slot_of(fd: RawFd) -> Option<&'static AtomicI32> {
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

/// Moves a guard away from a number that the program wants for a duplicate (dup2, dup3). Calls `moved` with the old and
/// the new number before the guard has the new one. Returns true if there was a guard.
///
/// # Errors
/// The system's refusal, or EMFILE.
pub(crate) fn make_room(fd: RawFd, moved: impl FnOnce(RawFd, RawFd)) -> Result<bool, Errno> {
    for guard in used() {
        if guard.load(Ordering::Relaxed) == fd {
            let base = usize::try_from(fd).unwrap_or_default() + 1;
            let copy = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, base).map(sys::descriptor)?;
            moved(fd, copy);
            // Release: a reader of the new number finds the file there.
            guard.store(copy, Ordering::Release);
            return Ok(true);
        }
    }
    Ok(false)
}

/// Closes all guards: in a forked child, which does not have the mappings.
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
