//! The threaded runner: engines on worker threads that spin while there is work, then sleep.
//!
//! There are at most as many workers as cores, less one for the submitter, so that engines never take the core of a
//! waiting thread. A worker steps several engines in turn, and no engine can block another.

use super::signal_mask::with_signals_blocked;
use super::sleeper::Sleeper;
use super::{Core, EngineSet, StepResult};
use crate::sync::{AtomicU32, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use telpher_os::Lineage;

/// Checks of empty queues before a worker sleeps: about 50 µs, several times a round trip between cores. Source:
/// chosen; a sleep and a wake-up cost about as much.
const SPINS: u32 = 2_000;

/// Checks of a blocked engine before its worker yields the core. Source: chosen; about a microsecond.
const BLOCKED_SPINS: u32 = 32;

/// Checks of a blocked engine before its worker sleeps briefly, if an observer may delay descriptors. Source: chosen;
/// some microseconds.
const BLOCKED_CHECKS: u32 = 64;
/// The length of this sleep. Source: chosen; shorter than the delays of observers.
const BRIEF_SLEEP: Duration = Duration::from_micros(20);

const RUN: u32 = 0;
const HOLD: u32 = 1;
const STOP: u32 = 2;

/// The worker threads of a device. Dropping it ends each of them after its current step; a batch may stay unfinished.
#[derive(Debug)]
pub(crate) struct Threaded {
    /// The process of the threads.
    started_in: Lineage,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    requested_state: AtomicU32,
    sleepers: Vec<Sleeper>,
}

impl Threaded {
    /// Starts workers for a device's engines.
    ///
    /// # Errors
    /// The system refuses to start a thread.
    pub(crate) fn start(core: &Arc<Core>, engines: usize, lanes: usize) -> std::io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let workers = engines.min(cores.saturating_sub(1)).max(1);
        let shared = Arc::new(Shared {
            requested_state: AtomicU32::new(RUN),
            sleepers: (0..workers).map(|_| Sleeper::new()).collect(),
        });
        let mut threaded = Threaded {
            started_in: Lineage::current(),
            shared: Arc::clone(&shared),
            threads: Vec::with_capacity(workers),
        };
        for worker in 0..workers {
            let (core, shared) = (Arc::clone(core), Arc::clone(&shared));
            let engines = EngineSet::new((worker..engines).step_by(workers), lanes);
            let builder = thread::Builder::new().name(format!("telpher-engine-{worker}"));
            threaded
                .threads
                .push(with_signals_blocked(|| builder.spawn(move || run_worker(&core, &shared, worker, engines)))?);
        }
        Ok(threaded)
    }

    /// Notifies the workers that a descriptor was accepted.
    #[inline]
    pub(crate) fn notify(&self) {
        for (sleeper, thread) in self.shared.sleepers.iter().zip(&self.threads) {
            sleeper.wake(|| thread.thread().unpark());
        }
    }

    /// Stops or restarts the execution. When it returns with `held`, no worker steps an engine.
    pub(crate) fn hold(&self, held: bool) {
        self.shared.requested_state.store(if held { HOLD } else { RUN }, Ordering::SeqCst);
        if held {
            while !self.shared.sleepers.iter().all(Sleeper::is_asleep) {
                thread::yield_now();
            }
        } else {
            self.notify();
        }
    }
}

impl Drop for Threaded {
    fn drop(&mut self) {
        if !self.started_in.is_current() {
            // A forked child has none of these threads; joining one would wait for ever.
            std::mem::forget(std::mem::take(&mut self.threads));
            return;
        }
        self.shared.requested_state.store(STOP, Ordering::SeqCst);
        self.notify();
        for thread in self.threads.drain(..) {
            // A worker that panicked has printed its message on stderr.
            let _ = thread.join();
        }
    }
}

fn run_worker(core: &Core, shared: &Shared, worker: usize, mut engines: EngineSet) {
    let (mut idle, mut blocked) = (0, 0_u32);
    loop {
        let requested_state = shared.requested_state.load(Ordering::Relaxed);
        if requested_state == STOP {
            return;
        }
        if requested_state == RUN {
            match engines.step(core, None) {
                StepResult::Done | StepResult::More => (idle, blocked) = (0, 0),
                StepResult::Idle => idle += 1,
                // Waits for software or for another worker. Other threads may need the core more, but not for a short
                // wait.
                StepResult::Blocked => {
                    idle = 0;
                    blocked = blocked.wrapping_add(1);
                    if core.observer.is_some() && blocked > BLOCKED_CHECKS {
                        thread::sleep(BRIEF_SLEEP);
                    } else if blocked.is_multiple_of(BLOCKED_SPINS) {
                        thread::yield_now();
                    }
                }
            }
            std::hint::spin_loop();
        }
        if requested_state == HOLD || idle > SPINS {
            idle = 0;
            let has_work = || match shared.requested_state.load(Ordering::SeqCst) {
                RUN => engines.has_work(&core.device),
                HOLD => false,
                _ => true,
            };
            shared.sleepers[worker].sleep(has_work, thread::park);
        }
    }
}
