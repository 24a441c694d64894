//! No fork happens while an exchange has pages out, and no exchange while a process forks; both continue when they may.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-tier --test loom_turns`.
//!
//! **Seen to fail**, with loom's message that a cell is used concurrently: any of the four orderings weakened to
//! Relaxed (`try_exchange`, `end_exchange`, `may_fork`, `end_fork`); a fork that does not wait for exchanges; an
//! exchange that begins without checking for forks. For traps, with loom's message that there are too many branches: a
//! thread that sets traps and does not check afterwards whether a fork was announced, or checks before; a fork that
//! does not recall traps.
#![cfg(loom)]

#[allow(dead_code, reason = "children are separate processes, which loom does not model")]
#[path = "../src/fork_gate/turns.rs"]
mod turns;

#[path = "../src/sync.rs"]
mod sync;

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;
use turns::Turns;

/// A process: its turns, and for each of two exchanges whether it has a page out. Loom reports a read that is
/// concurrent with a change.
struct Process {
    turns: Turns,
    out: [UnsafeCell<bool>; 2],
}

impl Process {
    fn new() -> Arc<Process> {
        Arc::new(Process { turns: Turns::new(), out: [false, false].map(UnsafeCell::new) })
    }

    /// Returns whether the exchange was made.
    fn try_exchange(&self, number: usize) -> bool {
        let may = self.turns.try_exchange();
        if may {
            for is_out in [true, false] {
                set(&self.out[number], is_out);
            }
            self.turns.end_exchange();
        }
        may
    }

    /// Checks what a child would find, if the fork is permitted before `wait` returns false.
    fn fork(&self, mut wait: impl FnMut() -> bool) {
        self.turns.announce_fork();
        let mut may = self.turns.may_fork();
        while !may && wait() {
            may = self.turns.may_fork();
        }
        if may {
            for out in &self.out {
                assert!(!get(out), "a page is out while a process forks");
            }
        }
        self.turns.end_fork();
    }
}

/// Waits forever. At most one thread of a model does, because two that wait for each other's turn would try without
/// end.
fn patiently() -> bool {
    thread::yield_now();
    true
}

#[allow(unsafe_code, reason = "loom's cell needs it")]
fn set(cell: &UnsafeCell<bool>, value: bool) {
    // SAFETY: loom reports concurrent use.
    cell.with_mut(|cell| unsafe { *cell = value });
}

#[allow(unsafe_code, reason = "loom's cell needs it")]
fn get(cell: &UnsafeCell<bool>) -> bool {
    // SAFETY: loom reports a concurrent change.
    cell.with(|cell| unsafe { *cell })
}

/// Runs these three concurrently.
fn at_once(of_others: [fn(&Process); 2], own: fn(&Process)) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(3));
    model.check(move || {
        let process = Process::new();
        let threads = of_others.map(|what| {
            let process = Arc::clone(&process);
            thread::spawn(move || what(&process))
        });
        own(&process);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_fork_waits_for_two_exchanges_and_none_begins_meanwhile() {
    let exchange = |process: &Process| _ = process.try_exchange(0);
    let other = |process: &Process| _ = process.try_exchange(1);
    at_once([exchange, other], |process| process.fork(patiently));
}

#[test]
fn an_exchange_waits_for_two_forks_and_comes_after_them() {
    let fork = |process: &Process| process.fork(|| false);
    at_once([fork, fork], |process| {
        while !process.try_exchange(0) {
            thread::yield_now();
        }
    });
}

/// A process with traps that are never touched and never end by themselves.
struct Trapping {
    turns: Turns,
    /// The page map; true if a page is out.
    map: Mutex<bool>,
    out: UnsafeCell<bool>,
}

impl Trapping {
    /// Like `Trapping::set` of `UserfaultMove`.
    fn set(&self) {
        if self.turns.try_exchange() {
            {
                let mut map = self.map.lock().unwrap();
                set(&self.out, true);
                *map = true;
            }
            if self.turns.is_fork_announced() {
                self.recall();
            }
        }
    }

    fn recall(&self) {
        let mut map = self.map.lock().unwrap();
        if *map {
            set(&self.out, false);
            *map = false;
            self.turns.end_exchange();
        }
    }

    /// Like `Recaller`, for one fork.
    fn recall_for_fork(&self) {
        thread::park();
        if self.turns.is_fork_announced() {
            self.recall();
        }
    }

    fn fork(&self, recaller: &thread::Thread) {
        self.turns.announce_fork();
        recaller.unpark();
        while !self.turns.may_fork() {
            thread::yield_now();
        }
        assert!(!get(&self.out), "a page is out while a process forks");
        self.turns.end_fork();
    }
}

#[test]
fn a_fork_recalls_traps_and_does_not_wait_for_their_end() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(3));
    model.check(|| {
        let process = Arc::new(Trapping { turns: Turns::new(), map: Mutex::new(false), out: UnsafeCell::new(false) });
        let (forks, recalls) = (Arc::clone(&process), Arc::clone(&process));
        let recaller = thread::spawn(move || recalls.recall_for_fork());
        let its = recaller.thread().clone();
        let fork = thread::spawn(move || forks.fork(&its));
        process.set();
        fork.join().unwrap();
        recaller.join().unwrap();
        process.recall();
        process.set();
    });
}
