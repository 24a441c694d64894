//! The thread that asks: the kernel has it wait.

use super::interface::{DamonError, Ender, Interface};
use super::{Intervals, Region};
use crate::manager::cpu;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use telpher_os::{Lineage, spawn_unsignalled};

/// What a look has found, and what the looks have cost.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) regions: Vec<Region>,
    /// Time of a core that this look took here.
    pub(super) cost: Duration,
    /// The same of the kernel's thread, of all its looks.
    pub(super) kernel: Duration,
}

/// What it is to look at.
type Question = (Vec<Range<u64>>, Intervals);

/// The thread. Its end gives the interface back.
#[derive(Debug)]
pub(super) struct Worker {
    /// None at its end.
    asks: Option<Sender<Question>>,
    answers: Receiver<Result<Answer, DamonError>>,
    thread: Option<JoinHandle<Duration>>,
    ender: Ender,
    /// Time of a core: this thread's looks, and the kernel's.
    cpu: (Duration, Duration),
    lineage: Lineage,
}

impl Worker {
    pub(super) fn start(mut interface: Interface) -> Result<Worker, DamonError> {
        let (asks, asked) = channel::<Question>();
        let (tells, answers) = channel();
        let ender = interface.ender();
        let thread = spawn_unsignalled("telpher-damon", move || {
            let mut kernel = Duration::ZERO;
            for (ranges, intervals) in asked {
                let begun = cpu();
                let answer = interface.look(ranges, intervals).and_then(|()| interface.regions()).map(|regions| {
                    // It is another thread's, and begins anew, if somebody has it end and begin.
                    kernel = interface.cpu().max(kernel);
                    Answer { regions, cost: cpu().saturating_sub(begun), kernel }
                });
                if tells.send(answer).is_err() {
                    break;
                }
            }
            drop(interface);
            cpu()
        });
        let thread = Some(thread.map_err(DamonError::Thread)?);
        Ok(Worker { asks: Some(asks), answers, thread, ender, cpu: Default::default(), lineage: Lineage::current() })
    }

    /// Has it look.
    pub(super) fn ask(&self, ranges: Vec<Range<u64>>, intervals: Intervals) {
        // One that has ended answers nothing, which the next step sees.
        let _ = self.asks.as_ref().map(|asks| asks.send((ranges, intervals)));
    }

    /// What it has found; none if it still looks.
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

    /// What it has cost up to now.
    pub(super) fn cpu(&self) -> Duration {
        self.cpu.0 + self.cpu.1
    }

    /// Has it end, and waits for it, but for no look of the kernel's: a program that ends is not to be held up. Returns what it has cost in all.
    pub(super) fn end(mut self) -> Duration {
        // In a forked child there is no such thread, and nothing of it to be given back.
        let thread = self.thread.take().filter(|_| self.lineage.is_current());
        if thread.is_some() {
            self.ender.end();
        }
        self.asks = None;
        let here = thread.and_then(|thread| thread.join().ok());
        here.unwrap_or(self.cpu.0) + self.cpu.1
    }
}
