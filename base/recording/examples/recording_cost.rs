//! Measures what recording adds to a call: short, long enough for a site, and long enough for the trace, by one thread
//! and by two. `cargo run --release -p telpher-recording --example recording_cost`

use std::cell::RefCell;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::AtomicU64;
use std::time::Instant;
use telpher_os::ticks;
use telpher_recording::{Call, CurvePoint, Curves, Limits, Operation, Start, ThreadWriter, Writer, bytes_needed};

const LIMITS: Limits = Limits { threads: 4, sites: 64, modules: 2, trace_blocks: 256 };
const CALLS: u32 = 200_000;
const ROUNDS: usize = 50;

/// Returns the nanoseconds of one step: the least of many rounds.
fn measure(step: impl Fn(usize)) -> f64 {
    let round = |_| {
        let start = Instant::now();
        for number in 0..CALLS {
            step(black_box(number as usize));
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

/// A call that does nothing, of this size.
fn record(thread: &ThreadWriter<'_>, len: usize) {
    let call = Call {
        operation: Operation::Memcpy,
        destination: 0x1000_0040,
        source: 0x2000_0000,
        len,
        return_address: 0x40_1234,
    };
    let begun = thread.begin(&call, ticks);
    thread.end(&call, begun, ticks, None);
}

/// Counts a short call, as an interposed function does.
#[inline]
fn count(thread: &ThreadWriter<'_>, len: usize) {
    if thread.count(Operation::Memcpy, len) {
        let start = ticks();
        thread.time(Operation::Memcpy, len, ticks() - start);
    }
}

/// Eight sizes in turns. Calls of one size wait for each other: the processor adds to a word in memory once in five
/// cycles.
fn short_len(number: usize) -> usize {
    8 << (number % 8)
}

/// Copies the first bytes of a buffer to another one, through the C library.
#[inline(never)]
fn copy_bytes(destination: &mut [u8], source: &[u8], len: usize) {
    destination[..len].copy_from_slice(&source[..len]);
}

fn main() {
    println!("{}", telpher_os::cpu_name().unwrap_or_default());
    let bytes = bytes_needed(LIMITS).expect("small limits");
    let words: Vec<AtomicU64> = (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
    let copy = &[CurvePoint { len: 4096, hot_ps: 20, cold_ps: 100, fresh_ps: 400 }];
    let curves = Curves { copy, ..Curves::default() };
    let start = Start { limits: LIMITS, tsc_hz: 2_000_000_000, start_ticks: ticks(), curves, ..Start::default() };
    let writer = Writer::over(&words, &start).expect("memory of the right size");
    let thread = writer.thread(1);
    let print = |what: &str, ns: f64, loop_ns: f64| println!("{what:<58} {:>6.2} ns", ns - loop_ns);

    let bare = measure(|number| _ = black_box(short_len(number)));
    print("loop and size alone", bare, 0.0);
    let only = |number: usize| _ = black_box(thread.count(Operation::Memcpy, short_len(number)));
    print("short call, sizes differ, never timed", measure(only), bare);
    print("short call, sizes differ; 1 of 64 timed", measure(|number| count(&thread, short_len(number))), bare);
    print("short call, always 64 bytes; 1 of 64 timed", measure(|_| count(&thread, black_box(64))), bare);
    let (source, destination) = ([1; 512], RefCell::new([0; 512]));
    let copy_64 = || copy_bytes(&mut destination.borrow_mut()[..], &source, black_box(64));
    let alone = measure(|_| copy_64());
    print("copy of 64 bytes, not counted", alone, bare);
    let counted = measure(|_| {
        count(&thread, black_box(64));
        copy_64();
    });
    print("the same, counted: what counting adds to it", counted, alone);
    print("two readings of the time stamp counter", measure(|_| _ = black_box(ticks() - ticks())), bare);
    print("call of 4 KiB, with its site; 1 of 64 timed", measure(|_| record(&thread, 4096)), bare);
    // The first rounds fill the trace; the fastest one is in a later block that is left out, so the kept ones are
    // measured with a new recording for each round.
    print("call of 64 KiB, timed, left out of the trace", measure(|_| record(&thread, 64 << 10)), bare);
    print("call of 64 KiB, timed and traced", traced(&start), bare);
    let barrier = Barrier::new(2);
    let both = std::thread::scope(|scope| {
        let run = |id: u32| {
            let (writer, barrier) = (&writer, &barrier);
            scope.spawn(move || {
                let thread = writer.thread(id);
                barrier.wait();
                measure(|_| record(&thread, 64 << 10))
            })
        };
        [run(2), run(3)].map(|thread| thread.join().expect("a thread that measures"))
    });
    print("the same, left out, by two threads at once", both[0].max(both[1]), bare);
}

/// The nanoseconds of a call that the trace keeps: the least of rounds that fill a new trace each.
fn traced(start: &Start<'_>) -> f64 {
    let bytes = bytes_needed(LIMITS).expect("small limits");
    let kept = 256 * telpher_recording::BLOCK;
    let round = |_| {
        let words: Vec<AtomicU64> = (0..bytes / 8).map(|_| AtomicU64::new(0)).collect();
        let writer = Writer::over(&words, start).expect("memory of the right size");
        let thread = writer.thread(1);
        let start = Instant::now();
        for _ in 0..kept {
            record(&thread, 64 << 10);
        }
        start.elapsed().as_secs_f64() * 1e9 / kept as f64
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}
