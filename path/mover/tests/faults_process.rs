//! What happens to work in flight when the process forks, a handler interrupts it, a thread dies, or it exits.
#![cfg(not(loom))]
#![allow(unsafe_code, reason = "fork, signals and exits")]
#![allow(clippy::cast_possible_truncation, reason = "tests cut small numbers")]

mod common;
#[path = "common/handler.rs"]
mod handler;

use common::cpu_calls::CPU_CALLS;
use common::device::TestDevice;
use common::{Chance, Watched, durable_file, mover, policy};
use handler::{interrupted, with_handler};
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use telpher_device::{ModelDevice, ModelOptions, Preset, Runner};
use telpher_mover::{
    Channel, ChannelPolicy, Copies, CopiesPolicy, CopyResult, DurableFile, GrantError, JobError, MemoryCalls,
    MemoryCallsPolicy, Mover, Outcome, Policy, Via, Watchable, WindowError,
};
use telpher_ops::crc::{CrcMode, crc32c};
use telpher_portal::{Health, Offer, Portal, QueueInfo, Submission};

/// Forks and signal handlers affect the whole process: one test at a time.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn manual() -> Arc<TestDevice> {
    let device = Arc::new(TestDevice::with(|_| {}));
    device.state().manual = true;
    device
}

fn model(runner: Runner) -> (ModelDevice, Arc<dyn Portal>) {
    let device = ModelDevice::start(ModelOptions::of(Preset::Full).with_runner(runner)).unwrap();
    let first = device.enabled_queues()[0];
    let portal = device.portal(&format!("wq0.{first}")).unwrap();
    (device, portal)
}

/// Runs `child` in a forked child and `parent` here meanwhile. Returns true if the child ended with `true`. A child
/// that hangs is killed by its own alarm.
fn fork<T>(child: impl FnOnce() -> bool, parent: impl FnOnce() -> T) -> (bool, T) {
    // SAFETY: the child uses only its copy, waits for no thread of the parent, and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: the default action of SIGALRM ends the process.
        unsafe { libc::alarm(60) };
        let good = catch_unwind(AssertUnwindSafe(child)).unwrap_or(false);
        // SAFETY: ends the child without running the parent's exit code.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    assert!(pid > 0, "fork: {}", std::io::Error::last_os_error());
    let value = parent();
    let mut status = 0;
    // SAFETY: our own child; the status is a local variable.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    (libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, value)
}

#[test]
fn a_job_in_flight_at_a_fork_ends_in_both_processes() {
    let _turn = one_at_a_time();
    let device = manual();
    let mover = mover(&device, policy());
    let source = Chance::new(1).bytes(10_000);
    let job = std::cell::Cell::new(Some(mover.copy(source.clone(), vec![0; 10_000])));
    let dropped = std::cell::Cell::new(Some(mover.fill(vec![0; 100], 1)));
    let (child, _) = fork(
        || {
            let done = job.take().unwrap().wait();
            let good = done.result == Ok(Outcome::Done) && done.via == Via::Cpu && done.buffers.1 == source;
            // Dropped jobs are freed, new ones are done, and nothing waits for a device of the parent.
            drop(dropped.take());
            let again = mover.fill(vec![0; 100], 0x0202_0202_0202_0202).wait();
            (0..200).for_each(|_| mover.drive());
            let taken = device.state().taken.len();
            good && again.via == Via::Cpu && again.buffers.0 == [2; 100] && taken == 2 && mover.orphaned() == 0
        },
        || device.run(2),
    );
    assert!(child);
    let done = job.take().unwrap().wait();
    assert_eq!((done.result, done.via, done.buffers.1 == source), (Ok(Outcome::Done), Via::Device, true));
}

