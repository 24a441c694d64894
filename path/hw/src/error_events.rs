//! Detects that a device has reported an error: the only event that poll(2) of a queue's node shows.
//!
//! The driver keeps the last SWERROR it read for ever. So a node that is readable once stays readable, and a second
//! identical error changes nothing that can be read. But each error interrupt wakes the waiters of the queue in the
//! error, or all waiters if it contains no queue. For an edge-triggered epoll(7) each wake-up is an event of its own.
//! Source: K612 `irq.c`, idxd_misc_thread; `cdev.c`, idxd_cdev_poll.
#![allow(unsafe_code, reason = "epoll(7), which the standard library does not offer")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Records whether an error event has occurred; once true it stays true.
#[derive(Debug)]
pub(crate) struct ErrorEvents {
    epoll: OwnedFd,
    seen: AtomicBool,
}

impl ErrorEvents {
    /// Starts to record errors reported from now on.
    ///
    /// # Errors
    ///
    /// The system's error: EPERM for a file that cannot be polled, EMFILE if no descriptor is free.
    pub(crate) fn of(node: &File) -> io::Result<ErrorEvents> {
        // SAFETY: makes a new descriptor.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just created, so no other code owns it.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET).cast_unsigned(), u64: 0 };
        // SAFETY: both descriptors are open; the event is a local and is only read.
        let added =
            unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, node.as_raw_fd(), &raw mut event) };
        if added < 0 {
            return Err(io::Error::last_os_error());
        }
        let error_events = ErrorEvents { epoll, seen: AtomicBool::new(false) };
        // Errors reported before are the first event; discard it.
        error_events.event();
        Ok(error_events)
    }

    /// True if an error has been reported by now.
    pub(crate) fn check(&self) -> bool {
        // Relaxed, here and below: the flag publishes no other memory.
        if self.event() {
            self.seen.store(true, Ordering::Relaxed);
        }
        self.was_seen()
    }

    /// True if an earlier check has seen an error.
    pub(crate) fn was_seen(&self) -> bool {
        self.seen.load(Ordering::Relaxed)
    }

    /// Takes a pending event.
    fn event(&self) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: our own descriptor, and space for one event; the call does not wait.
        unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), &raw mut event, 1, 0) == 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn it_reports_later_errors_and_not_earlier_ones() {
        let (reader, mut writer) = io::pipe().unwrap();
        let node = File::from(OwnedFd::from(reader));
        writer.write_all(&[1]).unwrap();
        let error_events = ErrorEvents::of(&node).unwrap();
        assert!(!error_events.check());
        // The node was readable all the time.
        writer.write_all(&[1]).unwrap();
        assert!(!error_events.was_seen() && error_events.check() && error_events.was_seen() && error_events.check());
    }

    #[test]
    fn a_file_that_cannot_be_polled_is_refused() {
        let file = File::open("/proc/self/exe").unwrap();
        assert_eq!(ErrorEvents::of(&file).unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
}
