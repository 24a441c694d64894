//! Debuggers and other readers of a process' memory, which the kernel does not let wait for a page that is out.
#![allow(unsafe_code, reason = "traces a process by system calls, and reads memory by address")]

mod common;

use common::stress::{Over, is_alone};
use common::{FAST, HOME, PAGE, heap, skip};
use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use telpher_mem::PageSize;
use telpher_tier::Heap;

/// Pages of the arenas.
const PAGES: u64 = 2048;
/// How often all of them are read. Source: chosen; without holding pages, one read in some hundred fails.
const ROUNDS: u64 = 20;
/// Far longer than anything that these tests wait for.
const LIMIT: Duration = Duration::from_secs(60);
/// More threads than the test has.
const MOST_THREADS: usize = 60;

/// Writes each page's number at its start.
fn number(bytes: &mut [u8]) {
    for (number, page) in bytes.chunks_exact_mut(4096).enumerate() {
        page[..8].copy_from_slice(&(number as u64).to_ne_bytes());
    }
}

/// Moves all pages there and back until `over` is set.
fn shuttle(heap: &Heap, range: &Range<u64>, over: &AtomicBool) {
    // Relaxed: it publishes no other data.
    while !over.load(Ordering::Relaxed) {
        for to in [FAST, HOME] {
            heap.migrate(range.clone(), to).unwrap();
        }
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what} does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the number of pages that cannot be read through `/proc/PID/mem` or contain a wrong number.
fn unreadable(memory: &File, range: &Range<u64>) -> u64 {
    let mut word = [0; 8];
    let pages = 0..(range.end - range.start) / PAGE;
    let is_wrong = |page: &u64| {
        let read = memory.read_exact_at(&mut word, range.start + page * PAGE);
        read.is_err() || u64::from_ne_bytes(word) != *page
    };
    pages.filter(is_wrong).count() as u64
}

#[test]
fn other_processes_can_read_all_pages_during_a_hold() {
    const NAME: &str = "other_processes_can_read_all_pages_during_a_hold";
    let Some(heap) = heap(NAME, 64 << 20) else { return };
    let mut arena = heap.arena(8 << 20, PageSize::Small).unwrap();
    number(&mut arena);
    let (range, over) = (arena.addresses(), AtomicBool::new(false));
    // For this process' own memory the kernel uses the same path.
    let memory = File::open("/proc/self/mem").unwrap();
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| shuttle(&heap, &range, &over));
        wait_until("a move", || heap.stats().moved.pages > PAGES);
        heap.hold(true).unwrap();
        let moved = heap.stats().moved;
        for round in 0..ROUNDS {
            assert_eq!(unreadable(&memory, &range), 0, "round {round}");
        }
        wait_until("a hold of pages", || heap.stats().moved.left.held > moved.left.held);
        assert_eq!(heap.stats().moved.pages, moved.pages, "no page moves meanwhile");
        heap.hold(false).unwrap();
        wait_until("a move after that", || heap.stats().moved.pages > moved.pages + PAGES);
    });
    assert_eq!(heap.stats().lost, 0);
}

/// The request to the tracer: where the pages are, and the threads of this process.
#[derive(Clone, Copy)]
#[repr(C)]
struct TraceRequest {
    start: u64,
    threads: [libc::pid_t; MOST_THREADS],
}

/// Ends a tracer that failed.
fn check(is_so: bool, code: i32) {
    if !is_so {
        // SAFETY: ends the child without running any code of the parent.
        unsafe { libc::_exit(code) };
    }
}

