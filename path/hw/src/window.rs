//! Windows between processes by the ioctls of Intel's driver outside of Linux. Linux's own driver refuses them with
//! ENOTTY, in every version up to 7.0.
//!
//! Source: the ioctl numbers and structures that Intel's out-of-tree `idxd` (`cdev.c`), Intel's dsa-perf-micros and the
//! DPDK patches for inter-domain operations have in common.
#![allow(unsafe_code, reason = "ioctl(2) with structures")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use telpher_os::ioctl_number;
use telpher_portal::{AttachedWindow, CreatedWindow, WindowError};

/// `_IOWR('d', 101, 24)`.
const CREATE: libc::c_ulong = 0xc018_6465;
/// `_IOR('d', 102, 6)`.
const ATTACH: libc::c_ulong = 0x8006_6466;

/// One submitter for each entry (SASS).
const SINGLE_SUBMITTER: u32 = 0;
/// Submitters read the window.
const READ: u16 = 1;
/// Submitters write the window.
const WRITE: u16 = 2;
/// Base and size limit the accesses.
const CHECK: u16 = 4;

#[repr(C, packed)]
#[derive(Clone, Copy, Default)]
struct Create {
    base: u64,
    size: u64,
    kind: u32,
    flags: u16,
    /// Set by the driver.
    handle: u16,
}

#[repr(C, packed)]
#[derive(Clone, Copy, Default)]
struct Attach {
    file: u32,
    /// Set by the driver.
    handle: u16,
}

const _: () = assert!(size_of::<Create>() == 24 && size_of::<Attach>() == 6);

/// Has the driver make a window to memory of this process.
///
/// # Safety
///
/// As for [`Portal::create_window`](telpher_portal::Portal::create_window).
pub(crate) unsafe fn create(queue: &File, base: u64, size: u64, writable: bool) -> Result<CreatedWindow, WindowError> {
    let flags = READ | CHECK | if writable { WRITE } else { 0 };
    let mut window = Create { base, size, kind: SINGLE_SUBMITTER, flags, handle: 0 };
    // SAFETY: the structure has the size that the number says, and lives for the call.
    let file = unsafe { ioctl(queue, CREATE, &raw mut window) };
    let file = file.map_err(|source| refused("create a window", source))?;
    // SAFETY: the driver returns a new descriptor, which no other code has yet.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    keep_from_programs(&file).map_err(|source| refused("create a window", source))?;
    Ok(CreatedWindow { file, handle: window.handle })
}

/// Keeps a descriptor from programs that this process executes: a program with the window's could attach it.
fn keep_from_programs(file: &OwnedFd) -> io::Result<()> {
    // SAFETY: takes numbers only; the descriptor is open during the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) } {
        failed if failed < 0 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Has the driver let this process use a window of another process.
pub(crate) fn attach(queue: &File, file: BorrowedFd<'_>) -> Result<AttachedWindow, WindowError> {
    let mut window = Attach { file: file.as_raw_fd().cast_unsigned(), handle: 0 };
    // SAFETY: as above.
    match unsafe { ioctl(queue, ATTACH, &raw mut window) } {
        // The right ends when this process closes a descriptor of the window, whichever it is.
        Ok(_) => Ok(AttachedWindow::new(window.handle, ())),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EBADF | libc::EINVAL)) => {
            Err(WindowError::Refused { why: format!("it is of another device, or no window of a driver: {error}") })
        }
        Err(error) => Err(refused("attach a window", error)),
    }
}

fn refused(attempt: &'static str, source: io::Error) -> WindowError {
    match source.raw_os_error() {
        Some(libc::ENOTTY | libc::EOPNOTSUPP | libc::ENOSYS) => WindowError::Unsupported,
        Some(libc::ENOSPC) => WindowError::NoRoom,
        _ => WindowError::Driver { attempt, source },
    }
}

/// # Safety
/// `argument` points to the structure that `number` stands for.
unsafe fn ioctl<T>(queue: &File, number: libc::c_ulong, argument: *mut T) -> io::Result<i32> {
    // SAFETY: our caller's promise; the descriptor is open during the call.
    match unsafe { libc::ioctl(queue.as_raw_fd(), ioctl_number(number), argument) } {
        failed if failed < 0 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_driver_without_the_ioctls_has_no_windows() {
        let file = File::open("/dev/null").unwrap();
        // SAFETY: that file has no driver that makes windows.
        let created = unsafe { create(&file, 4096, 4096, true) };
        assert!(matches!(created, Err(WindowError::Unsupported)));
        assert!(matches!(attach(&file, file.as_fd()), Err(WindowError::Unsupported)));
    }

    #[test]
    fn a_window_is_kept_from_programs_that_are_executed() {
        let null = File::open("/dev/null").unwrap();
        // SAFETY: takes a number only, and returns a new descriptor, which no other code has.
        let file = unsafe { OwnedFd::from_raw_fd(libc::fcntl(null.as_raw_fd(), libc::F_DUPFD, 0)) };
        // SAFETY: takes a number only.
        let flags = || unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags(), 0);
        keep_from_programs(&file).unwrap();
        assert_eq!(flags(), libc::FD_CLOEXEC);
    }

    #[test]
    fn refusals_of_a_driver_are_told_apart() {
        let from = |errno| refused("create a window", io::Error::from_raw_os_error(errno));
        assert!(matches!(from(libc::EOPNOTSUPP), WindowError::Unsupported));
        assert!(matches!(from(libc::ENOSPC), WindowError::NoRoom));
        let text = from(libc::EPERM).to_string();
        assert_eq!(text, "the driver refuses to create a window");
    }
}