#[test]
fn a_notifier_in_a_forked_child_leaves_the_ends_to_its_parent() {
    struct Flag(Arc<AtomicBool>);
    impl Watchable for Flag {
        fn is_done(&mut self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }
    let _turn = one_at_a_time();
    let mover = Mover::cpu();
    let notifier = std::cell::Cell::new(Some(mover.notifier().unwrap()));
    let parents = notifier.take().unwrap();
    let ended = parents.watch(mover.copy(vec![1; 64], vec![0; 64]), 7);
    notifier.set(Some(parents));
    let (child, ()) = fork(
        || {
            let notifier = notifier.take().unwrap();
            let before = notifier.take_ended(usize::MAX);
            // A job that has ended, and one that ends while this thread steps it.
            let copied = notifier.watch(mover.copy(vec![2; 64], vec![0; 64]), 8);
            let flag = Arc::new(AtomicBool::new(false));
            let later = notifier.watch(Flag(Arc::clone(&flag)), 9);
            let too_early = later.wait_for(Duration::from_millis(1)) || later.is_done();
            flag.store(true, Ordering::Relaxed);
            let good = copied.is_done() && copied.wait().wait().buffers.1 == [2; 64] && later.wait().is_done();
            let after = notifier.take_ended(usize::MAX);
            drop(notifier);
            before.is_empty() && after.is_empty() && good && !too_early
        },
        || (),
    );
    assert!(child);
    let notifier = notifier.take().unwrap();
    assert_eq!(notifier.take_ended(usize::MAX), [7], "the child has taken no end");
    assert_eq!(ended.wait().wait().buffers.1, [1; 64]);
    let next = notifier.watch(mover.copy(vec![3; 64], vec![0; 64]), 10);
    assert!(next.is_done());
    assert_eq!(notifier.take_ended(usize::MAX), [10]);
}

#[test]
fn a_grant_in_a_forked_child_gives_its_copy_back_and_goes_on_in_the_parent() {
    let _turn = one_at_a_time();
    let mover = Mover::cpu();
    let grant = std::cell::Cell::new(Some(mover.grant(vec![5; 100]).unwrap()));
    let parents = grant.take().unwrap();
    let window = mover.open_window(&parents.files()).unwrap();
    grant.set(Some(parents));
    let (child, ()) = fork(
        || {
            let grant = grant.take().unwrap();
            let refused =
                |result: Result<_, WindowError>| matches!(result, Err(WindowError::Grant(GrantError::Forked)));
            let no_side = refused(grant.write(0, &[1])) && refused(window.write(0, &[1]).map(drop));
            no_side && grant.revoke(Duration::ZERO).is_ok_and(|copy| copy == [5; 100])
        },
        || (),
    );
    assert!(child);
    window.write(0, &[6]).unwrap();
    let buffer = grant.take().unwrap().revoke(Duration::from_secs(60)).unwrap();
    assert_eq!(buffer[..2], [6, 5]);
}

#[test]
fn an_overlapping_move_in_flight_at_a_fork_is_an_error_in_the_child() {
    let _turn = one_at_a_time();
    let device = manual();
    let mover = mover(&device, policy());
    let job = std::cell::Cell::new(Some(mover.copy_within((0..100).collect::<Vec<u8>>(), 0..99, 1)));
    let (child, _) = fork(
        || {
            let error = job.take().unwrap().wait().result.unwrap_err().to_string();
            error
                == "the queue stopped, and memory-move cannot be done again elsewhere: it belongs to the process that \
                    this one was forked from"
        },
        || device.run(1),
    );
    assert!(child);
    assert_eq!(job.take().unwrap().wait().result, Ok(Outcome::Done));
}

#[test]
fn a_fork_waits_for_descriptors_in_flight() {
    let _turn = one_at_a_time();
    // Works only when it is driven, and only the fork drives it.
    let device = Arc::new(TestDevice::with(|_| {}));
    let mover = mover(&device, policy());
    device.state().manual = true;
    let job = std::cell::Cell::new(Some(mover.copy_within((0..100).collect::<Vec<u8>>(), 0..99, 1)));
    device.state().manual = false;
    let (child, ()) = fork(
        || {
            let done = job.take().unwrap().wait();
            done.via == Via::Device && done.buffers.0[..2] == [0, 0] && done.buffers.0[99] == 98
        },
        || (),
    );
    assert!(child, "the record was written before the fork");
    assert_eq!(job.take().unwrap().wait().via, Via::Device);
}

#[test]
fn a_channel_in_flight_at_a_fork_ends_in_the_child_on_the_cpu() {
    let _turn = one_at_a_time();
    let device = manual();
    let portal = Arc::clone(&device) as Arc<dyn Portal>;
    let mut channel: Channel<Vec<u8>, Vec<u8>> = Channel::new(portal, 8, ChannelPolicy::default()).unwrap();
    for i in 0..4 {
        channel.copy(vec![i; 100], vec![9; 100]).unwrap();
    }
    channel.submit();
    let channel = std::cell::RefCell::new(channel);
    let (child, ()) = fork(
        || {
            let (mut channel, mut out) = (channel.borrow_mut(), Vec::new());
            channel.completed(&mut out);
            channel.fill(vec![0; 10], 0).unwrap();
            let good = out.len() == 4 && channel.submit() == 1 && channel.completed(&mut out) == 1;
            good && (0..4).all(|i| out[usize::from(i)].buffers.as_ref().unwrap().dst == Some(vec![i; 100]))
        },
        || assert_eq!(device.run(9), 1),
    );
    assert!(child);
    let mut out = Vec::new();
    channel.borrow_mut().completed(&mut out);
    assert!(out.len() == 4 && out.iter().all(|finished| finished.via == Via::Device));
}

#[test]
fn copies_in_flight_at_a_fork_are_undone_in_the_child() {
    let _turn = one_at_a_time();
    let device = manual();
    let mut copies = Copies::new(Arc::clone(&device) as Arc<dyn Portal>, 8, CopiesPolicy::default()).unwrap();
    let (src, mut dst) = (vec![7_u8; 400], vec![0_u8; 400]);
    for at in [0, 100, 200] {
        // SAFETY: ranges of vectors that live, and that no code touches, until the copies have ended.
        unsafe { copies.put(src[at..].as_ptr() as u64, dst[at..].as_mut_ptr() as u64, 100) }.unwrap();
    }
    copies.submit();
    let (copies, addresses) = (std::cell::RefCell::new(copies), (src.as_ptr() as u64, dst.as_mut_ptr() as u64));
    let ends = || {
        let mut ends = Vec::new();
        copies.borrow_mut().completed(|_, how| ends.push(how));
        ends
    };
    let (child, ()) = fork(
        || {
            let good = ends() == [CopyResult::Undone; 3];
            // SAFETY: as above.
            let more = unsafe { copies.borrow_mut().put(addresses.0 + 300, addresses.1 + 300, 100) };
            good && more.is_some() && copies.borrow_mut().submit() == 0 && ends() == [CopyResult::Undone]
        },
        || assert_eq!(device.run(9), 1),
    );
    assert!(child);
    assert_eq!(ends(), [CopyResult::Done; 3]);
    assert!(dst[..300] == src[..300]);
}

#[test]
fn children_of_a_busy_process_copy_and_end() {
    let _turn = one_at_a_time();
    for runner in [Runner::Inline, Runner::Threaded] {
        let (device, portal) = model(runner);
        let mover = Mover::new([portal], policy());
        let stop = AtomicBool::new(false);
        std::thread::scope(|threads| {
            for seed in 0..2 {
                let (mover, stop) = (&mover, &stop);
                threads.spawn(move || {
                    let source = Chance::new(seed).bytes(50_000);
                    let mut copy = vec![0; 50_000];
                    while !stop.load(Ordering::Relaxed) {
                        copy.fill(0);
                        assert_eq!(mover.copy_slices(&source, &mut copy), Ok(Outcome::Done));
                        assert!(copy == source);
                        drop(mover.copy(source.clone(), vec![0; 50_000]));
                    }
                });
            }
            for round in 0..20 {
                let mine = std::cell::Cell::new(Some((mover.clone(), device.clone())));
                let (child, ()) = fork(
                    || {
                        let (mover, device) = mine.take().unwrap();
                        let source = Chance::new(round).bytes(70_000);
                        let done = mover.copy(source.clone(), vec![0; 70_000]).wait();
                        let fresh = Mover::new([], Policy::default());
                        let good = done.via == Via::Cpu && done.buffers.1 == source;
                        drop((mover, device));
                        // The child can use a device that it opened itself.
                        let (_own, portal) = model(Runner::Inline);
                        let own = Mover::new([portal], policy()).copy(source, vec![0; 70_000]).wait();
                        good && own.via == Via::Device && fresh.copy(vec![1], vec![0]).wait().buffers.1 == [1]
                    },
                    || (),
                );
                if !child {
                    stop.store(true, Ordering::Relaxed);
                }
                assert!(child, "{runner:?}, round {round}");
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

/// Returns the CPU time of this thread.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a local variable.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

#[test]
fn a_child_that_forks_does_not_wait_for_its_parents_device() {
    let _turn = one_at_a_time();
    let device = manual();
    let mover = mover(&device, policy());
    let job = mover.copy(vec![1; 5000], vec![0; 5000]);
    let (child, ()) = fork(
        || {
            let mut shortest = Duration::MAX;
            for _ in 0..20 {
                let before = cpu_time();
                if !fork(|| true, || ()).0 {
                    return false;
                }
                shortest = shortest.min(cpu_time() - before);
            }
            // It would use five milliseconds of CPU time for each if it did wait.
            shortest < Duration::from_millis(4)
        },
        || assert_eq!(device.run(1), 1),
    );
    assert!(child);
    assert_eq!(job.wait().via, Via::Device);
}

#[test]
fn an_exiting_thread_may_fork() {
    /// Forks when its thread is exiting.
    struct Last;
    impl Drop for Last {
        fn drop(&mut self) {
            let (child, ()) = fork(|| true, || ());
            println!("forked: {child}");
        }
    }
    thread_local!(static LAST: Last = const { Last });
    if !is_alone() {
        let out = alone("an_exiting_thread_may_fork");
        let stdout = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success() && stdout.contains("forked: true"), "{stdout}{out:?}");
        return;
    }
    let device = manual();
    let _mover = mover(&device, policy());
    let thread = std::thread::spawn(|| {
        LAST.with(|_| ());
        // The thread's lock storage for forks is created after this value, so it is dropped before it.
        assert!(fork(|| true, || ()).0);
    });
    thread.join().unwrap();
}

/// A portal whose every call is interrupted while it holds a lock that it would need again.
#[derive(Debug)]
struct Interrupted {
    device: TestDevice,
    lock: Mutex<()>,
}

impl Interrupted {
    fn interrupt(&self) {
        let _lock = self.lock.lock().unwrap();
        // SAFETY: raises a signal that this file handles.
        unsafe { libc::raise(libc::SIGUSR1) };
    }
}

// SAFETY: as for the test device.
unsafe impl Portal for Interrupted {
    fn info(&self) -> &QueueInfo {
        self.device.info()
    }
    fn offer(&self, submission: &Submission) -> Offer {
        self.interrupt();
        self.device.offer(submission)
    }
    fn drive(&self) {
        self.interrupt();
        self.device.drive();
    }
    fn health(&self) -> Health {
        self.interrupt();
        self.device.health()
    }
}

#[test]
fn a_handler_that_interrupts_a_portal_copies_with_the_cpu() {
    let _turn = one_at_a_time();
    let portal = Arc::new(Interrupted { device: TestDevice::with(|_| {}), lock: Mutex::new(()) });
    let mover = Mover::new([Arc::clone(&portal) as Arc<dyn Portal>], Policy { patience: Duration::ZERO, ..policy() });
    let (src, mut dst) = (vec![7; 9000], vec![0; 9000]);
    let copied = with_handler(&mover, || {
        assert_eq!(mover.copy_slices(&src, &mut dst), Ok(Outcome::Done));
        assert_eq!(mover.copy(src.clone(), vec![0; 9000]).wait().via, Via::Device);
        let mut channel: Channel<Vec<u8>, Vec<u8>> =
            Channel::new(Arc::clone(&portal) as Arc<dyn Portal>, 8, ChannelPolicy::default()).unwrap();
        channel.copy(src.clone(), vec![0; 9000]).unwrap();
        assert_eq!(channel.submit(), 1);
        while channel.completed(&mut Vec::new()) == 0 {}
    });
    assert!(dst == src && copied >= 6, "{copied}");
    assert_eq!(portal.device.state().taken.len(), 3, "no descriptor of the handler");
}

#[test]
fn a_handler_copies_whatever_it_interrupts() {
    let _turn = one_at_a_time();
    for runner in [Runner::Inline, Runner::Threaded] {
        let (_device, portal) = model(runner);
        let mover = Mover::new([portal], policy());
        let source = Chance::new(3).bytes(30_000);
        let copied = interrupted(&mover, 2000, || {
            // Allocates, frees, submits, waits, sweeps.
            let job = mover.copy(source.clone(), vec![0; 30_000]);
            drop(mover.fill(vec![0; 5000], 1));
            assert!(job.wait().buffers.1 == source);
            let mut copy = vec![0; 30_000];
            assert_eq!(mover.copy_slices(&source, &mut copy), Ok(Outcome::Done));
            assert!(copy == source);
        });
        assert_eq!(copied, 2000, "{runner:?}");
    }
}

#[test]
fn a_thread_that_panics_leaves_its_jobs_to_the_mover() {
    let _turn = one_at_a_time();
    let device = manual();
    let mover = mover(&device, policy());
    let ((buffer, gone), (other, other_gone)) = (Watched::new(vec![0; 100]), Watched::new(vec![0; 100]));
    let portal = Arc::clone(&device) as Arc<dyn Portal>;
    let panicked = std::thread::scope(|threads| {
        let mover = &mover;
        let thread = threads.spawn(move || {
            let policy = ChannelPolicy { linger: Duration::ZERO, ..ChannelPolicy::default() };
            let mut channel: Channel<Watched, Watched> = Channel::new(portal, 4, policy).unwrap();
            channel.fill(other, 1).unwrap();
            channel.submit();
            let _job = mover.fill(buffer, 1);
            panic!("with two operations in flight");
        });
        thread.join().is_err()
    });
    assert!(panicked);
    assert_eq!((mover.orphaned(), gone.load(Ordering::SeqCst), other_gone.load(Ordering::SeqCst)), (1, false, false));
    // The device writes both into memory that is still there.
    assert_eq!(device.run(9), 2);
    (0..200).for_each(|_| mover.drive());
    assert_eq!((mover.orphaned(), gone.load(Ordering::SeqCst)), (0, true));
}

/// Runs one test of this file again in a process of its own.
fn alone(test: &str) -> std::process::Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env("TELPHER_ALONE", "1").output().unwrap()
}

fn is_alone() -> bool {
    std::env::var_os("TELPHER_ALONE").is_some()
}

static LASTING: OnceLock<(ModelDevice, Mover)> = OnceLock::new();

/// Copies when the process is exiting.
extern "C" fn at_exit() {
    let (_, mover) = LASTING.get().unwrap();
    let mut copy = vec![0; 100_000];
    let good = mover.copy_slices(&[3; 100_000], &mut copy) == Ok(Outcome::Done) && copy == [3; 100_000];
    println!("at exit: {good}");
}

#[test]
fn a_process_exits_with_jobs_in_flight_and_copies_in_its_exit_handlers() {
    let test = "a_process_exits_with_jobs_in_flight_and_copies_in_its_exit_handlers";
    if !is_alone() {
        let out = alone(test);
        let stdout = String::from_utf8_lossy(&out.stdout).into_owned();
        assert_eq!((out.status.code(), stdout.contains("at exit: true")), (Some(7), true), "{stdout}");
        return;
    }
    let (device, portal) = model(Runner::Threaded);
    let (_, mover) = LASTING.get_or_init(|| (device, Mover::new([portal], policy())));
    // SAFETY: the handler lives as long as the process.
    assert_eq!(unsafe { libc::atexit(at_exit) }, 0);
    for i in 0..20 {
        let job = mover.copy(vec![i; 1 << 20], vec![0; 1 << 20]);
        // In flight without an owner, or with an owner that never polls.
        if i % 2 == 0 { drop(job) } else { std::mem::forget(job) }
    }
    std::thread::spawn(|| {
        let (_, mover) = LASTING.get().unwrap();
        loop {
            let _ = mover.copy(vec![1; 100_000], vec![0; 100_000]).wait();
        }
    });
    std::process::exit(7);
}

#[test]
fn a_silent_device_does_not_keep_a_process_from_exiting() {
    if !is_alone() {
        let out = alone("a_silent_device_does_not_keep_a_process_from_exiting");
        assert_eq!(out.status.code(), Some(8));
        return;
    }
    let device = manual();
    let mover = Mover::new([Arc::clone(&device) as Arc<dyn Portal>], policy());
    let job = mover.copy(vec![1; 5000], vec![0; 5000]);
    std::mem::forget(mover.copy(vec![1; 5000], vec![0; 5000]));
    drop(job);
    std::process::exit(8);
}

#[test]
fn different_lengths_are_an_error_before_anything_is_done() {
    let mover = Mover::new([manual() as Arc<dyn Portal>], policy());
    assert_eq!(mover.copy_slices(&[1; 9000], &mut [0; 8999]), Err(JobError::Lengths { first: 9000, second: 8999 }));
}

#[test]
fn memory_calls_of_a_forked_child_use_the_cpu_only() {
    let _turn = one_at_a_time();
    let device = Arc::new(TestDevice::with(|_| {}));
    let portal = Arc::clone(&device) as Arc<dyn Portal>;
    let calls = MemoryCalls::new([portal], CPU_CALLS, MemoryCallsPolicy::default(), 4).unwrap();
    let copy = || {
        let mut bytes = Chance::new(3).bytes(10_000);
        let start = bytes.as_mut_ptr();
        // SAFETY: both ranges lie in the vector.
        let result = unsafe { calls.copy(start.add(1), start, 9999) };
        assert!(bytes[1..] == Chance::new(3).bytes(9999));
        result
    };
    let (child, result) = fork(|| copy().cpu_bytes == 9999 && device.state().taken.is_empty(), copy);
    assert!(child);
    assert_eq!((result.device_bytes, result.cpu_bytes), (9999, 0));
}

const BLOCK: usize = 20_000;
const BLOCKS: usize = 64;
const FILE_BYTES: u64 = (BLOCK * BLOCKS) as u64;

/// Block `number` as it is after `round` writes of the whole file: contents, then their checksum.
fn block(round: u64, number: usize) -> Vec<u8> {
    let mut block = Chance::new(round << 8 | number as u64).bytes(BLOCK - 4);
    let crc = crc32c(0, &block, CrcMode::default());
    block.extend(crc.to_le_bytes());
    block
}

/// Writes blocks for ever, and reports each one when it is durable.
fn write_blocks(path: &std::path::Path, round: u64, mut acknowledge: std::fs::File) {
    let device = Arc::new(TestDevice::with(|info| info.max_transfer = 8192));
    let movers = [mover(&device, policy()), Mover::cpu()];
    let mut file = DurableFile::open(path).expect("the parent has closed it");
    for number in (0..BLOCKS).cycle() {
        let at = (number * BLOCK) as u64;
        movers[number % 2].store(&block(round, number), &mut file, at).expect("the disk has room");
        acknowledge.write_all(&[number as u8]).expect("the parent reads");
    }
}

/// The writer is killed at a random moment, ten times. Each block that it has reported is whole; the block that it was
/// writing may be anything. The page cache survives the process, so this says nothing about a loss of power.
#[test]
fn every_block_reported_as_durable_survives_kill_9() {
    let _turn = one_at_a_time();
    let Some((path, file)) = durable_file("kills", FILE_BYTES) else { return };
    drop(file);
    let mut chance = Chance::new(4);
    let mut expected: [Option<u64>; BLOCKS] = [None; BLOCKS];
    for round in 1..=10 {
        let (mut reports, ours) = std::io::pipe().expect("a pipe");
        // SAFETY: the child uses what it makes itself, and is killed.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop(reports);
            let acknowledge = std::os::fd::OwnedFd::from(ours);
            let done = std::panic::catch_unwind(|| write_blocks(&path, round, acknowledge.into()));
            // SAFETY: ends the child without running the parent's exit code.
            unsafe { libc::_exit(i32::from(done.is_ok())) };
        }
        assert!(pid > 0, "fork: {}", std::io::Error::last_os_error());
        drop(ours);
        let mut number = [0];
        for _ in 0..1 + chance.below(2 * BLOCKS as u64) {
            reports.read_exact(&mut number).expect("the writer reports until it is killed");
            expected[usize::from(number[0])] = Some(round);
        }
        // At a random moment of the next block.
        (0..chance.below(100_000)).for_each(|_| std::hint::spin_loop());
        let mut status = 0;
        // SAFETY: our own child; the status is a local variable.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        }
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL, "status {status:#x}");
        let mut more = Vec::new();
        reports.read_to_end(&mut more).expect("what the writer had reported");
        more.iter().for_each(|&number| expected[usize::from(number)] = Some(round));
        let last = more.last().copied().unwrap_or(number[0]);
        let torn = (usize::from(last) + 1) % BLOCKS;
        let file = DurableFile::open(&path).expect("the lock ended with the writer");
        for (number, written) in expected.iter_mut().enumerate() {
            let bytes = &file.bytes()[number * BLOCK..(number + 1) * BLOCK];
            if number == torn {
                // Whatever it holds now, nothing was promised about it in this round.
                *written = written.filter(|&round| bytes == block(round, number));
                continue;
            }
            if let Some(round) = *written {
                let (data, crc) = bytes.split_at(BLOCK - 4);
                assert_eq!(crc32c(0, data, CrcMode::default()).to_le_bytes(), crc, "block {number}");
                assert!(bytes == block(round, number), "block {number} is not that of round {round}");
            }
        }
    }
    std::fs::remove_file(path).unwrap();
}
