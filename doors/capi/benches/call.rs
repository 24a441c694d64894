//! What a call through C's door costs over the Rust call: `cargo bench -p telpher-capi`.
//!
//! Both copy the same bytes on the CPU, in turns of a few milliseconds within one run; told is the median of the turns. The C function is
//! called through a pointer the compiler cannot see through, as a program calls into a shared library.
#![allow(unsafe_code, reason = "calls C's functions as C does")]

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};
use telpher_capi::{Mover as CMover, telpher_copy, telpher_mover_free, telpher_mover_new};
use telpher_mover::Mover;

/// Bytes of a copy: so few that the call is most of it.
const SIZES: [usize; 3] = [8, 64, 1024];
/// The goal in nanoseconds. Source: issue 4, the table of what must be reached.
const GOAL: f64 = 3.0;

type Copy = unsafe extern "C" fn(*const CMover, *mut c_void, *const c_void, usize) -> c_int;

/// Nanoseconds of one call, over so many.
fn nanos(calls: u32, mut call: impl FnMut()) -> f64 {
    let begin = Instant::now();
    for _ in 0..calls {
        call();
    }
    begin.elapsed().as_nanos() as f64 / f64::from(calls)
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Medians of the Rust call and the C call.
fn duel(size: usize, turns: usize, calls: u32) -> (f64, f64) {
    let rust = Mover::cpu();
    let mut c = null_mut();
    // SAFETY: a place for the handle; no device, no options.
    assert_eq!(unsafe { telpher_mover_new(&raw mut c, null(), null()) }, 0);
    let copy: Copy = black_box(telpher_copy);
    let (src, mut dst) = (vec![7_u8; size], vec![0_u8; size]);
    let (mut by_rust, mut by_c) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        dst.fill(0);
        by_rust.push(nanos(calls, || {
            let _ = black_box(black_box(&rust).copy_slices(black_box(&src), black_box(&mut dst)));
        }));
        assert_eq!(src, dst);
        dst.fill(0);
        by_c.push(nanos(calls, || {
            // SAFETY: a mover that lives, two ranges of `size` bytes.
            let answer = unsafe { copy(black_box(c), dst.as_mut_ptr().cast(), src.as_ptr().cast(), black_box(size)) };
            assert_eq!(black_box(answer), 0);
        }));
        assert_eq!(src, dst);
    }
    // SAFETY: ended once.
    assert_eq!(unsafe { telpher_mover_free(c) }, 0);
    (median(by_rust), median(by_c))
}

fn main() {
    // `cargo test` runs benches once, to see that they work; there is nothing to be measured then.
    let (turns, calls) = if std::env::args().any(|word| word == "--bench") { (201, 100_000) } else { (3, 100) };
    let begin = Instant::now();
    println!("{:>6} {:>10} {:>10} {:>10}   goal ≤ {GOAL} ns over", "bytes", "Rust ns", "C ns", "over ns");
    for size in SIZES {
        let (rust, c) = duel(size, turns, calls);
        println!("{size:>6} {rust:>10.2} {c:>10.2} {:>10.2}", c - rust);
    }
    assert!(begin.elapsed() < Duration::from_secs(600), "numbers of a machine that was asleep are none");
}
