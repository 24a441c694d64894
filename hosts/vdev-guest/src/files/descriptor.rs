//! System calls on the program's descriptors, without the C library. A number may be closed at any moment and a pointer
//! may be invalid; the kernel checks both.
#![allow(unsafe_code, reason = "system calls on the program's descriptors and memory")]

use crate::files::path::Path;
use crate::files::shadow;
use crate::sys::{self, Errno, call, word};
use rustix::fs::Stat;
use rustix::net::{RecvFlags, recv};
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use telpher_vdev_wire::message::WINDOW_SECRET;

/// open(2) of an absolute path; the program owns the returned descriptor.
///
/// # Errors
/// The system's.
pub(crate) fn open(path: &Path, flags: c_int, mode: u32) -> Result<RawFd, Errno> {
    let flags = rustix::fs::OFlags::from_bits_retain(flags.cast_unsigned());
    rustix::fs::open(path.as_c_str(), flags, rustix::fs::Mode::from_raw_mode(mode)).map(IntoRawFd::into_raw_fd)
}

/// Borrows a descriptor of the program for a call. If the program closes it meanwhile, the result is as in the C
/// library: EBADF, or that of the file that has its number now.
pub(crate) fn borrowed<T>(fd: RawFd, act: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
    // SAFETY: the number is not -1; the kernel checks whether it is open, and the borrow closes nothing.
    act(unsafe { BorrowedFd::borrow_raw(fd.max(0)) })
}

/// Reads the secret of a window or an event, with which its socket begins, and leaves it in the socket.
///
/// # Errors
/// EINVAL if the socket begins with fewer bytes.
pub(crate) fn secret(fd: RawFd) -> Result<[u8; WINDOW_SECRET], Errno> {
    let mut secret = [0; WINDOW_SECRET];
    match borrowed(fd, |socket| recv(socket, &mut secret, RecvFlags::PEEK | RecvFlags::DONTWAIT)) {
        Ok((WINDOW_SECRET, _)) => Ok(secret),
        _ => Err(Errno::INVAL),
    }
}

