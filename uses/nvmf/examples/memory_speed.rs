//! Measures requests of a namespace in memory: `cargo run --release -p telpher-nvmf --example memory_speed`.
//!
//! Each number is the median over rounds of the CPU time of one request, on one thread. The kinds of memory take turns,
//! so that other load on the machine meets all of them. A write includes the copy of its data, and a placed write also
//! its digest.

use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::hint::black_box;
use telpher_mem::BlockPages;
use telpher_nvmf::engine::{JobId, Segment, Shared, Work};
use telpher_nvmf::memory::{MemoryOptions, MemoryStorage};
use telpher_nvmf::storage::{Piece, Started, Storage, StorageRequest};
use telpher_os::Random;

const ID: JobId = JobId { connection: 0, slot: 0, generation: 0, part: 0 };
/// Bytes of each namespace: more than the caches have.
const CAPACITY: u64 = 256 << 20;
const ROUNDS: usize = 15;
/// Bytes that each request type moves in one round.
const ROUND_BYTES: u64 = 64 << 20;

#[derive(Clone, Copy)]
enum Request {
    Read,
    /// Data that was received, as without digests.
    Write,
    /// Data that an engine copies to free blocks, with its digest.
    PlacedWrite,
}

const CASES: [(&str, Request, u64); 6] = [
    ("read", Request::Read, 4 << 10),
    ("read", Request::Read, 128 << 10),
    ("write", Request::Write, 4 << 10),
    ("write", Request::Write, 128 << 10),
    ("placed write", Request::PlacedWrite, 4 << 10),
    ("placed write", Request::PlacedWrite, 128 << 10),
];

fn execute(storage: &MemoryStorage, request: Request, start: u64, source: &Shared) {
    let len = source.len();
    let received = || Piece::Bytes(Segment::new(Shared::clone(source), 0..len));
    let piece = match request {
        Request::Read => {
            black_box(storage.start(ID, StorageRequest::Read { start, len: len as u64 }));
            return;
        }
        Request::Write => received(),
        Request::PlacedWrite => match storage.place(start, len) {
            Some(runs) => {
                let mut work = Work::Place { source: Shared::clone(source), runs };
                black_box(work.run());
                let Work::Place { runs, .. } = work else { return };
                Piece::Blocks(runs)
            }
            None => received(),
        },
    };
    let Started::Done(result) = storage.start(ID, StorageRequest::Write { start, pieces: vec![piece], force: false })
    else {
        return;
    };
    result.expect("the namespace has room");
}

/// The CPU time of this thread, which other load changes little.
fn thread_nanos() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Nanoseconds of one request, over a round at random positions.
fn round(storage: &MemoryStorage, request: Request, bytes: u64, random: &mut Random) -> f64 {
    let source = Shared::new(vec![7; usize::try_from(bytes).expect("short")]);
    let count = (ROUND_BYTES / bytes).min(8192);
    let starts: Vec<u64> = (0..count).map(|_| random.below(CAPACITY / bytes) * bytes).collect();
    let begun = thread_nanos();
    for start in starts {
        execute(storage, request, start, &source);
    }
    (thread_nanos() - begun) / count as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = MemoryOptions::new(CAPACITY);
    let huge = MemoryOptions { pages: BlockPages::Transparent, ..options };
    let (file, _kept) = MemoryStorage::unnamed(options)?;
    let subjects = [
        ("anonymous", MemoryStorage::anonymous(options)?),
        ("transparent huge pages", MemoryStorage::anonymous(huge)?),
        ("memory file", file),
    ];
    if let Some(remark) = subjects[1].1.remark() {
        println!("{remark}");
    }
    let source = Shared::new(vec![1; 128 << 10]);
    for (_, storage) in &subjects {
        for start in (0..CAPACITY).step_by(128 << 10) {
            execute(storage, Request::Write, start, &source);
        }
    }
    let mut random = Random::new(24);
    println!("{:<24}{:<14}{:>8}{:>12}", "memory", "request", "KiB", "ns");
    for (name, request, bytes) in CASES {
        let mut times = subjects.each_ref().map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for ((_, storage), times) in subjects.iter().zip(&mut times) {
                times.push(round(storage, request, bytes, &mut random));
            }
        }
        for ((memory, _), times) in subjects.iter().zip(&mut times) {
            println!("{memory:<24}{name:<14}{:>8}{:>12.0}", bytes >> 10, median(times));
        }
    }
    Ok(())
}
