//! The threaded runner: engines on worker threads that spin while there is work, then sleep.
//!
//! There are at most as many workers as cores, less one for the submitter, so that engines never take the core of a
//! waiting thread. A worker steps several engines in turn, and no engine can block another.
//!
//! If other processes keep the cores busy, a worker may wait for milliseconds until it runs. So a thread that waits for
//! a record steps the engines itself as soon as their worker shows no sign of running. With an observer it does not:
//! observers may rely on the engines' own threads.
//!
//! The automatic runner uses the same workers for long descriptors, and executes short ones in the submitting thread.
//! Its workers do not poll the queues: that would move the queue's cache lines between the cores, which takes several
//! times as long as a short copy. They poll a count of the descriptors that are left to them.

use super::signal_mask::with_signals_blocked;
use super::sleeper::Sleeper;
use super::waiter_help::Helped;
use super::{Core, EngineSet, Runner, StepResult};
use crate::sync::{AtomicU32, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use telpher_abi::{Descriptor, Opcode};
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

/// Checks of empty queues before an idle worker looks at its engines behind the lock, where a helper may have left
/// work. Source: chosen; about a microsecond. Seldom, so that a worker that loses its core rarely keeps the lock.
const CHECKS_WITHOUT_LOCK: u32 = 32;

/// The longest transfer that the automatic runner executes in the submitting thread. Source: measured with the example
/// `runners`; the handover to another thread takes about half a microsecond, a tenth of such a copy.
const SHORT_TRANSFER: u32 = 256 << 10;
/// The most members of a batch that the automatic runner executes in the submitting thread. Source: measured likewise;
/// so many members take ten times the handover, if they are short themselves.
const SHORT_BATCH: u32 = 64;

/// Tries of a submitting thread to get the engines before it leaves its descriptor to a worker. Source: chosen; some
/// microseconds, as long as another thread needs for a short descriptor.
const TRIES: u32 = 64;

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
    /// The engines of each worker.
    engines: Vec<Helped<EngineSet>>,
    /// How often descriptors were left to the workers of the automatic runner; `None` if workers poll the queues.
    left: Option<AtomicU32>,
}

impl Shared {
    /// Steps a worker's engines until they have nothing more to do, unless another thread does so already.
    #[inline]
    fn help(&self, worker: usize, core: &Core, group: Option<usize>) -> Option<StepResult> {
        self.engines[worker].work(|engines| {
            loop {
                // SeqCst: as the store in `hold`, which then waits for the lock.
                if self.requested_state.load(Ordering::SeqCst) != RUN {
                    return StepResult::Blocked;
                }
                let result = engines.step(core, group);
                if result != StepResult::More {
                    return result;
                }
            }
        })
    }
}

