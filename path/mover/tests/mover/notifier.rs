//! Ends of jobs reported by a descriptor: none is missed, none is reported twice, and nothing runs meanwhile.

use crate::common::{self, Chance, policy};
use rustix::event::epoll::{CreateFlags, Event, EventData, EventFlags, add, create, wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeSet;
use std::fs;
use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};
use telpher_device::{ModelDevice, ModelOptions, Preset, Runner};
use telpher_mover::{Mover, NOTIFIER_THREAD, Notifier, Outcome, Policy, Via, Wait, Watchable};
use telpher_portal::QueueMode;

/// Jobs of a loop, and how many of them are in flight together.
const JOBS: u64 = 10_000;
const TOGETHER: u64 = 64;
/// Bytes of a copy.
const BYTES: usize = 512;

fn model(runner: Runner, wait: Wait) -> Mover {
    let device = ModelDevice::start(ModelOptions::of(Preset::Spr).with_runner(runner)).unwrap();
    let portals = device.enabled_queues().into_iter().map(|n| device.portal(&format!("wq0.{n}")).unwrap());
    Mover::new(portals.collect::<Vec<_>>(), Policy { wait, ..policy() })
}

/// Returns true if the descriptor is readable within this time.
fn is_readable(notifier: &Notifier, within: Duration) -> bool {
    let within = Timespec::try_from(within).unwrap();
    poll(&mut [PollFd::new(notifier, PollFlags::IN)], Some(&within)).unwrap() == 1
}

/// Waits for the tokens of this many ends.
fn ends(notifier: &Notifier, count: usize) -> Vec<u64> {
    let mut ended = Vec::new();
    while ended.len() < count {
        assert!(is_readable(notifier, Duration::from_secs(60)), "{} of {count} ends in a minute", ended.len());
        ended.extend(notifier.take_ended(usize::MAX));
    }
    ended
}

#[test]
fn ten_thousand_jobs_through_one_epoll_loop_are_each_reported_once() {
    let waits = [Wait::default(), Wait::Predicted, Wait::Sleep { pauses: 0, interval: Duration::from_millis(1) }];
    for (runner, pause) in [(Runner::Inline, waits[0]), (Runner::Threaded, waits[1]), (Runner::Threaded, waits[2])] {
        let mover = model(runner, pause);
        let notifier = mover.notifier().unwrap();
        let epoll = create(CreateFlags::CLOEXEC).unwrap();
        add(&epoll, &notifier, EventData::new_u64(0), EventFlags::IN).unwrap();
        let source: Arc<[u8]> = Chance::new(3).bytes(BYTES).into();
        let mut jobs: Vec<_> = (0..JOBS).map(|_| None).collect();
        let (mut started, mut reported) = (0, BTreeSet::new());
        while reported.len() < jobs.len() {
            while started < JOBS && started - (reported.len() as u64) < TOGETHER {
                let job = mover.copy(source.to_vec(), vec![0; BYTES]);
                jobs[usize::try_from(started).unwrap()] = Some(notifier.watch(job, started));
                started += 1;
            }
            let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(1) }; 4];
            let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
            let ready = wait(&epoll, &mut events, Some(&minute)).unwrap();
            assert_eq!(ready, 1, "{} of {JOBS} jobs were reported, and then none in a minute", reported.len());
            for token in notifier.take_ended(7) {
                assert!(reported.insert(token), "job {token} was reported twice");
                let job = jobs[usize::try_from(token).unwrap()].as_ref().and_then(|job| job.take());
                let (result, _, copied) = job.expect("a reported job has ended").wait().into_parts();
                assert_eq!((result, copied[..] == source[..]), (Ok(Outcome::Done), true), "job {token}");
            }
        }
        assert!(notifier.take_ended(1).is_empty() && !is_readable(&notifier, Duration::ZERO));
    }
}

/// Folders of the threads of notifiers in /proc.
fn threads() -> BTreeSet<PathBuf> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let name = |task: &PathBuf| fs::read_to_string(task.join("comm")).unwrap_or_default();
    tasks.filter(|task| name(task).trim_end() == NOTIFIER_THREAD).collect()
}

#[test]
fn while_nothing_is_in_flight_the_notifier_does_not_run() {
    if !common::is_alone() {
        // In this process, other tests have notifiers, too.
        let name = "notifier::while_nothing_is_in_flight_the_notifier_does_not_run";
        let output = common::alone(name, Stdio::inherit());
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}");
        return;
    }
    let mover = model(Runner::Threaded, Wait::default());
    let notifier = mover.notifier().unwrap();
    let watched: Vec<_> = (0..100).map(|n| notifier.watch(mover.copy(vec![7; 9000], vec![0; 9000]), n)).collect();
    assert_eq!(ends(&notifier, 100).len(), 100);
    let thread = threads().into_iter().next().expect("the notifier's thread");
    let ran = || fs::read_to_string(thread.join("schedstat")).unwrap().split(' ').next().unwrap().to_owned();
    let begin = Instant::now();
    loop {
        let before = ran();
        assert!(!is_readable(&notifier, Duration::from_millis(200)));
        // A thread that looks again and again has run meanwhile, however seldom.
        if before == ran() {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "the thread runs without a job");
    }
    assert!(watched.iter().all(|watched| watched.take().is_some()));
    drop(notifier);
    while !threads().is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(120), "the thread does not end");
        std::thread::yield_now();
    }
}

