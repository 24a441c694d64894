//! Signals while a program runs: taken one by one instead of ending the host.
#![allow(unsafe_code, reason = "sigprocmask, signalfd, and a closure between fork and exec")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Signals that are taken: what ends a process from outside, what programs use among themselves, and news of children.
const TAKEN: [libc::c_int; 7] =
    [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGCHLD];

/// A signal that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Came {
    pub signal: i32,
    /// Who sent it; `None` if the terminal did, to all of the foreground.
    pub sender: Option<u32>,
}

/// The signals are taken as long as this exists, in the thread that made it and in those it starts meanwhile.
#[derive(Debug)]
pub struct Signals {
    descriptor: OwnedFd,
    before: libc::sigset_t,
}

impl Signals {
    /// Begins to take signals.
    ///
    /// # Errors
    /// For want of descriptors.
    pub fn take() -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigemptyset` makes the set a value, `pthread_sigmask` the mask before; the descriptor is new and owned by
        // nobody else.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in TAKEN {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            let descriptor = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            let descriptor = OwnedFd::from_raw_fd(descriptor);
            match libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr()) {
                0 => Ok(Signals { descriptor, before: before.assume_init() }),
                errno => Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }

    /// The next signal that has come, if any.
    pub fn next(&self) -> Option<Came> {
        let mut information = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes a whole structure or nothing; it is read only if it was whole.
        let information = unsafe {
            let read = libc::read(self.descriptor.as_raw_fd(), information.as_mut_ptr().cast(), size);
            if usize::try_from(read) != Ok(size) {
                return None;
            }
            information.assume_init()
        };
        let signal = i32::try_from(information.ssi_signo).ok()?;
        Some(Came { signal, sender: (information.ssi_code != libc::SI_KERNEL).then_some(information.ssi_pid) })
    }

    /// Readable when a signal has come.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Gives a command's process the signal mask, and the limit of open files, that this one had before.
    pub fn restore_in(&self, command: &mut Command, files: rustix::process::Rlimit) {
        let before = self.before;
        let restore = move || {
            // SAFETY: a mask of this closure's own.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
            rustix::process::setrlimit(rustix::process::Resource::Nofile, files)?;
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes two system calls, allocates nothing and takes no lock.
        unsafe { command.pre_exec(restore) };
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // What came and was not taken is not wanted any more: the program it was for has ended.
        while self.next().is_some() {}
        // SAFETY: the mask that `pthread_sigmask` has told.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}
