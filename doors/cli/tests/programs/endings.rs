//! The mover's guarantees about completion, on hardware queues: nothing is lost when the device stops or does not
//! complete work, at a fork, in a signal handler, when a thread panics, or when the process exits. Cases of `hardware`.
#![allow(unsafe_code, reason = "forks")]

use crate::handler::interrupted;
use crate::hardware::{DEDICATED, SHARED, open};
use std::sync::Arc;
use std::time::Duration;
use telpher_mover::{Mover, Outcome, Policy, Threshold, Via, Wait};
use telpher_portal::Health;

/// Returns a mover over both queues.
fn mover(policy: Policy) -> Mover {
    Mover::new([open(SHARED), open(DEDICATED)], Policy { threshold: Threshold::all(0), ..policy })
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * 31 + seed * 17 + i / 251) % 256).expect("a byte")).collect()
}

/// Copies in several ways and checks every byte. Returns where each job was executed.
fn copies_well(mover: &Mover) -> Vec<Via> {
    let jobs: Vec<_> = (0..40).map(|i| mover.copy(pattern(5000 + 97 * i, i), vec![0; 5000 + 97 * i])).collect();
    let mut batch = mover.batch();
    let keys: Vec<_> = (0..10).map(|i| batch.copy(pattern(3000, i), vec![0; 3000])).collect();
    let batch = batch.submit();
    let vias = jobs.into_iter().map(|job| {
        let done = job.wait();
        assert_eq!(done.result, Ok(Outcome::Done));
        assert!(done.buffers.0 == done.buffers.1);
        done.via
    });
    let vias = vias.collect();
    let mut done = batch.wait();
    for key in keys {
        let done = done.take(key);
        assert!(done.result == Ok(Outcome::Done) && done.buffers.0 == done.buffers.1);
    }
    let (src, mut dst) = (pattern(70_000, 1), vec![0; 70_000]);
    assert_eq!(mover.copy_slices(&src, &mut dst), Ok(Outcome::Done));
    assert!(src == dst);
    vias
}

/// The device never writes the records: at the limit the mover closes the queue, and the CPU does the work.
pub(crate) fn lost() {
    let limit = Duration::from_millis(100);
    let mover = mover(Policy { limit, ..Policy::default() });
    assert!(copies_well(&mover).iter().all(|via| *via != Via::Device));
    assert_eq!((mover.quarantined(), mover.orphaned()), (0, 0));
}

/// The device halts with work in flight.
pub(crate) fn halted_at_work() {
    let mover = mover(Policy::default());
    let mut vias = Vec::new();
    for _ in 0..10 {
        vias.extend(copies_well(&mover));
    }
    assert!(vias.contains(&Via::Device) && vias.contains(&Via::Cpu), "{vias:?}");
    assert_eq!((mover.quarantined(), mover.orphaned()), (0, 0));
}

/// Two movers each use a dedicated queue as if it were theirs alone. The device's error report shows the dropped
/// descriptors; the time limit does not, since it is longer than the test.
pub(crate) fn overfilled() {
    let portal = open(DEDICATED);
    let policy = || Policy { threshold: Threshold::all(0), limit: Duration::from_secs(86_400), ..Policy::default() };
    let movers = [(); 2].map(|()| Mover::new([portal.clone()], policy()));
    let len = 2 << 20;
    // The system's scheduler decides whether more arrive than the device has dispatched by then; nearly always they do.
    let why = (0..100).find_map(|_| {
        // Allocated before, so that the copies are submitted faster than any device executes them.
        let buffers: Vec<_> = (0..32).map(|i| (pattern(len, i), vec![1; len])).collect();
        let jobs = buffers.into_iter().zip(movers.iter().cycle()).map(|((src, dst), mover)| mover.copy(src, dst));
        let jobs: Vec<_> = jobs.collect::<Vec<_>>().into_iter().map(telpher_mover::Job::wait).collect();
        assert!(jobs.iter().all(|done| done.result == Ok(Outcome::Done) && done.buffers.0 == done.buffers.1));
        match portal.health() {
            Health::Working => None,
            Health::Stopped(why) => {
                assert!(jobs.iter().any(|done| done.via != Via::Device), "what was dropped has a record");
                Some(why)
            }
        }
    });
    assert_eq!(why.as_deref(), Some("wq0.1 got more than the 16 descriptors that it can hold, and lost one"));
    assert!(movers.iter().all(|mover| (mover.quarantined(), mover.orphaned()) == (0, 0)));
    // The error stays in the register, but does not affect the next client that opens the queue.
    drop((movers, portal));
    let next = open(DEDICATED);
    assert_eq!(next.health(), Health::Working);
    let mover = Mover::new([next], policy());
    assert_eq!(mover.copy(pattern(len, 1), vec![0; len]).wait().via, Via::Device);
}