#[test]
fn a_job_that_arrives_ends_the_sleep_for_another_one() {
    let device = Arc::new(common::device::TestDevice::new(QueueMode::Shared, 64));
    device.state().manual = true;
    let hour = Wait::Sleep { pauses: 0, interval: Duration::from_secs(3600) };
    let mover = common::mover(&device, Policy { wait: hour, ..policy() });
    let notifier = mover.notifier().unwrap();
    let long = notifier.watch(mover.copy(vec![1; 8192], vec![0; 8192]), 1);
    // The CPU makes it at once, on this thread.
    let short = notifier.watch(Mover::cpu().copy(vec![2; 64], vec![0; 64]), 2);
    assert_eq!(ends(&notifier, 1), [2]);
    // The thread may sleep for an hour now. The next job, which stays in flight, ends that.
    device.run(1);
    let next = notifier.watch(mover.copy(vec![3; 8192], vec![0; 8192]), 3);
    assert_eq!(ends(&notifier, 1), [1]);
    assert!(!next.is_done());
    for (watched, byte) in [(long, 1), (short, 2)] {
        assert!(watched.is_done() && watched.wait_for(Duration::ZERO));
        assert!(watched.wait().wait().into_parts().2.iter().all(|&copied| copied == byte));
    }
    drop(next);
    device.run(1);
}

#[test]
fn a_dropped_job_is_not_reported_and_its_buffers_stay_until_the_device_has_ended() {
    let device = Arc::new(common::device::TestDevice::new(QueueMode::Shared, 64));
    device.state().manual = true;
    let mover = common::mover(&device, policy());
    let notifier = mover.notifier().unwrap();
    let (buffer, dropped) = common::Watched::new(vec![0; 8192]);
    drop(notifier.watch(mover.copy(vec![1; 8192], buffer), 1));
    assert!(!dropped.load(Ordering::SeqCst) && mover.orphaned() == 1);
    device.run(1);
    mover.reclaim();
    assert!(dropped.load(Ordering::SeqCst));
    // Ended before the drop, and dropped before its end was taken.
    drop(notifier.watch(Mover::cpu().copy(vec![1; 64], vec![0; 64]), 2));
    assert!(notifier.take_ended(usize::MAX).is_empty());
}

#[test]
fn a_job_is_reported_even_if_the_program_has_read_the_descriptor() {
    let notifier = Mover::cpu().notifier().unwrap();
    let first = notifier.watch(Mover::cpu().copy(vec![1; 64], vec![0; 64]), 1);
    rustix::io::read(&notifier, &mut [0; 8]).unwrap();
    assert!(!is_readable(&notifier, Duration::ZERO));
    let second = notifier.watch(Mover::cpu().copy(vec![1; 64], vec![0; 64]), 2);
    assert!(is_readable(&notifier, Duration::ZERO));
    assert_eq!(notifier.take_ended(1), [1]);
    assert!(is_readable(&notifier, Duration::ZERO), "one end is left");
    assert_eq!(notifier.take_ended(1), [2]);
    assert!(!is_readable(&notifier, Duration::ZERO));
    drop((first, second));
}

#[test]
fn a_task_is_woken_when_its_job_has_ended() {
    struct Woken(AtomicBool, std::sync::mpsc::Sender<()>);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
            let _ = self.1.send(());
        }
    }
    let device = Arc::new(common::device::TestDevice::new(QueueMode::Shared, 64));
    device.state().manual = true;
    let mover = common::mover(&device, policy());
    let notifier = mover.notifier().unwrap();
    let mut watched = notifier.watch(mover.copy(vec![5; 8192], vec![0; 8192]), 1);
    let (sender, woken) = channel();
    let task = Arc::new(Woken(AtomicBool::new(false), sender));
    let waker = Waker::from(Arc::clone(&task));
    let mut context = Context::from_waker(&waker);
    assert!(Pin::new(&mut watched).poll(&mut context).is_pending() && !task.0.load(Ordering::SeqCst));
    // The test device's records are written only by this thread.
    device.run(1);
    woken.recv_timeout(Duration::from_secs(60)).expect("the task is woken");
    let mut future = poll_fn(|context| Pin::new(&mut watched).poll(context));
    let Poll::Ready(job) = Pin::new(&mut future).poll(&mut context) else { panic!("the job has ended") };
    assert_eq!(job.wait().via, Via::Device);
}

