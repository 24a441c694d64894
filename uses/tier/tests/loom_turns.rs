//! No fork while an exchange has pages out, and no exchange while a process forks; both go on when they may.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-tier --test loom_turns`.
//!
//! **Seen to fail**, with loom's word that a cell is used by two at once: any of the four orderings weakened to Relaxed (`try_exchange`,
//! `end_exchange`, `may_fork`, `end_fork`); a fork that does not wait for exchanges; an exchange that begins without a look at forks. Of traps, with
//! loom's word that there are too many branches: who sets them and does not ask afterwards whether a fork was announced, or asks before; a fork that
//! does not call them back.
#![cfg(loom)]

#[allow(dead_code, reason = "children are processes of their own, which loom has not")]
#[path = "../src/gate/turns.rs"]
mod turns;

#[path = "../src/sync.rs"]
mod sync;

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;
use turns::Turns;

/// A process: its turns, and of each of two exchanges whether it has a page out. Loom objects to who looks while another changes it.
struct Process {
    turns: Turns,
    out: [UnsafeCell<bool>; 2],
}

impl Process {
    fn new() -> Arc<Process> {
        Arc::new(Process { turns: Turns::new(), out: [false, false].map(UnsafeCell::new) })
    }

    /// True if it could be.
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

    /// What a child would find, if there could be one after so many looks.
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

/// Waits for ever. One thread of a model at most does, as those that wait for each other's turn have it try without end.
fn patiently() -> bool {
    thread::yield_now();
    true
}

#[allow(unsafe_code, reason = "loom's cell wants it")]
fn set(cell: &UnsafeCell<bool>, value: bool) {
    // SAFETY: loom objects if another uses it meanwhile.
    cell.with_mut(|cell| unsafe { *cell = value });
}

#[allow(unsafe_code, reason = "loom's cell wants it")]
fn get(cell: &UnsafeCell<bool>) -> bool {
    // SAFETY: loom objects if another changes it meanwhile.
    cell.with(|cell| unsafe { *cell })
}

/// All of these at once.
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
fn a_fork_waits_for_two_exchanges_and_none_begins_beside_it() {
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

/// A process in which traps are set that nobody touches, and whose time is never over.
struct Trapping {
    turns: Turns,
    /// The book, by whose word something is out.
    book: Mutex<bool>,
    out: UnsafeCell<bool>,
}

impl Trapping {
    /// As `Trapping::set` of pools does.
    fn set(&self) {
        if self.turns.try_exchange() {
            {
                let mut book = self.book.lock().unwrap();
                set(&self.out, true);
                *book = true;
            }
            if self.turns.is_fork_announced() {
                self.recall();
            }
        }
    }

    fn recall(&self) {
        let mut book = self.book.lock().unwrap();
        if *book {
            set(&self.out, false);
            *book = false;
            self.turns.end_exchange();
        }
    }

    /// As `Recaller` does, for one fork.
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
fn a_fork_calls_traps_back_and_does_not_wait_for_their_end() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(3));
    model.check(|| {
        let process = Arc::new(Trapping { turns: Turns::new(), book: Mutex::new(false), out: UnsafeCell::new(false) });
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
