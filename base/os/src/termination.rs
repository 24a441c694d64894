//! Requests to end, by Ctrl-C or SIGTERM, as a file descriptor.
#![allow(unsafe_code, reason = "signal masks and signalfd")]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Duration;

/// Becomes ready when SIGINT or SIGTERM arrives. From its creation on, both signals have no other effect on the
/// creating thread and on threads that it starts.
#[derive(Debug)]
pub struct Termination {
    descriptor: OwnedFd,
}

impl Termination {
    /// Blocks the signals in this thread and waits for them by a descriptor instead.
    ///
    /// # Errors
    /// The kernel's refusal of a descriptor.
    pub fn listen() -> io::Result<Termination> {
        Termination::listen_to(&[libc::SIGINT, libc::SIGTERM])
    }

    /// Like [`listen`](Termination::listen), also for SIGHUP and SIGQUIT: for a program that must restore its terminal.
    ///
    /// # Errors
    /// As above.
    pub fn listen_with_terminal() -> io::Result<Termination> {
        Termination::listen_to(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT])
    }

    fn listen_to(signals: &[libc::c_int]) -> io::Result<Termination> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: `sigemptyset` makes the set a value before it is read; the descriptor is new and has no other owner.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), *signal);
            }
            let descriptor = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            let descriptor = OwnedFd::from_raw_fd(descriptor);
            match libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) {
                0 => Ok(Termination { descriptor }),
                errno => Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }

    /// Like [`wait`](Termination::wait), and takes the signal that has arrived, so that the next one is seen, too.
    #[must_use]
    pub fn take(&self, timeout: Duration) -> bool {
        self.wait(timeout)
            && rustix::io::read(&self.descriptor, &mut [0_u8; size_of::<libc::signalfd_siginfo>()]).is_ok()
    }

    /// Waits until a signal has arrived, at most for this time. Returns true if one has.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        let timeout = Timespec::try_from(timeout).ok();
        let mut waited = [PollFd::new(&self.descriptor, PollFlags::IN)];
        poll(&mut waited, timeout.as_ref()).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_to_the_thread_is_seen() {
        std::thread::spawn(|| {
            let termination = Termination::listen().unwrap();
            assert!(!termination.wait(Duration::ZERO));
            // SAFETY: sends a signal to this thread, which blocks it.
            assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGTERM) }, 0);
            assert!(termination.wait(Duration::from_secs(60)));
            assert!(termination.take(Duration::ZERO) && !termination.take(Duration::ZERO));
            // SAFETY: as above.
            assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGTERM) }, 0);
            assert!(termination.take(Duration::from_secs(60)));
        })
        .join()
        .unwrap();
    }
}
