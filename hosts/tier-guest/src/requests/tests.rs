//! Requesting and serving threads.
#![allow(unsafe_code, reason = "a test forks")]

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

fn requests() -> RequestQueue {
    RequestQueue::new(Mutex::new(()), Mutex::new(State::new()), [Condvar::new(), Condvar::new()])
}

fn request(thread: i32) -> Request {
    Request::Release { start: 0, end: 4096, thread }
}

#[test]
fn early_requests_are_stored_and_later_ones_done_before_their_sender_continues() {
    let requests = requests();
    requests.send(request(1), None);
    requests.send(request(2), None);
    assert_eq!(requests.open(), Some(vec![request(1), request(2)]));
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                requests.serve(left_of(Duration::from_millis(1)), |request| {
                    if let Request::Release { thread, .. } = request {
                        done.fetch_add(1 << (8 * thread), Ordering::SeqCst);
                    }
                });
            }
        });
        thread::scope(|scope| {
            for number in 0..4 {
                let (requests, done) = (&requests, &done);
                scope.spawn(move || {
                    for round in 1..=50 {
                        requests.send(request(number), None);
                        assert_eq!(done.load(Ordering::SeqCst) >> (8 * number) & 0xff, round);
                    }
                });
            }
        });
        stop.store(true, Ordering::Relaxed);
        server.join().unwrap();
    });
    assert_eq!(done.load(Ordering::SeqCst), 0x3232_3232);
}

#[test]
fn a_sender_continues_when_the_queue_closes_or_the_time_is_over() {
    let requests = requests();
    assert_eq!(requests.open(), Some(Vec::new()));
    requests.send(Request::End, Some(Duration::from_millis(5)));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| requests.send(request(1), None));
        while requests.state().request != Some(request(1)) {
            thread::yield_now();
        }
        requests.close();
        waiting.join().unwrap();
    });
    requests.send(request(2), None);
}

#[test]
fn too_many_early_requests_are_reported() {
    let requests = requests();
    let most = i32::try_from(MOST_EARLY).unwrap();
    (0..=most).for_each(|thread| requests.send(request(thread), None));
    assert_eq!(requests.open(), None);
    requests.send(request(0), None);
}

#[test]
fn a_forked_child_sends_no_request() {
    let requests = requests();
    requests.open().unwrap();
    let _turn = requests.turn.lock().unwrap();
    // SAFETY: the child sends a request, which allocates nothing, and exits.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(10);
            requests.send(request(1), None);
            libc::_exit(0);
        }
        let mut status = -1;
        assert_eq!((libc::waitpid(child, &raw mut status, 0), status), (child, 0));
    }
}
