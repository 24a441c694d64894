//! Jobs against what they are built on: `cargo bench -p telpher-dml`.
//!
//! The software path against `telpher-ops` on the same bytes, and the hardware path on a model against the mover's own
//! call, alternating within one run; medians are reported. A no-op has no counterpart: its goal is half of what Intel's
//! library takes.
#![allow(unsafe_code, reason = "calls C's functions as C does")]

use std::hint::black_box;
use std::time::Instant;
use telpher_abi::{DestDifFlags, DifBlock, DifFlags, SourceDifFlags};
use telpher_device::OpenOptions;
use telpher_dml::{DmlJob, DmlStatus, dml_execute_job, dml_init_job};
use telpher_mover::{Mover, Policy, Threshold};
use telpher_ops::crc::{CrcMode, copy_crc32c, crc32c};
use telpher_ops::dif::{DifConfig, Tags, insert};
use telpher_ops::{Hint, copy};

/// Nanoseconds of a no-op with Intel's library 1.1.1. Source: measured on a like machine, x86-64 with AVX2.
const ORIGINAL_NOP_NS: f64 = 33.0;
/// Goals. Source: issue 31, the table of goals.
const NOP_GOAL: f64 = 0.5;
const HARDWARE_GOAL: f64 = 1.3;

const SOFTWARE: u32 = 1;
const HARDWARE: u32 = 2;

/// Nanoseconds of one call, averaged over a number of calls.
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

/// A job with its memory.
struct Job(Box<[u64]>);

impl Job {
    fn new(path: u32) -> Job {
        let mut job = Job(vec![0; 376 / 8].into());
        // SAFETY: 376 bytes.
        assert_eq!(unsafe { dml_init_job(path, job.get()) }, DmlStatus::OK);
        job
    }

    fn get(&mut self) -> *mut DmlJob {
        self.0.as_mut_ptr().cast()
    }

    fn execute(&mut self) {
        // SAFETY: initialised, and its buffers are alive.
        let status = unsafe { dml_execute_job(black_box(self.get()), 0) };
        assert_eq!(black_box(status), DmlStatus::OK);
    }

    fn set(&mut self, operation: u32, src: &[u8], dst: &mut [u8], sum: &mut u32) {
        // SAFETY: initialised; no code refers to the job.
        let job = unsafe { &mut *self.get() };
        job.operation = operation;
        job.source_first_ptr = src.as_ptr().expose_provenance() as u64;
        job.destination_first_ptr = dst.as_mut_ptr().expose_provenance() as u64;
        job.crc_checksum_ptr = std::ptr::from_mut(sum).expose_provenance() as u64;
        job.source_length = u32::try_from(src.len()).expect("short");
    }
}

/// Medians of both, alternating.
fn pair(turns: usize, calls: u32, mut ours: impl FnMut(), mut other: impl FnMut()) -> (f64, f64) {
    let (mut by_ours, mut by_other) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        by_ours.push(nanos(calls, &mut ours));
        by_other.push(nanos(calls, &mut other));
    }
    (median(by_ours), median(by_other))
}

fn row(what: &str, bytes: usize, (ours, other): (f64, f64), goal: &str) {
    let ratio = ours / other;
    println!("{what:<22} {bytes:>9} {ours:>12.1} {other:>12.1} {ratio:>7.2}   {goal}");
}

fn main() {
    // `cargo test` runs benches once to check that they work; nothing is measured then.
    let is_measured = std::env::args().any(|word| word == "--bench");
    let turns = if is_measured { 21 } else { 1 };
    let calls = |bytes: usize| match is_measured {
        true => u32::try_from((16 << 20) / bytes.max(512)).unwrap_or(1).max(1),
        false => 1,
    };
    println!("{:<22} {:>9} {:>12} {:>12} {:>7}", "job", "bytes", "job ns", "other ns", "ratio");

    let mut job = Job::new(SOFTWARE);
    let nop = median((0..turns).map(|_| nanos(calls(0), || job.execute())).collect());
    row("no-op", 0, (nop, ORIGINAL_NOP_NS), &format!("≤ {NOP_GOAL} of Intel's library, {ORIGINAL_NOP_NS} ns"));

    let (src, mut dst, mut sum) = (vec![7_u8; 64 << 20], vec![1_u8; 64 << 20], 0_u32);
    let mut other = vec![1_u8; 64 << 20];
    for bytes in [4 << 10, 64 << 10, 64 << 20] {
        let src = &src[..bytes];
        job.set(3, src, &mut dst, &mut sum);
        let by_ops = || copy(src, black_box(&mut other[..bytes]), Hint::default());
        let both = pair(turns, calls(bytes), || job.execute(), by_ops);
        assert_eq!(dst[..bytes], *src);
        row("copy", bytes, both, "as ops");
    }
    for bytes in [4 << 10, 1 << 20] {
        let src = &src[..bytes];
        let right = crc32c(0, src, CrcMode::default());
        job.set(0x10, src, &mut dst, &mut sum);
        let by_ops = || assert_eq!(black_box(crc32c(0, black_box(src), CrcMode::default())), right);
        let both = pair(turns, calls(bytes), || job.execute(), by_ops);
        assert_eq!(sum, right);
        row("CRC", bytes, both, "as ops");
        job.set(0x11, src, &mut dst, &mut sum);
        let by_ops = || {
            let value = copy_crc32c(src, black_box(&mut other[..bytes]), 0, CrcMode::default(), Hint::default());
            assert_eq!(value, right);
        };
        let both = pair(turns, calls(bytes), || job.execute(), by_ops);
        assert_eq!((sum, &dst[..bytes]), (right, src));
        row("copy with CRC", bytes, both, "as ops");
    }
    let config = DifConfig {
        block: DifBlock::B512,
        flags: DifFlags::empty(),
        source: SourceDifFlags::empty(),
        dest: DestDifFlags::empty(),
    };
    for blocks in [8, 128] {
        let (src, whole) = (&src[..blocks * 512], blocks * 520);
        job.set(0x13, src, &mut dst, &mut sum);
        let by_ops = || {
            insert(&config, src, black_box(&mut other[..whole]), &mut Tags { ref_tag: 0, app_mask: 0, app_tag: 0 });
        };
        let both = pair(turns, calls(blocks * 512), || job.execute(), by_ops);
        assert_eq!(dst[..whole], other[..whole]);
        row("DIF insert", blocks * 512, both, "as ops");
    }

    // SAFETY: no other thread reads the environment yet; the library reads it at the first use of a queue, below.
    unsafe { std::env::set_var("TELPHER_DML_DEVICE", "model:spr") };
    let device = "model:spr".parse().expect("a device");
    let opened = telpher_device::open(&device, OpenOptions::default()).expect("a model");
    let policy = Policy { threshold: Threshold::all(1), ..Policy::default() };
    let mover = Mover::new(opened.portals, policy);
    let mut job = Job::new(HARDWARE);
    for bytes in [4 << 10, 64 << 10, 1 << 20] {
        let src = &src[..bytes];
        job.set(3, src, &mut dst, &mut sum);
        let by_mover = || {
            let _ = black_box(mover.copy_slices(src, black_box(&mut other[..bytes])));
        };
        let both = pair(turns, calls(bytes), || job.execute(), by_mover);
        assert_eq!(dst[..bytes], *src);
        row("copy on a model", bytes, both, &format!("≤ {HARDWARE_GOAL} of the mover's call"));
    }
}
