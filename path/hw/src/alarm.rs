//! Hearing that a device has reported an error: the only thing that poll(2) of a queue's node tells.
//!
//! The driver keeps what it last read of SWERROR for ever, so a node that is readable once stays so, and the same error a second
//! time changes nothing that can be read. But each error interrupt wakes those who wait for the queue that the error names, and
//! everybody if it names none: to an edge-triggered epoll(7) each is an event of its own. Source: K612 `irq.c`,
//! idxd_misc_thread; `cdev.c`, idxd_cdev_poll.
#![allow(unsafe_code, reason = "epoll(7), for which the standard library has no name")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Rings once for ever.
#[derive(Debug)]
pub(crate) struct Alarm {
    epoll: OwnedFd,
    rung: AtomicBool,
}

impl Alarm {
    /// Rings for errors from here on.
    ///
    /// # Errors
    ///
    /// What the system said: EPERM of a file that cannot be polled, EMFILE without a descriptor.
    pub(crate) fn of(node: &File) -> io::Result<Alarm> {
        // SAFETY: makes a new descriptor.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else's.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET).cast_unsigned(), u64: 0 };
        // SAFETY: both descriptors are open; the event is ours and is only read.
        let added =
            unsafe { libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, node.as_raw_fd(), &raw mut event) };
        if added < 0 {
            return Err(io::Error::last_os_error());
        }
        let alarm = Alarm { epoll, rung: AtomicBool::new(false) };
        // What was reported before is the first event.
        alarm.event();
        Ok(alarm)
    }

    /// True if it has rung by now.
    pub(crate) fn ask(&self) -> bool {
        // Relaxed, here and below: it tells of nothing else in memory.
        if self.event() {
            self.rung.store(true, Ordering::Relaxed);
        }
        self.has_rung()
    }

    /// True if it had rung when somebody asked.
    pub(crate) fn has_rung(&self) -> bool {
        self.rung.load(Ordering::Relaxed)
    }

    /// Takes the event there may be.
    fn event(&self) -> bool {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: our own descriptor, and room for one event; it does not wait.
        unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), &raw mut event, 1, 0) == 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn it_rings_for_what_comes_after_it_and_not_for_what_was_there() {
        let (reader, mut writer) = io::pipe().unwrap();
        let node = File::from(OwnedFd::from(reader));
        writer.write_all(&[1]).unwrap();
        let alarm = Alarm::of(&node).unwrap();
        assert!(!alarm.ask());
        // The node was readable all the time.
        writer.write_all(&[1]).unwrap();
        assert!(!alarm.has_rung() && alarm.ask() && alarm.has_rung() && alarm.ask());
    }

    #[test]
    fn a_file_that_cannot_be_polled_has_none() {
        let file = File::open("/proc/self/exe").unwrap();
        assert_eq!(Alarm::of(&file).unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
}
