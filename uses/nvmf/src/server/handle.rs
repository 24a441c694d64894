//! How other threads reach a loop.

use super::clock::now_ms;
use super::report::LoopReport;
use crate::engine::JobId;
use crate::loops::{LoopInbox, Loops};
use crate::storage::StorageResult;
use crate::subsystem::lock;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What other threads ask of a loop.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// The loop has ended, and takes no more requests.
    has_ended: bool,
    pub(super) is_stopping: bool,
    /// The loop takes no more commands, and ends.
    pub(super) finish: Option<Finish>,
    /// The target changed.
    pub(super) is_changed: bool,
    pub(super) answers: Vec<(JobId, StorageResult)>,
    /// Connections that another loop accepted for this one.
    pub(super) sockets: Vec<TcpStream>,
    /// Where reports are sent.
    pub(super) reports: Vec<Sender<LoopReport>>,
}

/// How other threads reach a loop.
#[derive(Debug)]
pub(super) struct Signal {
    pub(super) event: OwnedFd,
    requests: Mutex<Requests>,
    /// Where commands are kept that a connection leaves to a backend.
    loops: Arc<Loops>,
    /// Connections of the loop, with those that it is about to get.
    connections: AtomicUsize,
}

impl Signal {
    pub(super) fn new(loops: &Arc<Loops>) -> io::Result<Signal> {
        // Reads block: an io_uring would not wait for a file that does not block.
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Signal { event, requests: Mutex::default(), loops: Arc::clone(loops), connections: AtomicUsize::new(0) })
    }

    pub(super) fn wake(&self) {
        // The loop resets the counter when it wakes up, so it stays far from the value at which this write would wait.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Resets the event, of which epoll has said that it is set.
    pub(super) fn reset(&self) {
        let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
    }

    /// Takes what was asked since the last call.
    pub(super) fn take(&self) -> Requests {
        std::mem::take(&mut *lock(&self.requests))
    }

    /// The loop has ended. Returns the requests that it has not taken.
    pub(super) fn end(&self) -> Requests {
        std::mem::replace(&mut *lock(&self.requests), Requests { has_ended: true, ..Requests::default() })
    }

    /// The number of connections. Relaxed: it is used to divide load, and a value from a moment ago does as well.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn count_connection(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn forget_connection(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Makes a request. If the loop has ended, the request is dropped.
    fn ask(&self, request: impl FnOnce(&mut Requests)) {
        let mut requests = lock(&self.requests);
        if !requests.has_ended {
            request(&mut requests);
            drop(requests);
            self.wake();
        }
    }
}

impl LoopInbox for Signal {
    fn answer(&self, id: JobId, result: StorageResult) {
        let mut requests = lock(&self.requests);
        if requests.has_ended {
            drop(requests);
            self.loops.release(id);
            return;
        }
        // The loop takes all answers at once, so only the first one has to wake it up.
        let is_first = requests.answers.is_empty();
        requests.answers.push((id, result));
        drop(requests);
        if is_first {
            self.wake();
        }
    }

    fn target_changed(&self) {
        if !std::mem::replace(&mut lock(&self.requests).is_changed, true) {
            self.wake();
        }
    }
}

/// Loops that finish together.
#[derive(Debug)]
struct Group {
    /// Loops that may still have commands.
    unfinished: AtomicUsize,
    loops: Vec<Handle>,
}

/// What a loop that finishes has to know. When it is dropped, the loop has finished.
#[derive(Debug)]
pub(super) struct Finish {
    by: u64,
    group: Arc<Group>,
    has_left: bool,
}

impl Finish {
    /// When the loop ends at the latest.
    pub(super) fn by(&self) -> u64 {
        self.by
    }

    /// A loop that is asked to finish for the second time stays in its group, and keeps the earlier time.
    pub(super) fn add_to(self, before: &mut Option<Finish>) {
        match before {
            Some(before) => before.by = before.by.min(self.by),
            None => *before = Some(self),
        }
    }

    /// The loop has no more commands. The last loop of the group wakes the others.
    pub(super) fn leave(&mut self) {
        // AcqRel and Acquire: a loop that sees 0 also sees what the others did before.
        if !std::mem::replace(&mut self.has_left, true) && self.group.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.group.loops.iter().for_each(|handle| handle.signal.wake());
        }
    }

    /// Returns whether no loop of the group has commands, or the time has come.
    pub(super) fn is_over(&self, now: u64) -> bool {
        now >= self.by || self.group.unfinished.load(Ordering::Acquire) == 0
    }
}

impl Drop for Finish {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Controls a server from another thread.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(super) signal: Arc<Signal>,
}

impl Handle {
    /// Ends the loop at once. Connections are closed.
    pub fn stop(&self) {
        self.signal.ask(|requests| requests.is_stopping = true);
    }

    /// Ends the loop when all accepted commands have completed and their replies were sent, or after this time. From
    /// now on it takes no connections and no commands: hosts send them again after they have connected again.
    pub fn finish(&self, within: Duration) {
        Handle::finish_all(std::slice::from_ref(self), within);
    }

    /// Ends loops of one target as [`Handle::finish`] does. All of them end when the last of them has completed its
    /// commands: the queues of a controller may be in several loops, and end with its admin queue.
    pub fn finish_all(handles: &[Handle], within: Duration) {
        let by = now_ms().saturating_add(u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        let group = Arc::new(Group { unfinished: AtomicUsize::new(handles.len()), loops: handles.to_vec() });
        for handle in handles {
            let finish = Finish { by, group: Arc::clone(&group), has_left: false };
            handle.signal.ask(|requests| finish.add_to(&mut requests.finish));
        }
    }

    /// Gives the loop a connection that was accepted. If the loop has ended, the connection is closed.
    pub fn adopt(&self, socket: TcpStream) {
        self.signal.count_connection();
        self.signal.ask(|requests| requests.sockets.push(socket));
    }

    /// The number of connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.signal.connections()
    }

    /// Asks for the counters. The loop sends them when it wakes up for this; if it has ended, receiving fails.
    #[must_use]
    pub fn report(&self) -> Receiver<LoopReport> {
        let (sender, receiver) = mpsc::channel();
        self.signal.ask(|requests| requests.reports.push(sender));
        receiver
    }
}
