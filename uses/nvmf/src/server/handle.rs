//! How other threads reach a loop.

use super::now_ms;
use super::report::LoopReport;
use crate::engine::JobId;
use crate::loops::LoopInbox;
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
    pub(super) is_stopping: bool,
    /// The loop takes no more commands, and ends at this time at the latest.
    pub(super) finish_by: Option<u64>,
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
    /// Connections of the loop, with those that it is about to get.
    connections: AtomicUsize,
}

impl Signal {
    pub(super) fn new() -> io::Result<Signal> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Signal { event, requests: Mutex::default(), connections: AtomicUsize::new(0) })
    }

    fn wake(&self) {
        // It fails only if the counter is full, and then the loop is going to wake up anyway.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Takes what was asked since the last call.
    pub(super) fn take(&self) -> Requests {
        let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
        std::mem::take(&mut *lock(&self.requests))
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

    fn ask(&self, request: impl FnOnce(&mut Requests)) {
        request(&mut lock(&self.requests));
        self.wake();
    }
}

impl LoopInbox for Signal {
    fn answer(&self, id: JobId, result: StorageResult) {
        let mut requests = lock(&self.requests);
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
        let by = now_ms().saturating_add(u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        self.signal.ask(|requests| requests.finish_by = Some(by));
    }

    /// Gives the loop a connection that was accepted.
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
