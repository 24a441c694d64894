//! Who asks, who serves, and who goes on.
#![allow(unsafe_code, reason = "a test forks")]

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

fn desk() -> Desk {
    Desk::new(Mutex::new(()), Mutex::new(State::new()), [Condvar::new(), Condvar::new()])
}

fn errand(thread: i32) -> Errand {
    Errand::LetGo { start: 0, end: 4096, thread }
}

#[test]
fn what_is_asked_before_it_opens_is_noted_and_later_done_before_who_asks_goes_on() {
    let desk = desk();
    desk.ask(errand(1), None);
    desk.ask(errand(2), None);
    assert_eq!(desk.open(), Some(vec![errand(1), errand(2)]));
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                desk.serve(left_of(Duration::from_millis(1)), |errand| {
                    if let Errand::LetGo { thread, .. } = errand {
                        done.fetch_add(1 << (8 * thread), Ordering::SeqCst);
                    }
                });
            }
        });
        thread::scope(|scope| {
            for number in 0..4 {
                let (desk, done) = (&desk, &done);
                scope.spawn(move || {
                    for round in 1..=50 {
                        desk.ask(errand(number), None);
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
fn who_asks_goes_on_when_it_closes_or_the_time_is_over() {
    let desk = desk();
    assert_eq!(desk.open(), Some(Vec::new()));
    desk.ask(Errand::End, Some(Duration::from_millis(5)));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| desk.ask(errand(1), None));
        while desk.state().errand != Some(errand(1)) {
            thread::yield_now();
        }
        desk.close();
        waiting.join().unwrap();
    });
    desk.ask(errand(2), None);
}

#[test]
fn more_than_can_be_noted_is_told() {
    let desk = desk();
    let most = i32::try_from(MOST_EARLY).unwrap();
    (0..=most).for_each(|thread| desk.ask(errand(thread), None));
    assert_eq!(desk.open(), None);
    desk.ask(errand(0), None);
}

#[test]
fn a_forked_child_asks_nobody() {
    let desk = desk();
    desk.open().unwrap();
    let _turn = desk.turn.lock().unwrap();
    // SAFETY: the child asks, which allocates nothing, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::alarm(10);
            desk.ask(errand(1), None);
            libc::_exit(0);
        }
        let mut status = -1;
        assert_eq!((libc::waitpid(child, &raw mut status, 0), status), (child, 0));
    }
}
