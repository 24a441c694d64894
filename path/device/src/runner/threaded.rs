//! The threaded runner: engines on worker threads that spin while there is work, then sleep.
//!
//! There are at most as many workers as cores beside the submitter's, so that engines never take the core of who waits
//! for them; a worker steps several engines in turn, and none of them can block another.

use super::sleeper::Sleeper;
use super::unheard::unheard;
use super::{Core, Crew, Round};
use crate::sync::{AtomicU32, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use telpher_os::Lineage;

/// Looks at empty queues before a worker sleeps: about 50 µs, several times what a round trip between cores takes.
/// Source: chosen; the cost of a sleep and a wake-up is of the same size.
const SPINS: u32 = 2_000;

/// Looks at a blocked engine before its worker gives the core away. Source: chosen; about a microsecond.
const BLOCKED_SPINS: u32 = 32;

/// The same before its worker sleeps a little, where an observer may keep descriptors waiting for time to pass. Source: chosen;
/// some microseconds.
const PATIENCE: u32 = 64;
/// How long. Source: chosen; below what observers make descriptors wait.
const NAP: Duration = Duration::from_micros(20);

const RUN: u32 = 0;
const HOLD: u32 = 1;
const STOP: u32 = 2;

/// Worker threads of a device. Dropping it ends them after the step each is at; a batch may stay unfinished.
#[derive(Debug)]
pub(crate) struct Threaded {
    /// Where the threads are.
    started_in: Lineage,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    order: AtomicU32,
    sleepers: Vec<Sleeper>,
}

impl Threaded {
    /// Workers for a device's engines.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(crate) fn start(core: &Arc<Core>, engines: usize, lanes: usize) -> std::io::Result<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let workers = engines.min(cores.saturating_sub(1)).max(1);
        let shared =
            Arc::new(Shared { order: AtomicU32::new(RUN), sleepers: (0..workers).map(|_| Sleeper::new()).collect() });
        let mut threaded = Threaded {
            started_in: Lineage::current(),
            shared: Arc::clone(&shared),
            threads: Vec::with_capacity(workers),
        };
        for worker in 0..workers {
            let (core, shared) = (Arc::clone(core), Arc::clone(&shared));
            let crew = Crew::new((worker..engines).step_by(workers), lanes);
            let builder = thread::Builder::new().name(format!("telpher-engine-{worker}"));
            threaded.threads.push(unheard(|| builder.spawn(move || work(&core, &shared, worker, crew)))?);
        }
        Ok(threaded)
    }

    /// Tells the workers that a descriptor was accepted.
    #[inline]
    pub(crate) fn notify(&self) {
        for (sleeper, thread) in self.shared.sleepers.iter().zip(&self.threads) {
            sleeper.wake(|| thread.thread().unpark());
        }
    }

    /// Stops, or restarts, taking work. When it returns with `held`, no worker steps an engine.
    pub(crate) fn hold(&self, held: bool) {
        self.shared.order.store(if held { HOLD } else { RUN }, Ordering::SeqCst);
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
            // A forked child has none of these threads; to join one would wait for ever.
            std::mem::forget(std::mem::take(&mut self.threads));
            return;
        }
        self.shared.order.store(STOP, Ordering::SeqCst);
        self.notify();
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so on stderr; there is nobody to tell again.
            let _ = thread.join();
        }
    }
}

fn work(core: &Core, shared: &Shared, worker: usize, mut crew: Crew) {
    let (mut idle, mut blocked) = (0, 0_u32);
    loop {
        let order = shared.order.load(Ordering::Relaxed);
        if order == STOP {
            return;
        }
        if order == RUN {
            match crew.step(core, None) {
                Round::Done | Round::More => (idle, blocked) = (0, 0),
                Round::Idle => idle += 1,
                // Waits for software or for another worker. Others may need the core more, but not for a short wait.
                Round::Blocked => {
                    idle = 0;
                    blocked = blocked.wrapping_add(1);
                    if core.observer.is_some() && blocked > PATIENCE {
                        thread::sleep(NAP);
                    } else if blocked.is_multiple_of(BLOCKED_SPINS) {
                        thread::yield_now();
                    }
                }
            }
            std::hint::spin_loop();
        }
        if order == HOLD || idle > SPINS {
            idle = 0;
            let has_work = || match shared.order.load(Ordering::SeqCst) {
                RUN => crew.has_work(&core.device),
                HOLD => false,
                _ => true,
            };
            shared.sleepers[worker].sleep(has_work, thread::park);
        }
    }
}