impl Threaded {
    /// Starts workers for a device's engines, for the threaded or the automatic runner.
    ///
    /// # Errors
    /// The system refuses to start a thread.
    pub(crate) fn start(core: &Arc<Core>, engines: usize, lanes: usize, runner: Runner) -> std::io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let workers = engines.min(cores.saturating_sub(1)).max(1);
        let shared = Arc::new(Shared {
            requested_state: AtomicU32::new(RUN),
            sleepers: (0..workers).map(|_| Sleeper::new()).collect(),
            engines: (0..workers)
                .map(|worker| Helped::new(EngineSet::new((worker..engines).step_by(workers), lanes)))
                .collect(),
            left: (runner == Runner::Auto).then(|| AtomicU32::new(0)),
        });
        let mut threaded = Threaded {
            started_in: Lineage::current(),
            shared: Arc::clone(&shared),
            threads: Vec::with_capacity(workers),
        };
        for worker in 0..workers {
            let (core, shared) = (Arc::clone(core), Arc::clone(&shared));
            let builder = thread::Builder::new().name(format!("telpher-engine-{worker}"));
            threaded.threads.push(with_signals_blocked(|| builder.spawn(move || run_worker(&core, &shared, worker)))?);
        }
        Ok(threaded)
    }

    /// Notifies the workers that a descriptor was accepted and is left to them.
    #[inline]
    pub(crate) fn notify(&self) {
        if let Some(left) = &self.shared.left {
            // Release: pairs with the Acquire of the worker, and publishes the descriptor with the count.
            left.fetch_add(1, Ordering::Release);
        }
        for (sleeper, thread) in self.shared.sleepers.iter().zip(&self.threads) {
            sleeper.wake(|| thread.thread().unpark());
        }
    }

    /// Lets a thread that waits for a record step the engines of late workers.
    #[inline]
    pub(crate) fn drive(&self, core: &Core, group: Option<usize>) {
        // A forked child has only a copy of the engines, perhaps in the middle of a step.
        if core.observer.is_some() || !self.started_in.is_current() {
            return;
        }
        for (worker, engines) in self.shared.engines.iter().enumerate() {
            if engines.check_is_late() {
                // If another thread works on the engines, the caller checks its record and comes again.
                let _ = self.shared.help(worker, core, group);
            }
        }
    }

    /// Executes a short descriptor in the thread that has just submitted it. Leaves others to the workers.
    #[inline]
    pub(crate) fn submitted(&self, core: &Core, group: usize, descriptor: &Descriptor) {
        let helps = core.observer.is_none() && is_short(descriptor) && self.started_in.is_current();
        if !(helps && self.execute(core, group)) {
            self.notify();
        }
    }

    /// Steps the engines of a group; returns true if no descriptor that has arrived before is left.
    #[inline]
    fn execute(&self, core: &Core, group: usize) -> bool {
        let shared = &*self.shared;
        let mut was_taken = false;
        for worker in 0..shared.engines.len() {
            let mut result = shared.help(worker, core, Some(group));
            for _ in 0..TRIES {
                if result.is_some() {
                    break;
                }
                std::hint::spin_loop();
                result = shared.help(worker, core, Some(group));
            }
            match result {
                // These engines have emptied the group's queues.
                Some(StepResult::Done) => return true,
                Some(StepResult::Idle) => {}
                // The worker must step the blocked engine again.
                Some(StepResult::Blocked | StepResult::More) => return false,
                // Another thread works on these engines, and may have missed the descriptor.
                None => was_taken = true,
            }
        }
        !was_taken
    }

    /// Stops or restarts the execution. When it returns with `held`, no thread steps an engine.
    pub(crate) fn hold(&self, held: bool) {
        self.shared.requested_state.store(if held { HOLD } else { RUN }, Ordering::SeqCst);
        if held {
            // A thread that was stepping has released the lock; the next one will see the request.
            self.shared.engines.iter().for_each(Helped::wait_until_free);
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

/// True if the handover to another thread would take a noticeable part of the time of this descriptor.
fn is_short(descriptor: &Descriptor) -> bool {
    let most = if descriptor.opcode() == Opcode::Batch { SHORT_BATCH } else { SHORT_TRANSFER };
    descriptor.size() <= most
}

fn run_worker(core: &Core, shared: &Shared, worker: usize) {
    let own = &shared.engines[worker];
    // The groups of its engines may change while it runs, but not their indices.
    let indices = own.work(|engines| engines.indices()).unwrap_or_default();
    let is_queue_filled = || {
        let mut groups = indices.iter().filter_map(|engine| core.device.group_of_engine(*engine));
        groups.any(|group| core.device.group_has_work(group))
    };
    let (mut idle, mut blocked) = (0, 0_u32);
    // The count of left descriptors up to which this worker has looked at its engines.
    let mut seen = 0;
    loop {
        let requested_state = shared.requested_state.load(Ordering::Relaxed);
        if requested_state == STOP {
            return;
        }
        own.worker_runs();
        if requested_state == RUN {
            let looks = match &shared.left {
                // After a sleep, a step or a block, a helper may have left work. `seen` lags if the lock was taken.
                Some(left) => idle == 0 || left.load(Ordering::Relaxed) != seen,
                None => idle % CHECKS_WITHOUT_LOCK == 0 || is_queue_filled(),
            };
            let stepped = looks.then(|| {
                own.work(|engines| {
                    // Acquire: pairs with the Release in `notify`.
                    seen = shared.left.as_ref().map_or(0, |left| left.load(Ordering::Acquire));
                    // SeqCst: as the store in `hold`, which then waits for the lock.
                    let runs = shared.requested_state.load(Ordering::SeqCst) == RUN;
                    let result = if runs { engines.step(core, None) } else { StepResult::Idle };
                    // Waiting threads have counted their checks during a long step.
                    own.worker_runs();
                    result
                })
            });
            match stepped.flatten() {
                Some(StepResult::Done | StepResult::More) => (idle, blocked) = (0, 0),
                // Nothing waits, or a helper executes it.
                Some(StepResult::Idle) | None => idle += 1,
                // Waits for software or for another worker. Other threads may need the core more, but not for a short
                // wait.
                Some(StepResult::Blocked) => {
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
                RUN => own.may_have_work(|engines| engines.has_work(&core.device)),
                HOLD => false,
                _ => true,
            };
            shared.sleepers[worker].sleep(has_work, thread::park);
        }
    }
}
