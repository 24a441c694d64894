//! Signals while a program runs: received one by one instead of ending this process.
#![allow(unsafe_code, reason = "sigprocmask, signalfd, and a closure between fork and exec")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The signals that are received: those that end a process from outside, those that programs send each other, and
/// SIGCHLD.
const TAKEN: [libc::c_int; 7] =
    [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGCHLD];

/// A received signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceivedSignal {
    pub signal: i32,
    /// The sending process; `None` if the terminal sent it, to the whole foreground group.
    pub sender: Option<u32>,
}

/// Blocks the signals while it exists, in the thread that created it and in threads that this one starts.
#[derive(Debug)]
pub struct Signals {
    descriptor: OwnedFd,
    before: libc::sigset_t,
}

impl Signals {
    /// Starts to receive signals.
    ///
    /// # Errors
    /// If no descriptor is available.
    pub fn take() -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigemptyset` initialises the set, `pthread_sigmask` the previous mask. The descriptor is new, so no
        // other code owns it.
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

    /// Returns the next pending signal, if any.
    pub fn next(&self) -> Option<ReceivedSignal> {
        let mut information = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes a whole structure or nothing; it is read only if a whole one was written.
        let information = unsafe {
            let read = libc::read(self.descriptor.as_raw_fd(), information.as_mut_ptr().cast(), size);
            if usize::try_from(read) != Ok(size) {
                return None;
            }
            information.assume_init()
        };
        let signal = i32::try_from(information.ssi_signo).ok()?;
        Some(ReceivedSignal {
            signal,
            sender: (information.ssi_code != libc::SI_KERNEL).then_some(information.ssi_pid),
        })
    }

    /// A descriptor that is readable while a signal is pending.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Restores in a command's process the signal mask from before `take`, and sets its limit of open files.
    pub fn restore_in(&self, command: &mut Command, files: rustix::process::Rlimit) {
        let before = self.before;
        let restore = move || {
            // SAFETY: the closure owns the mask.
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
        // Signals that are still pending were for the program, which has ended; they are discarded.
        while self.next().is_some() {}
        // SAFETY: the mask that `pthread_sigmask` returned.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}