/// Every wait mechanism.
pub(crate) fn waits_of_a_mover() {
    let slice = Duration::from_micros(50);
    let ways = [
        Wait::Spin,
        Wait::Pause,
        Wait::Yield { pauses: 10 },
        Wait::Sleep { pauses: 10, interval: slice },
        Wait::Monitor { at_most: slice },
        Wait::Timed { interval: slice },
        Wait::Predicted,
    ];
    // A dedicated queue has one client, so one mover at a time.
    for wait in ways {
        let vias = copies_well(&mover(Policy { wait, ..Policy::default() }));
        assert!(vias.iter().all(|via| *via == Via::Device), "{wait:?}: {vias:?}");
    }
}

/// Parent and child both complete the work in flight, and the child opens queues of its own.
pub(crate) fn forked_at_work() {
    let mover = mover(Policy::default());
    for round in 0..20 {
        let jobs: Vec<_> = (0..8).map(|i| mover.copy(pattern(60_000, i + round), vec![0; 60_000])).collect();
        // SAFETY: the child has one thread. The calls that it makes need no lock that another thread of this process
        // (the
        // model's, the guest's) may hold at the fork: the mover and the virtual device promise that these calls work
        // there.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork");
        let all = jobs.into_iter().all(|job| {
            let done = job.wait();
            done.result == Ok(Outcome::Done) && done.buffers.0 == done.buffers.1
        });
        if child == 0 {
            let on = mover.copy(pattern(60_000, 3), vec![0; 60_000]).wait();
            let on = on.via == Via::Cpu && on.buffers.0 == on.buffers.1;
            let own = Mover::new([open(SHARED)], Policy { threshold: Threshold::all(0), ..Policy::default() });
            let own = own.copy(pattern(60_000, 4), vec![0; 60_000]).wait();
            let own = own.via == Via::Device && own.buffers.0 == own.buffers.1;
            // SAFETY: ends the child without running the test harness's exit handlers a second time.
            unsafe { libc::_exit(i32::from(!all) | i32::from(!on) << 1 | i32::from(!own) << 2) };
        }
        assert!(all, "round {round}");
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "round {round}: bits 8 to 10 tell what did not hold in the child");
    }
    assert!(copies_well(&mover).iter().all(|via| *via == Via::Device));
}

/// The handler of SIGUSR1 copies, whatever it interrupted: a submission, a wait, an allocation.
pub(crate) fn signalled() {
    let mover = mover(Policy::default());
    let copied = interrupted(&mover, 300, || {
        copies_well(&mover);
    });
    assert_eq!(copied, 300);
}

/// A thread panics with jobs in flight, and the process exits with more.
pub(crate) fn exits_at_work() {
    let mover = Arc::new(mover(Policy::default()));
    let theirs = Arc::clone(&mover);
    let panicked = std::thread::spawn(move || {
        let _jobs: Vec<_> = (0..8).map(|_| theirs.copy(pattern(60_000, 1), vec![0; 60_000])).collect();
        panic!("with jobs in flight, as the case demands");
    });
    assert!(panicked.join().is_err());
    copies_well(&mover);
    // In flight when the harness ends this process; forgotten, so that nothing waits for them.
    (0..8).for_each(|_| std::mem::forget(mover.copy(pattern(1 << 20, 1), vec![0; 1 << 20])));
    std::mem::forget(mover);
}