/// Runs in the other process: traces the first thread, reports that, then stops all threads and reads all pages many
/// times. It allocates nothing, because it is the child of a process with threads. Returns how often a page could not
/// be read or was wrong.
fn trace(traced: libc::pid_t, requests: &mut PipeReader, answers: &mut PipeWriter) -> u64 {
    let none: *mut libc::c_void = ptr::null_mut();
    let mut bytes = [0; size_of::<TraceRequest>()];
    let seize = |thread: libc::pid_t| {
        // SAFETY: no memory of this process is passed.
        unsafe { libc::ptrace(libc::PTRACE_SEIZE, thread, none, none) == 0 }
    };
    check(requests.read_exact(&mut bytes[..1]).is_ok(), 2);
    check(seize(traced), 3);
    check(answers.write_all(&[0]).is_ok(), 4);
    check(requests.read_exact(&mut bytes).is_ok(), 5);
    // SAFETY: the size of an `TraceRequest`, whose fields accept any bytes.
    let request: TraceRequest = unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) };
    let threads = || request.threads.into_iter().take_while(|&thread| thread != 0);
    for thread in threads() {
        check(thread == traced || seize(thread), 6);
        // SAFETY: no memory is passed, except a local variable for the status.
        unsafe {
            let mut status = 0;
            check(libc::ptrace(libc::PTRACE_INTERRUPT, thread, none, none) == 0, 7);
            check(libc::waitpid(thread, &raw mut status, libc::__WALL) == thread && libc::WIFSTOPPED(status), 8);
        }
    }
    let mut wrong = 0;
    for _ in 0..ROUNDS {
        for page in 0..PAGES {
            let address: *mut libc::c_void =
                ptr::with_exposed_provenance_mut(usize::try_from(request.start + page * PAGE).unwrap_or(0));
            // SAFETY: reads a word of the other process; `errno` is this thread's.
            let word = unsafe {
                *libc::__errno_location() = 0;
                let word = libc::ptrace(libc::PTRACE_PEEKDATA, traced, address, none);
                if *libc::__errno_location() == 0 { Some(word.cast_unsigned()) } else { None }
            };
            wrong += u64::from(word != Some(page));
        }
    }
    for thread in threads() {
        // SAFETY: no memory is passed.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, thread, none, none) };
    }
    wrong
}

/// Also with all threads of the process stopped, including those that move pages.
#[test]
fn a_noticed_tracer_reads_every_page() {
    const NAME: &str = "a_noticed_tracer_reads_every_page";
    if !is_alone(NAME) {
        return;
    }
    let (mut requests, mut requests_out) = pipe().unwrap();
    let (mut answer, mut answers) = pipe().unwrap();
    let this = i32::try_from(std::process::id()).unwrap();
    // SAFETY: lets the child trace its parent where Yama would not; refused where there is no Yama.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    // The tracer is forked before the heap exists, and has nothing of it.
    let tracer = common::stress::fork();
    assert!(tracer >= 0);
    if tracer == 0 {
        // If its parent fails, the end of the pipe shows it.
        drop((requests_out, answer));
        let wrong = trace(this, &mut requests, &mut answers);
        check(answers.write_all(&wrong.to_ne_bytes()).is_ok(), 9);
        // SAFETY: ends the child without running any code of the parent.
        unsafe { libc::_exit(0) };
    }
    drop((requests, answers));
    let Some(heap) = heap(NAME, 64 << 20) else { return };
    let mut arena = heap.arena(8 << 20, PageSize::Small).unwrap();
    number(&mut arena);
    let (range, over) = (arena.addresses(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| shuttle(&heap, &range, &over));
        wait_until("a move", || heap.stats().moved.pages > PAGES);
        if heap.tracer().is_some() {
            // A debugger traces this test.
            return skip::skip(NAME, "another process traces this one");
        }
        requests_out.write_all(&[0]).unwrap();
        answer.read_exact(&mut [0]).expect("the tracer attaches");
        wait_until("the detection of the tracer", || heap.tracer() == tracer.try_into().ok());
        wait_until("a hold of pages", || heap.stats().moved.left.held > 0);
        let mut what = TraceRequest { start: range.start, threads: [0; MOST_THREADS] };
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let threads = threads.map(|thread| thread.file_name().to_str().unwrap().parse::<libc::pid_t>().unwrap());
        for (place, thread) in what.threads[..MOST_THREADS - 1].iter_mut().zip(threads) {
            *place = thread;
        }
        // SAFETY: words without padding.
        let bytes = unsafe { std::slice::from_raw_parts(ptr::from_ref(&what).cast::<u8>(), size_of::<TraceRequest>()) };
        requests_out.write_all(bytes).unwrap();
        let mut wrong = [0; 8];
        answer.read_exact(&mut wrong).expect("the tracer answers");
        assert_eq!(u64::from_ne_bytes(wrong), 0, "reads of {} that failed", ROUNDS * PAGES);
        let moved = heap.stats().moved;
        wait_until("the detach of the tracer", || heap.tracer().is_none());
        wait_until("a move after that", || heap.stats().moved.pages > moved.pages + PAGES);
    });
    let mut status = 0;
    // SAFETY: our own child, and a local variable for its status.
    assert_eq!(unsafe { libc::waitpid(tracer, &raw mut status, 0) }, tracer);
    assert_eq!((status, heap.stats().lost), (0, 0));
}
