//! How a loop waits for its sockets, and moves bytes through them: by epoll or by io_uring.

use super::event::{Event, FIRST_CONNECTION, HANDLE};
use super::ring::SocketRing;
use crate::stats::LoopStats;
use rustix::event::Timespec;
use rustix::event::epoll;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Events of one call of epoll.
const EVENTS: usize = 256;

/// The sockets of a loop, for the thread that serves them.
pub(super) enum Sockets {
    /// Sockets do not block.
    Epoll(Arc<OwnedFd>),
    /// Sockets block, so that the kernel waits for them.
    Ring(Box<SocketRing>),
}

impl Sockets {
    /// Waits until something happens or the time is over, and appends what has happened.
    ///
    /// # Errors
    /// The kernel's.
    pub(super) fn wait(
        &mut self,
        timeout: Option<Duration>,
        events: &mut Vec<Event>,
        stats: &mut LoopStats,
    ) -> io::Result<()> {
        match self {
            Sockets::Epoll(epoll) => wait_for_epoll(epoll, timeout, events, stats),
            Sockets::Ring(ring) => ring.wait(timeout, events, stats),
        }
    }
}

/// Waits for an epoll.
///
/// # Errors
/// The kernel's.
pub(super) fn wait_for_epoll(
    epoll: &OwnedFd,
    timeout: Option<Duration>,
    events: &mut Vec<Event>,
    stats: &mut LoopStats,
) -> io::Result<()> {
    let mut ready = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    stats.system_calls += 1;
    let ready = match epoll::wait(epoll, &mut ready, timeout.as_ref()) {
        Ok((ready, _)) => ready,
        Err(rustix::io::Errno::INTR) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    events.extend(ready.iter().map(|event| match event.data.u64() {
        HANDLE => Event::Handle,
        number if number < FIRST_CONNECTION => Event::Listener(number),
        number => Event::Ready { number, flags: event.flags },
    }));
    Ok(())
}
