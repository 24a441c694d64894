//! A requesting thread continues when its request is done or the queue is closed, and no request is forgotten.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p telpher-tier-guest --test loom_requests`.
//!
//! **Seen to fail**, with the assertion: a request that ends before it is done; a requesting thread that does not wait;
//! two requests at once. With loom's report of a deadlock: a request that is done, or a queue that closes, without a
//! notification of the waiting thread; a request without a notification of the serving thread; a queue that opens after
//! the stored requests were read.
#![cfg(loom)]

#[allow(dead_code, reason = "time does not pass here, and there is one process")]
#[path = "../src/requests.rs"]
mod requests;

mod sync {
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};
}

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use requests::{Request, RequestQueue, State};
use std::cell::Cell;
use std::time::Duration;
use sync::{Condvar, Mutex};

/// The queue, and how often each request was done.
struct Process {
    requests: RequestQueue,
    done: [AtomicU32; 2],
}

impl Process {
    fn new() -> Arc<Process> {
        let requests = RequestQueue::new(Mutex::new(()), Mutex::new(State::new()), [Condvar::new(), Condvar::new()]);
        Arc::new(Process { requests, done: [0, 0].map(AtomicU32::new) })
    }

    /// Sends the request of this number.
    fn send(&self, number: usize) {
        let thread = i32::try_from(number).unwrap();
        self.requests.send(Request::Release { start: 0, end: 4096, thread }, None);
    }

    fn did(&self, request: Request) {
        let Request::Release { thread, .. } = request else { panic!("unexpected request {request:?}") };
        // Relaxed: the queue orders the accesses.
        self.done[usize::try_from(thread).unwrap()].fetch_add(1, Ordering::Relaxed);
    }

    fn done(&self, number: usize) -> u32 {
        self.done[number].load(Ordering::Relaxed)
    }

    /// Serves this many requests and waits for each.
    fn serve(&self, requests: u32) {
        let served = Cell::new(0);
        let left = || (served.get() < requests).then_some(Duration::from_secs(1));
        self.requests.serve(left, |request| {
            self.did(request);
            served.set(served.get() + 1);
        });
    }
}

#[test]
fn a_sender_continues_when_its_request_is_done() {
    loom::model(|| {
        let process = Process::new();
        process.requests.open().unwrap();
        let sending = [0, 1].map(|number| {
            let process = Arc::clone(&process);
            thread::spawn(move || {
                process.send(number);
                assert_eq!(process.done(number), 1, "it continues before it is done");
            })
        });
        process.serve(2);
        for sending in sending {
            sending.join().unwrap();
        }
        assert_eq!([0, 1].map(|number| process.done(number)), [1, 1]);
    });
}

#[test]
fn a_request_before_the_opening_is_stored_or_done() {
    loom::model(|| {
        let process = Process::new();
        let sending = {
            let process = Arc::clone(&process);
            thread::spawn(move || process.send(0))
        };
        let noted = process.requests.open().unwrap();
        let rest = 1 - u32::try_from(noted.len()).unwrap();
        noted.into_iter().for_each(|request| process.did(request));
        process.serve(rest);
        sending.join().unwrap();
        assert_eq!(process.done(0), 1);
    });
}

#[test]
fn a_sender_continues_when_the_queue_closes() {
    loom::model(|| {
        let process = Process::new();
        process.requests.open().unwrap();
        let sending = [0, 1].map(|number| {
            let process = Arc::clone(&process);
            thread::spawn(move || process.send(number))
        });
        process.requests.close();
        for sending in sending {
            sending.join().unwrap();
        }
    });
}
