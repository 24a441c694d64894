//! The thread that reads DAMON, because the kernel makes it wait.

use super::error::DamonError;
use super::interface::{DamonStopper, Interface};
use super::regions::{Intervals, Region};
use crate::manager::cpu;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use telpher_os::{Lineage, spawn_unsignalled};

/// The result of a reading, and the cost of the readings.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) regions: Vec<Region>,
    /// CPU time of this reading on this thread.
    pub(super) cost: Duration,
    /// CPU time of the kernel's thread, since its start.
    pub(super) kernel: Duration,
}

/// The ranges and intervals to monitor.
type Request = (Vec<Range<u64>>, Intervals);

/// The thread. Its end releases the interface.
#[derive(Debug)]
pub(super) struct Worker {
    /// None at the end.
    requests: Option<Sender<Request>>,
    answers: Receiver<Result<Answer, DamonError>>,
    thread: Option<JoinHandle<Duration>>,
    ender: DamonStopper,
    /// CPU time: of this thread's readings, and of the kernel's thread.
    cpu: (Duration, Duration),
    lineage: Lineage,
}

impl Worker {
    pub(super) fn start(mut interface: Interface) -> Result<Worker, DamonError> {
        let (requests, received) = channel::<Request>();
        let (sends, answers) = channel();
        let ender = interface.ender();
        let thread = spawn_unsignalled("telpher-damon", move || {
            let mut kernel = Duration::ZERO;
            for (ranges, intervals) in received {
                let started = cpu();
                let answer = interface.look(ranges, intervals).and_then(|()| interface.regions()).map(|regions| {
                    // If other software has restarted DAMON, the kernel's thread is a new one and its time starts anew.
                    kernel = interface.cpu().max(kernel);
                    Answer { regions, cost: cpu().saturating_sub(started), kernel }
                });
                if sends.send(answer).is_err() {
                    break;
                }
            }
            drop(interface);
            cpu()
        });
        let thread = Some(thread.map_err(DamonError::Thread)?);
        Ok(Worker {
            requests: Some(requests),
            answers,
            thread,
            ender,
            cpu: Default::default(),
            lineage: Lineage::current(),
        })
    }

    /// Requests a reading.
    pub(super) fn request(&self, ranges: Vec<Range<u64>>, intervals: Intervals) {
        // A thread that has ended sends no answer, which the next step notices.
        let _ = self.requests.as_ref().map(|requests| requests.send((ranges, intervals)));
    }

    /// Returns the answer; none while the reading is under way.
    pub(super) fn answer(&mut self) -> Option<Result<Answer, DamonError>> {
        match self.answers.try_recv() {
            Ok(answer) => {
                if let Ok(Answer { cost, kernel, .. }) = &answer {
                    self.cpu = (self.cpu.0 + *cost, *kernel);
                }
                Some(answer)
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(DamonError::Ended)),
        }
    }

    /// Returns the CPU time used so far.
    pub(super) fn cpu(&self) -> Duration {
        self.cpu.0 + self.cpu.1
    }

    /// Ends the thread and waits for it, but not for a reading in the kernel, so that a program that ends is not
    /// delayed. Returns the total CPU time.
    pub(super) fn end(mut self) -> Duration {
        // A forked child has no such thread and nothing to release.
        let thread = self.thread.take().filter(|_| self.lineage.is_current());
        if thread.is_some() {
            self.ender.end();
        }
        self.requests = None;
        let here = thread.and_then(|thread| thread.join().ok());
        here.unwrap_or(self.cpu.0) + self.cpu.1
    }
}
