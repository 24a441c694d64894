//! A process that is killed leaves a valid file, and a signal handler in the middle of a count loses nothing.
//!
//! **Seen to fail**: the second test, with a load, an addition and a store in `own_counter::add`.
#![cfg(not(loom))]
#![allow(unsafe_code, reason = "maps a file, and installs a signal handler")]

#[allow(dead_code, reason = "the tests use only a part")]
#[path = "recording/common.rs"]
mod common;

use common::{call, memory, record, start};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use telpher_recording::{BLOCK, Limits, Operation, Recording, ThreadWriter, Writer, bytes_needed};

const LIMITS: Limits = Limits { threads: 4, sites: 8, modules: 2, trace_blocks: 4 };
const THREADS: u64 = 3;
const SHORT: u64 = 40;
const LONG: u64 = 64 << 10;
/// How long a step may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// The file of a child process.
const FILE: &str = "TELPHER_RECORDING_TEST_FILE";

/// Maps a file for as long as the process lives.
fn map(file: &File) -> (*mut u8, usize) {
    let bytes = usize::try_from(file.metadata().unwrap().len()).unwrap();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(memory, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    (memory.cast(), bytes)
}

/// Records calls by several threads until the process is killed.
fn record_until_killed(path: &Path) -> ! {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let (memory, bytes) = map(&file);
    // SAFETY: a mapping of a new file, which is never unmapped and used by this writer only.
    let writer = unsafe { Writer::create(memory, bytes, &start(LIMITS)) }.unwrap();
    std::thread::scope(|scope| {
        for id in 1..=u32::try_from(THREADS).unwrap() {
            let writer = &writer;
            scope.spawn(move || {
                let thread = writer.thread(id);
                for number in 0.. {
                    let _ = thread.count(Operation::Memcpy, usize::try_from(SHORT).unwrap());
                    let long = call(Operation::Memmove, usize::try_from(LONG).unwrap(), 0x1234);
                    record(&thread, &long, [number, number + 1]);
                }
            });
        }
    });
    unreachable!("the threads never end")
}

/// Checks the file of a killed process: each thread may have been in the middle of one call.
fn check(recording: &Recording) {
    for row in &recording.sizes {
        let len = if row.operation == Operation::Memcpy { SHORT } else { LONG };
        let missing = (row.calls * len).abs_diff(row.bytes);
        assert!(missing.is_multiple_of(len) && missing <= THREADS * len, "{row:?}");
    }
    let missing = recording.not_recorded;
    assert_eq!((missing.entries_damaged, missing.threads_without_table, missing.calls_without_site), (0, 0, 0));
    assert!(missing.events_torn <= THREADS, "{missing:?}");
    let plausible = |event: &telpher_recording::Event| {
        event.bytes == LONG && event.duration_ns == 1 && event.site == Some(0) && u64::from(event.in_flight) <= THREADS
    };
    assert!(recording.events.iter().all(plausible));
    let numbers: BTreeSet<u64> = recording.events.iter().map(|event| event.number).collect();
    assert_eq!(numbers.len(), recording.events.len(), "each call is there once");
    // The trace was full before the process was killed. Of the calls in it, at most those in flight are missing.
    assert!(recording.events.len() as u64 + THREADS >= u64::from(LIMITS.trace_blocks) * BLOCK);
}

#[test]
fn a_killed_process_leaves_a_valid_recording() {
    if let Some(path) = std::env::var_os(FILE) {
        record_until_killed(path.as_ref());
    }
    let path = std::env::temp_dir().join(format!("telpher-recording-{}", std::process::id()));
    for round in 1..=5 {
        File::create(&path).unwrap().set_len(bytes_needed(LIMITS).unwrap()).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_killed_process_leaves_a_valid_recording"])
            .env(FILE, &path)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let since = Instant::now();
        // The file can also be read while the process runs.
        let calls = || Recording::read(&std::fs::read(&path).unwrap()).map_or(0, |recording| recording.summary().calls);
        while calls() < round * 20_000 {
            assert!(since.elapsed() < PATIENCE && child.try_wait().unwrap().is_none(), "the child records nothing");
        }
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        check(&Recording::read(&std::fs::read(&path).unwrap()).unwrap());
    }
    std::fs::remove_file(&path).unwrap();
}

/// The interrupted thread's part of the recording.
static INTERRUPTED: AtomicPtr<ThreadWriter<'static>> = AtomicPtr::new(std::ptr::null_mut());
/// Calls of the handler.
static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_in_handler(_signal: libc::c_int) {
    // SAFETY: set before the handler is installed, and never freed. The handler runs on the thread that owns it.
    let thread = unsafe { &*INTERRUPTED.load(Ordering::Relaxed) };
    let _ = thread.count(Operation::Memcpy, 40);
    record(thread, &call(Operation::Memmove, 64 << 10, 0x1234), [1, 2]);
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_signal_handler_in_the_middle_of_a_count_loses_nothing() {
    const SIGNALS: u64 = 1_000;
    let words: &'static _ = Box::leak(Box::new(memory(LIMITS)));
    let writer: &'static _ = Box::leak(Box::new(Writer::over(words, &start(LIMITS)).unwrap()));
    let thread = Box::leak(Box::new(writer.thread(1)));
    INTERRUPTED.store(thread, Ordering::Relaxed);
    let handler = count_in_handler as extern "C" fn(libc::c_int);
    // SAFETY: the handler is safe to run at any instant: it takes no lock and no memory.
    unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
    // SAFETY: the calling thread.
    let interrupted = unsafe { libc::pthread_self() };
    let sender = std::thread::spawn(move || {
        for sent in 0..SIGNALS {
            // SAFETY: the thread waits for this one before it ends.
            assert_eq!(unsafe { libc::pthread_kill(interrupted, libc::SIGUSR1) }, 0);
            // Signals of one kind do not queue up.
            while HANDLED.load(Ordering::Relaxed) <= sent {
                std::thread::yield_now();
            }
        }
    });
    // SAFETY: as in the handler.
    let thread = unsafe { &*INTERRUPTED.load(Ordering::Relaxed) };
    let mut own = 0;
    while HANDLED.load(Ordering::Relaxed) < SIGNALS {
        let _ = thread.count(Operation::Memcpy, 40);
        record(thread, &call(Operation::Memmove, 64 << 10, 0x1234), [1, 2]);
        own += 1;
    }
    sender.join().unwrap();
    let recording = Recording::read(&common::bytes_of(words)).unwrap();
    let [memcpy, memmove] = recording.sizes[..] else { panic!("{:?}", recording.sizes) };
    let calls = own + SIGNALS;
    assert_eq!((memcpy.calls, memcpy.bytes), (calls, calls * 40));
    assert_eq!((memmove.calls, memmove.timed_calls, memmove.timed_ns), (calls, calls, calls));
    assert_eq!((recording.sites[0].calls, recording.threads[0].long_calls), (calls, calls));
}
