//! Compares the guarded kernels with glibc's, interleaved in one run:
//! `cargo run --release -p telpher-mem --example against_glibc [move|fill|back|compare|pattern] [BYTES]…`
//!
//! Prints the median nanoseconds of both and their ratio (above 1: the kernel is faster). Every result is checked.
#![allow(unsafe_code, reason = "calls glibc and names its own buffers by address")]

use std::hint::black_box;
use std::time::Instant;
use telpher_mem::{Local, PageSize, Region, Space, StableBuf, StableBufMut, WriteHint};

const SIZES: [usize; 16] = [
    16,
    64,
    100,
    256,
    300,
    512,
    700,
    1 << 10,
    1500,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    8 << 20,
    64 << 20,
];
/// Interleaved measurements per row; the median is printed.
const ROUNDS: usize = 31;
/// Offset of the second operand in its buffer, for glibc and for our kernels.
const SHIFT: usize = 64;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (given, wanted): (Vec<_>, Vec<_>) = words.iter().partition(|word| word.parse::<usize>().is_ok());
    let mut sizes: Vec<usize> = given.iter().filter_map(|word| word.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = SIZES.to_vec();
    }
    let wants = |name: &str| wanted.is_empty() || wanted.iter().any(|word| name.starts_with(word.as_str()));

    // SAFETY: the operations below access only the two regions, which no other code accesses meanwhile.
    let local = unsafe { Local::new() };
    let len = sizes.iter().max().expect("there is a size") + 4096;
    let mut a = Region::new(len, PageSize::Small).expect("memory for the source");
    let mut b = Region::new(len, PageSize::Small).expect("memory for the destination");
    a.fill(1);
    b.fill(1);
    let theirs = Glibc { src: a.as_mut_ptr(), dst: b[SHIFT..].as_mut_ptr() };
    let (src, dst) = (a.address(), b.address_mut() + SHIFT as u64);

    println!("{:?}", local.isa());
    println!("{:>12} {:>9} {:>12} {:>12} {:>6} {:>8}", "operation", "bytes", "glibc ns", "kernel ns", "ratio", "GB/s");
    for size in sizes {
        let n = || black_box(size as u64);
        let hints = [("", WriteHint::Cache), (" memory", WriteHint::Memory)];
        for (suffix, hint) in hints.into_iter().take(if size >= 1 << 20 { 2 } else { 1 }) {
            if wants("move") {
                row(
                    &format!("move{suffix}"),
                    size,
                    || theirs.copy(size),
                    || {
                        local.move_forward(black_box(dst), black_box(src), n(), hint).expect("mapped");
                    },
                );
            }
            if wants("fill") {
                let pattern = [0x0101_0101_0101_0101; 2];
                row(
                    &format!("fill{suffix}"),
                    size,
                    || theirs.fill(size),
                    || {
                        local.fill(black_box(dst), pattern, n(), hint).expect("mapped");
                    },
                );
            }
        }
        if wants("pattern") {
            let pattern = [0x0101_0101_0101_0101, 0x0201_0101_0101_0101];
            row(
                "pattern 16",
                size,
                || theirs.fill(size),
                || {
                    local.fill(black_box(src), pattern, n(), WriteHint::Cache).expect("mapped");
                },
            );
            local.fill(src, [0x0101_0101_0101_0101; 2], n(), WriteHint::Cache).expect("mapped");
        }
        if wants("back") {
            row(
                "back +100",
                size,
                || theirs.move_up(size),
                || {
                    local.move_backward(black_box(dst + 100), black_box(dst), n(), WriteHint::Cache).expect("mapped");
                },
            );
        }
        if wants("compare") {
            row(
                "compare",
                size,
                || theirs.compare(size),
                || {
                    assert_eq!(local.compare(black_box(src), black_box(dst), n()), Ok(None));
                },
            );
        }
    }
    assert!(b.iter().all(|&byte| byte == 1), "a result is wrong");
}

/// glibc's routines on the same bytes.
struct Glibc {
    src: *mut u8,
    dst: *mut u8,
}

impl Glibc {
    fn copy(&self, len: usize) {
        // SAFETY: both regions are longer than the largest size and its shift, and disjoint.
        unsafe { libc::memcpy(black_box(self.dst).cast(), black_box(self.src).cast(), black_box(len)) };
    }
    fn fill(&self, len: usize) {
        // SAFETY: as above.
        unsafe { libc::memset(black_box(self.dst).cast(), black_box(1), black_box(len)) };
    }
    fn move_up(&self, len: usize) {
        // SAFETY: as above; 100 bytes further are still in the region.
        unsafe { libc::memmove(black_box(self.dst.add(100)).cast(), black_box(self.dst).cast(), black_box(len)) };
    }
    fn compare(&self, len: usize) {
        // SAFETY: as above.
        let order = unsafe { libc::memcmp(black_box(self.dst).cast(), black_box(self.src).cast(), black_box(len)) };
        assert_eq!(order, 0);
    }
}

#[allow(clippy::cast_precision_loss, reason = "a printed rate")]
fn row(name: &str, size: usize, theirs: impl Fn(), ours: impl Fn()) {
    let repeats = (400_000 / size.max(20)).clamp(1, 8000);
    let (mut t, mut o) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        t.push(time(repeats, &theirs));
        o.push(time(repeats, &ours));
    }
    let (t, o) = (median(t), median(o));
    println!("{name:>12} {size:>9} {t:>12.1} {o:>12.1} {:>6.2} {:>8.1}", t / o, size as f64 / o);
}

#[allow(clippy::cast_precision_loss, reason = "nanoseconds of a short run")]
fn time(repeats: usize, work: impl Fn()) -> f64 {
    let start = Instant::now();
    (0..repeats).for_each(|_| work());
    start.elapsed().as_nanos() as f64 / repeats as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
