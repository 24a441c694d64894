//! What a call through C's door costs over the Rust call: `cargo bench -p telpher-capi`.
//!
//! Both copy the same bytes on the CPU, or look at the same block of a cache (access, location, end of the handle), in turns of a few
//! milliseconds within one run; told is the median of the turns. The C functions are called through pointers the compiler cannot see
//! through, as a program calls into a shared library.
#![allow(unsafe_code, reason = "calls C's functions as C does")]

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::time::{Duration, Instant};
use telpher_cache::{Cache, Config};
use telpher_capi::{Cache as CCache, Entry, Mover as CMover, Tier};
use telpher_capi::{
    telpher_cache_access, telpher_cache_free, telpher_cache_new, telpher_entry_free, telpher_entry_location,
};
use telpher_capi::{telpher_copy, telpher_mover_free, telpher_mover_new};
use telpher_mem::{Pool, PoolOptions};
use telpher_mover::Mover;

/// Bytes of a copy: so few that the call is most of it.
const SIZES: [usize; 3] = [8, 64, 1024];
/// The goal in nanoseconds. Source: issue 4, the table of what must be reached.
const GOAL: f64 = 3.0;

type Copy = unsafe extern "C" fn(*const CMover, *mut c_void, *const c_void, usize) -> c_int;

type Access = unsafe extern "C" fn(*const CCache, *const c_void, usize, *mut *mut Entry) -> c_int;
type Location = unsafe extern "C" fn(*const Entry, *mut c_int) -> *const c_void;
type Free = unsafe extern "C" fn(*mut Entry);

/// Bytes of a block in the cache. Source: assumed, as the thesis' smaller chunks.
const BLOCK: usize = 64 << 10;

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

/// Medians of a look at a block that is there.
fn look_duel(turns: usize, calls: u32) -> (f64, f64) {
    let source: Arc<[u8]> = vec![7; BLOCK].into();
    let pool = Pool::new(PoolOptions::new(BLOCK)).expect("memory");
    let rust = Cache::new(Mover::cpu(), Config::new([pool])).expect("a tier");
    let tier = Tier {
        size: BLOCK as u64,
        flags: 0,
        node: 0,
        near_node: 0,
        reserved: 0,
        obtain: None,
        release: None,
        user: null_mut(),
        reserved2: [0; 3],
    };
    let (mut mover, mut c) = (null_mut(), null_mut());
    // SAFETY: places for the handles; a mover that lives, one tier.
    unsafe {
        assert_eq!(telpher_mover_new(&raw mut mover, null(), null()), 0);
        assert_eq!(telpher_cache_new(&raw mut c, mover, &raw const tier, 1, null(), null()), 0);
    }
    let access: Access = black_box(telpher_cache_access);
    let location: Location = black_box(telpher_entry_location);
    let free: Free = black_box(telpher_entry_free);
    let (mut by_rust, mut by_c) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        by_rust.push(nanos(calls, || {
            let handle = black_box(&rust).access(black_box(&source), 0..BLOCK).expect("in range");
            black_box(handle.location().bytes().as_ptr());
        }));
        by_c.push(nanos(calls, || {
            let mut entry = null_mut();
            // SAFETY: a cache and a block that live, a place for the handle.
            assert_eq!(unsafe { access(black_box(c), source.as_ptr().cast(), BLOCK, &raw mut entry) }, 0);
            // SAFETY: the handle is good until it is freed, once.
            unsafe {
                black_box(location(entry, null_mut()));
                free(entry);
            }
        }));
    }
    // SAFETY: each ended once.
    unsafe {
        assert_eq!((telpher_cache_free(c), telpher_mover_free(mover)), (0, 0));
    }
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
    let (rust, c) = look_duel(turns, calls);
    println!("{:>6} {rust:>10.2} {c:>10.2} {:>10.2}   a block that is there, three calls in C", "look", c - rust);
    assert!(begin.elapsed() < Duration::from_secs(600), "numbers of a machine that was asleep are none");
}
