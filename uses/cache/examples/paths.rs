//! Measures what an access costs: a hit, by one thread and by two; a miss, beyond the copy itself; and the memory of an
//! entry.
//!
//! `cargo run --release -p telpher-cache --example paths`
#![allow(unsafe_code, reason = "counts allocated bytes")]
#![allow(clippy::cast_precision_loss, reason = "printed for people")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;
use telpher_cache::{Cache, Config};
use telpher_mem::{Pool, PoolOptions};
use telpher_mover::{Mover, Policy, Threshold};

struct Counting;
static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BLOCK: usize = 4096;

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    for blocks in [16, 1024, 16_384] {
        let pool = Pool::new(PoolOptions::new(blocks * BLOCK)).expect("memory");
        let before = HELD.load(Ordering::Relaxed);
        let cache = Cache::new(Mover::cpu(), Config::new([pool.clone()])).expect("a tier");
        let source: Arc<[u8]> = vec![7; blocks * BLOCK].into();
        let empty = HELD.load(Ordering::Relaxed);
        // With the mover's CPU copies, as in the measurement of the copy alone.
        let mover = Mover::new([], Policy { threshold: Threshold::default(), ..Policy::default() });
        let mut misses = Vec::new();
        let mut copies = Vec::new();
        let mut target = Pool::new(PoolOptions::new(BLOCK)).expect("memory").obtain(BLOCK).expect("room");
        for block in 0..blocks {
            let start = Instant::now();
            let handle = cache.access(&source, block * BLOCK..(block + 1) * BLOCK).expect("in range");
            misses.push(start.elapsed().as_nanos() as f64);
            assert!(handle.is_fast());
            let start = Instant::now();
            mover.copy_slices(&source[block * BLOCK..(block + 1) * BLOCK], &mut target).expect("equal lengths");
            copies.push(start.elapsed().as_nanos() as f64);
        }
        let held = (HELD.load(Ordering::Relaxed) - empty) as f64 / blocks as f64;
        println!(
            "{blocks} entries: {held:.0} B per entry with its gap in the pool ({} B without entries)",
            empty - before - source.len()
        );
        println!("  miss {:.0} ns, of which the copy {:.0} ns", median(misses), median(copies));
        let rate = |threads: usize| {
            let start = Barrier::new(threads);
            let rounds = 2_000_000 / threads;
            let times: Vec<f64> = std::thread::scope(|scope| {
                let all: Vec<_> = (0..threads)
                    .map(|thread| {
                        let (cache, source, start) = (&cache, &source, &start);
                        scope.spawn(move || {
                            start.wait();
                            let started = Instant::now();
                            let (mut block, part) = (0, blocks / threads);
                            for _ in 0..rounds {
                                // In random order.
                                block = (block * 5 + 1) % part;
                                let at = (thread * part + block) * BLOCK;
                                let handle = cache.access(source, at..at + BLOCK).expect("in range");
                                black_box(handle.location().bytes().as_ptr());
                            }
                            started.elapsed().as_nanos() as f64 / rounds as f64
                        })
                    })
                    .collect();
                all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            times.iter().map(|time| 1.0 / time).sum::<f64>()
        };
        let (mut ones, mut twos) = (Vec::new(), Vec::new());
        for _ in 0..9 {
            ones.push(rate(1));
            twos.push(rate(2));
        }
        let ratio = median(twos.iter().zip(&ones).map(|(two, one)| two / one).collect());
        println!("  hit {:.1} ns; two threads {ratio:.2} times as many", 1.0 / median(ones));
    }
}