#[test]
fn a_job_whose_step_panics_is_given_back_to_its_owner() {
    struct Panics(u32);
    impl Watchable for Panics {
        fn is_done(&mut self) -> bool {
            self.0 += 1;
            assert!(self.0 < 3, "injected by the test");
            false
        }
    }
    let notifier = Mover::cpu().notifier().unwrap();
    let watched = notifier.watch(Panics(0), 9);
    assert_eq!(ends(&notifier, 1), [9]);
    assert_eq!(watched.wait().0, 3);
    // The thread goes on.
    let next = notifier.watch(Mover::cpu().copy(vec![1; 64], vec![0; 64]), 10);
    assert_eq!((ends(&notifier, 1), next.is_done()), (vec![10], true));
}

#[test]
fn a_prepared_job_is_not_reported_before_its_handle_is_stored() {
    let notifier = Mover::cpu().notifier().unwrap();
    let (watched, prepared) = notifier.prepare(Mover::cpu().copy(vec![1; 64], vec![0; 64]), 5);
    assert!(!watched.is_done() && notifier.take_ended(1).is_empty() && !is_readable(&notifier, Duration::ZERO));
    drop(prepared);
    assert_eq!((notifier.take_ended(1), watched.is_done()), (vec![5], true));
}

#[test]
fn ends_of_dropped_handles_do_not_pile_up() {
    struct Ended;
    impl Watchable for Ended {
        fn is_done(&mut self) -> bool {
            true
        }
    }
    let notifier = Mover::cpu().notifier().unwrap();
    let kept = notifier.watch(Ended, 1);
    for _ in 0..10_000 {
        drop(notifier.watch(Ended, 2));
    }
    let last = notifier.watch(Ended, 3);
    let shown = format!("{notifier:?}");
    let ends = shown.split("ended: ").nth(1).and_then(|text| text.split(',').next()?.parse::<usize>().ok());
    assert!(ends.is_some_and(|ends| ends < 200), "{shown}");
    assert_eq!(notifier.take_ended(usize::MAX), [1, 3]);
    drop((kept, last));
}

#[test]
fn a_closed_notifier_has_no_thread_and_does_not_hold_its_mover() {
    let device = Arc::new(common::device::TestDevice::new(QueueMode::Shared, 64));
    device.state().manual = true;
    let mover = common::mover(&device, policy());
    let (first, second) = (mover.notifier().unwrap(), mover.notifier().unwrap());
    let watched = first.watch(mover.copy(vec![1; 8192], vec![0; 8192]), 1);
    drop(second.watch(mover.copy(vec![1; 8192], vec![0; 8192]), 2));
    let users = Arc::strong_count(&device);
    assert!(!first.close(), "a job is in flight");
    assert!(second.close(), "only a dropped job is in flight");
    device.run(2);
    assert!(watched.wait_for(Duration::from_secs(60)));
    drop((watched, mover));
    let begin = Instant::now();
    while Arc::strong_count(&device) >= users {
        assert!(begin.elapsed() < Duration::from_secs(60), "the notifier's thread holds the mover");
        std::thread::yield_now();
    }
}

/// A job that counts its steps, and ends when it is told to.
struct Told {
    steps: Arc<AtomicUsize>,
    end: Arc<AtomicBool>,
}

impl Watchable for Told {
    fn is_done(&mut self) -> bool {
        self.steps.fetch_add(1, Ordering::SeqCst);
        self.end.load(Ordering::SeqCst)
    }
}

#[test]
fn after_a_stop_the_thread_makes_no_step_and_the_handles_end_their_jobs() {
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let (steps, end) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let told = || Told { steps: Arc::clone(&steps), end: Arc::clone(&end) };
    let notifier = Mover::cpu().notifier().unwrap();
    let (looked_at, waited, mut polled) =
        (notifier.watch(told(), 1), notifier.watch(told(), 2), notifier.watch(told(), 3));
    let woken = Arc::new(Woken(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&woken));
    assert!(Pin::new(&mut polled).poll(&mut Context::from_waker(&waker)).is_pending());
    let (ended, has_ended) = channel();
    let waiting = thread::spawn(move || ended.send(waited.wait_for(Duration::MAX)));
    notifier.stop();
    // The thread that waits makes steps too, so it ends first.
    end.store(true, Ordering::SeqCst);
    assert_eq!(has_ended.recv_timeout(Duration::from_secs(60)), Ok(true), "the waiting thread is not woken");
    waiting.join().unwrap().unwrap();
    end.store(false, Ordering::SeqCst);
    let before = steps.load(Ordering::SeqCst);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(steps.load(Ordering::SeqCst), before, "the notifier's thread makes steps");
    assert!(!looked_at.is_done());
    assert_eq!(steps.load(Ordering::SeqCst), before + 1);
    assert!(woken.0.load(Ordering::SeqCst), "the task is not woken");
    end.store(true, Ordering::SeqCst);
    assert!(looked_at.is_done() && looked_at.take().is_some());
    assert!(Pin::new(&mut polled).poll(&mut Context::from_waker(&waker)).is_ready());
}