/// The path of a descriptor's link in /proc.
///
/// # Errors
/// EBADF for a negative number.
pub(crate) fn link_of(fd: RawFd) -> Result<Path, Errno> {
    let mut number = u32::try_from(fd).map_err(|_| Errno::BADF)?;
    let mut digits = [0; 10];
    let mut start = digits.len();
    loop {
        start -= 1;
        // Cannot lose bits: a remainder of ten.
        digits[start] = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    // Not "self": the thread group's first thread may have ended or have its own descriptor table.
    let mut path = Path::new(b"/proc/thread-self/fd")?;
    path.push(&digits[start..])?;
    Ok(path)
}

/// The text of that link: a path, or something like `/memfd:name (deleted)`.
///
/// # Errors
/// The system's.
pub(crate) fn text_of(fd: RawFd, into: &mut [u8]) -> Result<&[u8], Errno> {
    shadow::link(link_of(fd)?.as_c_str(), into).map_err(|error| if error == Errno::NOENT { Errno::BADF } else { error })
}

/// fstat(2).
///
/// # Errors
/// The system's.
pub(crate) fn status(fd: RawFd) -> Result<Stat, Errno> {
    let mut status = MaybeUninit::<Stat>::uninit();
    // SAFETY: rustix's Stat is the kernel's structure for this call; it is written as a whole if the call succeeds.
    unsafe {
        call(libc::SYS_fstat, [word(fd), status.as_mut_ptr().addr(), 0, 0, 0, 0])?;
        Ok(status.assume_init())
    }
}

/// lseek(2).
///
/// # Errors
/// The system's.
pub(crate) fn seek(fd: RawFd, offset: i64, whence: c_int) -> Result<u64, Errno> {
    let offset = isize::try_from(offset).map_err(|_| Errno::OVERFLOW)?;
    // SAFETY: no pointer is passed.
    unsafe { call(libc::SYS_lseek, [word(fd), offset.cast_unsigned(), word(whence), 0, 0, 0]) }
        .map(|offset| offset as u64)
}

/// read(2) into the program's memory.
///
/// # Errors
/// The system's, EFAULT among them.
pub(crate) fn read(fd: RawFd, into: *mut u8, len: usize) -> Result<usize, Errno> {
    // SAFETY: the program passed this buffer to be filled; the kernel returns EFAULT if it cannot write there.
    unsafe { call(libc::SYS_read, [word(fd), into.expose_provenance(), len, 0, 0, 0]) }
}

/// write(2) from the program's memory.
///
/// # Errors
/// The system's, EFAULT among them.
pub(crate) fn write(fd: RawFd, from: *const u8, len: usize) -> Result<usize, Errno> {
    // SAFETY: the kernel only reads this memory, and returns EFAULT if it cannot.
    unsafe { call(libc::SYS_write, [word(fd), from.addr(), len, 0, 0, 0]) }
}

/// Copies from the program's memory; the program's pointer may be invalid.
///
/// # Errors
/// EFAULT if not all of it can be read.
pub(crate) fn fetch(from: *const u8, into: &mut [u8]) -> Result<(), Errno> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: into.len() };
    let process = sys::process() as usize;
    // SAFETY: both vectors outlive the call; the kernel writes only to `into`, within its length, and checks what it
    // reads.
    let copied = unsafe {
        call(libc::SYS_process_vm_readv, [process, (&raw const local).addr(), 1, (&raw const remote).addr(), 1, 0])
    };
    match copied {
        Ok(copied) if copied == into.len() => Ok(()),
        Ok(_) | Err(Errno::FAULT) => Err(Errno::FAULT),
        Err(_) => {
            // A sandbox forbids that call.
            // SAFETY: the program passed these bytes to write(); an invalid pointer faults here as in any library.
            unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
            Ok(())
        }
    }
}

/// Copies to the program's memory; the program's pointer may be invalid.
///
/// # Errors
/// EFAULT if not all of it can be written.
pub(crate) fn deliver(from: &[u8], to: *mut u8) -> Result<(), Errno> {
    let local = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    let remote = libc::iovec { iov_base: to.cast(), iov_len: from.len() };
    let process = sys::process() as usize;
    to.expose_provenance();
    // SAFETY: both vectors outlive the call; the kernel only reads `from`, and writes where the program asked for it,
    // as far as it can.
    let copied = unsafe {
        call(libc::SYS_process_vm_writev, [process, (&raw const local).addr(), 1, (&raw const remote).addr(), 1, 0])
    };
    match copied {
        Ok(copied) if copied == from.len() => Ok(()),
        Ok(_) | Err(Errno::FAULT) => Err(Errno::FAULT),
        Err(_) => {
            // A sandbox forbids that call.
            // SAFETY: the program passed this buffer to be filled; an invalid pointer faults here as in any library.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
            Ok(())
        }
    }
}

/// The working directory as reported by the kernel.
///
/// # Errors
/// The system's.
pub(crate) fn working_directory(into: &mut [u8]) -> Result<&[u8], Errno> {
    // SAFETY: the kernel writes at most the given number of bytes.
    let len = unsafe { call(libc::SYS_getcwd, [into.as_mut_ptr().addr(), into.len(), 0, 0, 0, 0]) }?;
    // The length includes the final zero.
    Ok(&into[..len.saturating_sub(1)])
}

/// chdir(2).
///
/// # Errors
/// The system's.
pub(crate) fn change_directory(path: &Path) -> Result<(), Errno> {
    rustix::process::chdir(path.as_c_str())
}

/// Owns a descriptor that a test has opened by these functions.
#[cfg(test)]
pub(crate) fn owned(fd: RawFd) -> std::os::fd::OwnedFd {
    // SAFETY: the test has opened it and gives it away here.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }
}
