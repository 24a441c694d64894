//! Measures the cost of one submission at a site: trapped, and rewritten. `cargo run --release -p telpher-interpose
//! --example cost`
#![allow(unsafe_code, reason = "executes a submission")]

use std::arch::asm;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use telpher_interpose::{Handler, Monitor, Offer, Options, SubmitInstruction, install, sites};

/// A portal that accepts every submission and does nothing.
struct Sink;

/// Never mapped: no thread of this example really stores there.
const PORTAL: u64 = 0x1000_0000_0000;

static TAKEN: AtomicU64 = AtomicU64::new(0);

impl Handler for Sink {
    fn is_portal(&self, address: u64) -> bool {
        address & !0xfff == PORTAL
    }

    fn enqueue(&self, _how: SubmitInstruction, _destination: u64, descriptor: &[u64; 8]) -> Offer {
        // Only one thread counts.
        TAKEN.store(TAKEN.load(Ordering::Relaxed) + descriptor[7], Ordering::Relaxed);
        Offer::Taken
    }

    fn wait(&self, _monitor: Option<&Monitor>, _control: u32, _deadline: u64) -> bool {
        false
    }

    fn fixup(&self, _context: &mut libc::ucontext_t) -> bool {
        false
    }
}

/// Executes ENQCMD, or MOVDIR64B, which some processors have: then the portal page faults, which costs less than
/// SIGILL.
#[inline(never)]
fn submit<const ENQCMD: bool>(descriptor: &[u64; 8]) {
    // SAFETY: reads 64 bytes; the destination is the portal's.
    unsafe {
        if ENQCMD {
            asm!(".byte 0xf2, 0x0f, 0x38, 0xf8, 0x02", in("rax") PORTAL, in("rdx") descriptor);
        } else {
            asm!(".byte 0x66, 0x0f, 0x38, 0xf8, 0x02", in("rax") PORTAL, in("rdx") descriptor);
        }
    }
}

/// Returns the nanoseconds of one submission: the median of many short rounds.
fn measure<const ENQCMD: bool>(rounds: usize, each: u32) -> f64 {
    let descriptor = [0, 0, 0, 0, 0, 0, 0, 7];
    let mut times: Vec<f64> = (0..rounds)
        .map(|_| {
            let taken = TAKEN.load(Ordering::Relaxed);
            let start = Instant::now();
            for _ in 0..each {
                submit::<ENQCMD>(black_box(&descriptor));
            }
            let time = start.elapsed();
            assert_eq!(TAKEN.load(Ordering::Relaxed) - taken, 7 * u64::from(each));
            time.as_secs_f64() * 1e9 / f64::from(each)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[rounds / 2]
}

/// Leaves the upper halves of vector registers in use, as programs do.
fn dirty_vectors() {
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has the register, and nothing else uses it here.
        unsafe {
            asm!("vpternlogd zmm17, zmm17, zmm17, 0xff", "vpternlogd zmm1, zmm1, zmm1, 0xff", out("xmm17") _, out("xmm1") _)
        };
    }
}

/// Prints a table for one instruction.
fn compare<const ENQCMD: bool>(name: &str) {
    sites::set_rewriting(false);
    let trapped = measure::<ENQCMD>(200, 100);
    sites::set_rewriting(true);
    measure::<ENQCMD>(1, 1);
    let rewritten = measure::<ENQCMD>(2000, 1000);
    dirty_vectors();
    let dirty = measure::<ENQCMD>(2000, 1000);
    println!("{name}, trapped                            {trapped:8.0} ns");
    println!("{name}, rewritten                          {rewritten:8.1} ns  {:.0} times less", trapped / rewritten);
    println!("{name}, rewritten, 64-byte vectors in use  {dirty:8.1} ns  {:.0} times less", trapped / dirty);
}

fn main() {
    install(&Sink, Options { rewrite: false }).expect("signal handlers");
    compare::<true>("ENQCMD   ");
    compare::<false>("MOVDIR64B");
}
