//! Direct system calls: this library interposes the C library's functions, and must not call them where the program was
//! interrupted.
//!
//! Nothing here allocates, takes a lock or touches `errno`, except [`answer`], [`set_errno`] and [`KeptErrno`], which
//! exist for that.
#![allow(unsafe_code, reason = "the syscall instruction, and the C library's errno")]

use std::ffi::{c_int, c_long};
use std::os::fd::RawFd;

/// The errno of a failed system call.
pub(crate) type Errno = rustix::io::Errno;

/// Makes a system call by number, with up to six arguments.
///
/// # Safety
/// As the call itself: pointers among the arguments must be valid for what the kernel does with them.
#[inline]
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let answer: isize;
    // SAFETY: the x86-64 convention of system calls: rcx and r11 are overwritten, all other registers kept; the caller
    // promises the rest.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            in("r9") sixth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    match answer {
        // The kernel's own range of errors.
        -4095..=-1 => Err(Errno::from_raw_os_error(i32::try_from(-answer).unwrap_or(libc::EIO))),
        _ => Ok(answer.cast_unsigned()),
    }
}

/// Converts an int to the argument of a system call: sign-extended, as the C library does.
pub(crate) const fn word(number: c_int) -> usize {
    (number as isize).cast_unsigned()
}

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(error: Errno) {
    // SAFETY: the C library's errno of this thread, valid for its life.
    unsafe { *libc::__errno_location() = error.raw_os_error() };
}

/// The calling thread's `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: as in `set_errno`.
    unsafe { *libc::__errno_location() }
}

/// Restores `errno` when dropped: for code that runs where the program did not call a function.
#[derive(Debug)]
pub(crate) struct KeptErrno(c_int);

impl KeptErrno {
    /// Saves the current value.
    pub(crate) fn new() -> Self {
        KeptErrno(errno())
    }
}

impl Drop for KeptErrno {
    fn drop(&mut self) {
        // SAFETY: as in `set_errno`.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// Converts a result as C functions return it: the number, or -1 and `errno`.
pub(crate) fn answer(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(value) => value.cast_signed(),
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// The same for functions that return an int.
pub(crate) fn answer_int(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|error| {
        set_errno(error);
        -1
    })
}

/// Converts a system call's result to a descriptor.
pub(crate) fn descriptor(answer: usize) -> RawFd {
    // Cannot lose bits: the kernel's descriptors are positive ints.
    RawFd::try_from(answer).unwrap_or(-1)
}

/// close(2).
pub(crate) fn close(fd: RawFd) -> Result<(), Errno> {
    // SAFETY: no pointer is passed; the caller is responsible for the descriptor, as for any close.
    unsafe { call(libc::SYS_close, [word(fd), 0, 0, 0, 0, 0]) }.map(|_| ())
}

/// A descriptor that this library uses briefly; closed when dropped.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Fd(RawFd);

impl Fd {
    /// Owns a descriptor; -1 for none.
    pub(crate) const fn own(fd: RawFd) -> Self {
        Fd(fd)
    }

    /// Its number.
    pub(crate) fn number(&self) -> RawFd {
        self.0
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if self.0 >= 0 {
            let _ = close(self.0);
        }
    }
}

/// fcntl(2) with an integer argument.
pub(crate) fn fcntl(fd: RawFd, command: c_int, argument: usize) -> Result<usize, Errno> {
    // SAFETY: only commands with integer arguments are used in this library.
    unsafe { call(libc::SYS_fcntl, [word(fd), word(command), argument, 0, 0, 0]) }
}

/// getpid(2), never cached.
pub(crate) fn process() -> u32 {
    // SAFETY: no arguments.
    let id = unsafe { call(libc::SYS_getpid, [0; 6]) };
    u32::try_from(id.unwrap_or(0)).unwrap_or(0)
}

/// gettid(2).
pub(crate) fn thread() -> u32 {
    // SAFETY: no arguments.
    let id = unsafe { call(libc::SYS_gettid, [0; 6]) };
    u32::try_from(id.unwrap_or(0)).unwrap_or(0)
}

/// Yields the processor to other threads.
pub(crate) fn yield_now() {
    // SAFETY: no arguments.
    let _ = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// Calls `act` with every signal blocked except synchronous ones, so that threads created by it never run the program's
/// handlers.
pub(crate) fn with_signals_blocked<R>(act: impl FnOnce() -> R) -> R {
    let synchronous = [libc::SIGILL, libc::SIGTRAP, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV];
    let mask = synchronous.iter().fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)));
    let mut before = 0_u64;
    let set = |mask: *const u64, old: *mut u64| {
        let arguments = [word(libc::SIG_SETMASK), mask.addr(), old.addr(), size_of::<u64>(), 0, 0];
        // SAFETY: both are words of this frame, or null.
        let _ = unsafe { call(libc::SYS_rt_sigprocmask, arguments) };
    };
    set(&raw const mask, &raw mut before);
    let result = act();
    set(&raw const before, std::ptr::null_mut());
    result
}

/// CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Monotonic time is positive, and in nanoseconds fits 64 bits for centuries.
    time.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_an_errno_and_a_success_a_number() {
        assert_eq!(process(), std::process::id());
        assert_eq!(close(-1), Err(Errno::BADF));
        assert_eq!(answer(Err(Errno::NXIO)), -1);
        assert_eq!(errno(), libc::ENXIO);
        assert_eq!(answer(Ok(7)), 7);
    }

    #[test]
    fn kept_errno_restores_errno() {
        set_errno(Errno::NOENT);
        {
            let _kept = KeptErrno::new();
            set_errno(Errno::IO);
        }
        assert_eq!(errno(), libc::ENOENT);
    }
}
