//! Measures the engines of a file namespace against each other, at queue depth 32.
//!
//! `cargo run --release -p telpher-nvmf --example file_engines -- FILE [MIB [ROUNDS]]`
//!
//! FILE, and FILE with the extension `cached`, are created, and removed at the end; only the second one is read and
//! written through the page cache, because cached pages make O_DIRECT slower. The rounds of all ways alternate; the
//! medians of all rounds are printed: requests per second, and microseconds of processor time for each request, of all
//! threads of the program.

use rustix::fs::{Advice, fadvise};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};
use telpher_nvmf::engine::{JobId, Segment};
use telpher_nvmf::file::{FileEngine, FileOptions, FilePool, FileStorage};
use telpher_nvmf::loops::{LoopInbox, Loops};
use telpher_nvmf::storage::{Piece, Started, Storage, StorageRequest, StorageResult};
use telpher_os::Random;

const DEPTH: usize = 32;
const CONNECTION: u64 = 1;
const PATTERNS: [Pattern; 4] = [
    Pattern { name: "4 KiB random read", bytes: 4 << 10, is_random: true, writes: false },
    Pattern { name: "4 KiB random write", bytes: 4 << 10, is_random: true, writes: true },
    Pattern { name: "128 KiB sequential read", bytes: 128 << 10, is_random: false, writes: false },
    Pattern { name: "128 KiB sequential write", bytes: 128 << 10, is_random: false, writes: true },
];
const WAYS: [(&str, FileEngine, bool); 4] = [
    ("io_uring, O_DIRECT", FileEngine::Uring, true),
    ("threads, O_DIRECT", FileEngine::Threads, true),
    ("io_uring, page cache", FileEngine::Uring, false),
    ("threads, page cache", FileEngine::Threads, false),
];

struct Pattern {
    name: &'static str,
    bytes: usize,
    is_random: bool,
    writes: bool,
}

/// Collects answers for this program's only thread.
#[derive(Debug, Default)]
struct Inbox {
    answers: Mutex<Vec<StorageResult>>,
    came: Condvar,
}

impl LoopInbox for Inbox {
    fn answer(&self, _id: JobId, result: StorageResult) {
        let mut answers = self.answers.lock().expect("no thread panics");
        answers.push(result);
        if answers.len() == 1 {
            self.came.notify_one();
        }
    }

    fn target_changed(&self) {}
}

impl Inbox {
    fn wait(&self) -> Vec<StorageResult> {
        let answers = self.answers.lock().expect("no thread panics");
        let mut answers = self.came.wait_while(answers, |answers| answers.is_empty()).expect("no thread panics");
        std::mem::take(&mut *answers)
    }
}

struct Measured {
    per_second: f64,
    cpu_us: f64,
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("no negative time").as_secs_f64()
}

fn measure(path: &Path, pattern: &Pattern, way: (FileEngine, bool), seed: u64) -> Result<Measured, Box<dyn Error>> {
    let loops = Arc::new(Loops::default());
    let inbox = Arc::new(Inbox::default());
    loops.register(CONNECTION, Arc::<Inbox>::clone(&inbox));
    let (engine, direct) = way;
    let pool = FilePool::with_options(FileOptions { engine, direct, ..FileOptions::default() }, &loops)?;
    let storage = FileStorage::open(path, &pool)?;
    let places = storage.capacity() / pattern.bytes as u64;
    let (mut random, mut next) = (Random::new(seed), 0);
    let data = Segment::whole((0..pattern.bytes).map(|at| at.to_le_bytes()[0]).collect());
    let mut start = |number: u32| {
        let place = if pattern.is_random { random.below(places) } else { next % places };
        next += 1;
        let start = place * pattern.bytes as u64;
        let request = if pattern.writes {
            StorageRequest::Write { start, pieces: vec![Piece::Bytes(data.clone())], force: false }
        } else {
            StorageRequest::Read { start, len: pattern.bytes as u64 }
        };
        let id = JobId { connection: CONNECTION, slot: number, generation: 0, part: 0 };
        assert!(matches!(storage.start(id, request), Started::Later), "file requests are answered later");
    };
    let (began, cpu) = (Instant::now(), cpu_seconds());
    let mut started = 0;
    let mut ended = 0;
    let mut open = 0;
    loop {
        let is_over = began.elapsed() > Duration::from_millis(500);
        while open < DEPTH && !is_over {
            start(started);
            started += 1;
            open += 1;
        }
        if open == 0 {
            break;
        }
        for result in inbox.wait() {
            result.map_err(|status| format!("a request failed: {status:?}"))?;
            open -= 1;
            ended += 1;
        }
    }
    let count = f64::from(ended);
    let cpu_us = (cpu_seconds() - cpu) / count * 1e6;
    Ok(Measured { per_second: count / began.elapsed().as_secs_f64(), cpu_us })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Creates a file that is on the disk and not in the page cache.
fn create(path: &Path, mib: usize) -> std::io::Result<()> {
    let mut file = File::create_new(path)?;
    let part: Vec<u8> = (0..1_usize << 20).map(|at| (at / 7).to_le_bytes()[0]).collect();
    for _ in 0..mib {
        file.write_all(&part)?;
    }
    file.sync_all()?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("name a file that does not exist")?;
    let path = Path::new(&path);
    let mib: usize = arguments.next().map_or(Ok(1024), |mib| mib.parse())?;
    let rounds: u64 = arguments.next().map_or(Ok(9), |rounds| rounds.parse())?;
    let cached = path.with_extension("cached");
    create(path, mib)?;
    create(&cached, mib)?;
    for pattern in &PATTERNS {
        let mut measured: Vec<Vec<Measured>> = WAYS.iter().map(|_| Vec::new()).collect();
        for round in 0..rounds {
            for (&(_, engine, direct), measured) in WAYS.iter().zip(&mut measured) {
                let path = if direct { path } else { &cached };
                measured.push(measure(path, pattern, (engine, direct), round + 1)?);
            }
        }
        println!("{}", pattern.name);
        for ((name, ..), measured) in WAYS.iter().zip(&measured) {
            let per_second = median(measured.iter().map(|one| one.per_second).collect());
            let cpu_us = median(measured.iter().map(|one| one.cpu_us).collect());
            println!("  {name:22} {per_second:9.0} /s  {cpu_us:7.1} us");
        }
    }
    std::fs::remove_file(path)?;
    std::fs::remove_file(cached)?;
    Ok(())
}
