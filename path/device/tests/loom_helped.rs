//! Work that a helping thread leaves behind is done by the worker, which does not sleep over it.
//!
//! Seen to fail: if a taken lock counts as "no work" in `may_have_work`, loom reports a deadlock.
#![cfg(loom)]
#![allow(dead_code, unused_imports, unreachable_pub, reason = "the files are included as they are")]

#[path = "../src/runner/sleeper.rs"]
mod sleeper;
#[path = "../src/sync.rs"]
mod sync;
#[path = "../src/runner/waiter_help.rs"]
mod waiter_help;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use sleeper::Sleeper;
use waiter_help::Helped;

/// A queue of one descriptor, and an engine that needs two steps for it: to take it, and to complete it.
struct Device {
    queued: AtomicU32,
    engine: Helped<Engine>,
    sleeper: Sleeper,
    completed: AtomicU32,
}

struct Engine {
    has_descriptor: bool,
}

impl Device {
    fn step(&self, engine: &mut Engine) {
        if engine.has_descriptor {
            engine.has_descriptor = false;
            self.completed.store(1, Ordering::Relaxed);
        } else if self.queued.load(Ordering::Relaxed) != 0 {
            self.queued.store(0, Ordering::Relaxed);
            engine.has_descriptor = true;
        }
    }
}

#[test]
fn the_worker_completes_what_a_helper_leaves() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let device = Arc::new(Device {
            queued: AtomicU32::new(0),
            engine: Helped::new(Engine { has_descriptor: false }),
            sleeper: Sleeper::new(),
            completed: AtomicU32::new(0),
        });
        let worker = {
            let device = Arc::clone(&device);
            thread::spawn(move || {
                while device.completed.load(Ordering::Relaxed) == 0 {
                    device.engine.worker_runs();
                    if device.engine.work(|engine| device.step(engine)).is_none() {
                        thread::yield_now();
                    }
                    let has_work = || {
                        let queued_or_taken =
                            |engine: &Engine| engine.has_descriptor || device.queued.load(Ordering::Relaxed) != 0;
                        device.completed.load(Ordering::Relaxed) != 0 || device.engine.may_have_work(queued_or_taken)
                    };
                    device.sleeper.sleep(has_work, thread::park);
                }
            })
        };
        device.queued.store(1, Ordering::Relaxed);
        device.sleeper.wake(|| worker.thread().unpark());
        // Helps with one step only, so that the other step is left.
        device.engine.work(|engine| {
            if !engine.has_descriptor {
                device.step(engine);
            }
        });
        worker.join().unwrap();
    });
}
