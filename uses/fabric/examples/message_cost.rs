//! Prints half the round trip of tagged messages between two threads, by length and by the distance of their CPUs.
//!
//! "still" buffers never change. "written" buffers: the sender adds 1 to each of their cache lines before each send,
//! within the timed loop, as a program does that computes what it sends. The distance is measured before and after
//! each batch, and a batch whose distance has changed meanwhile does not count. Each number is the median over batches.
//!
//! The lines "one" are both sides in turn on one thread: the processor time of one message, without any travel between
//! CPUs. They hold on a busy machine too.
//!
//! `cargo run --release -p telpher-fabric --example message_cost [BATCHES] [SLOT_BYTES] [STREAMING_BYTES]`
#![allow(unsafe_code, reason = "lends its buffers to the endpoints")]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};
use telpher_fabric::{
    Buffer, Completes, Completion, Config, Copier, Endpoint, FabricError, PeerId, ProgressBy, ReceiveRequest, Segments,
    SendEnd, SendRequest, TagMatch,
};
use telpher_os::{Distance, allowed_cpus, line_round_trip, run_on};

const LENGTHS: [usize; 14] = [
    8,
    64,
    1 << 10,
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    512 << 10,
    1 << 20,
    2 << 20,
    4 << 20,
];
/// Time of one batch. Source: chosen, of the length of a time slice.
const BATCH: Duration = Duration::from_millis(8);
const PROBE: Duration = Duration::from_millis(10);
const TAG: Option<TagMatch> = Some(TagMatch { tag: 1, ignore: 0 });

struct Node {
    endpoint: Endpoint,
    out: Vec<u8>,
    into: Vec<u8>,
    done: Vec<Completion>,
}

fn segments(bytes: &mut [u8]) -> Segments {
    // SAFETY: each side keeps both buffers while its operations run, and touches them only between operations.
    let buffer = unsafe { Buffer::vouch(bytes.as_mut_ptr().expose_provenance() as u64, bytes.len() as u64) };
    Segments::new(&[buffer]).expect("one buffer")
}

impl Node {
    fn new(config: &Config) -> Result<Node, FabricError> {
        let endpoint = Endpoint::open(config.clone(), Copier::cpu(), ProgressBy::Caller)?;
        let most = *LENGTHS.last().expect("a constant");
        Ok(Node { endpoint, out: vec![1; most], into: vec![0; most], done: Vec::with_capacity(16) })
    }

    fn send(&mut self, len: usize, writes: bool) {
        if writes {
            self.out[..len].iter_mut().step_by(64).for_each(|byte| *byte = byte.wrapping_add(1));
        }
        let request = SendRequest {
            to: PeerId(0),
            segments: segments(&mut self.out[..len]),
            tag: Some(1),
            data: None,
            context: 0,
            completes: Completes::OnError,
            end: SendEnd::BufferFree,
            inject: false,
        };
        self.endpoint.send(request).expect("the peer lives");
    }

    fn receive(&mut self, len: usize) {
        let request = ReceiveRequest {
            segments: segments(&mut self.into[..len]),
            from: Some(PeerId(0)),
            tag: TAG,
            context: 1,
            completes: Completes::Always,
            many: None,
        };
        self.endpoint.receive(request).expect("the peer lives");
    }

    fn wait(&mut self) {
        while self.done.is_empty() {
            self.endpoint.completions(&mut self.done, 8);
        }
        assert!(self.done.drain(..).all(|end| end.result.is_ok()), "the peer lives");
    }

    /// Answers each message.
    fn answer(&mut self, len: usize, writes: bool, trips: u32) {
        for _ in 0..trips {
            self.receive(len);
            self.wait();
            self.send(len, writes);
        }
    }

    /// Sends messages and waits for each answer. Returns the time of half a trip.
    fn ask(&mut self, len: usize, writes: bool, trips: u32) -> Duration {
        let start = Instant::now();
        for _ in 0..trips {
            self.receive(len);
            self.send(len, writes);
            self.wait();
        }
        start.elapsed() / (2 * trips)
    }

    /// Progresses until the other side is done: it may still need bytes of this side.
    fn finish(&self, both: &Barrier, is_last: &std::sync::atomic::AtomicU32) {
        use std::sync::atomic::Ordering::SeqCst;
        is_last.fetch_add(1, SeqCst);
        while is_last.load(SeqCst) < 2 {
            self.endpoint.progress();
        }
        both.wait();
    }
}

/// Runs one batch on two threads. Returns the time of half a trip.
fn batch(sides: &mut [Node; 2], cpus: [usize; 2], len: usize, writes: bool, trips: u32) -> Duration {
    let (both, ended) = (Barrier::new(2), std::sync::atomic::AtomicU32::new(0));
    let [asks, answers] = sides;
    thread::scope(|scope| {
        scope.spawn(|| {
            run_on(&[cpus[1]]).expect("an allowed CPU");
            both.wait();
            answers.answer(len, writes, trips);
            // The last answer must leave this side before it stops.
            answers.finish(&both, &ended);
        });
        let half = scope.spawn(|| {
            run_on(&[cpus[0]]).expect("an allowed CPU");
            both.wait();
            let half = asks.ask(len, writes, trips);
            asks.finish(&both, &ended);
            half
        });
        half.join().expect("the peer lives")
    })
}

/// The processor time of one message on one thread, which plays both sides in turn.
fn on_one_thread(sides: &mut [Node; 2], len: usize, writes: bool, trips: u32) -> Duration {
    let now = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("below a second"))
    };
    let start = now();
    for _ in 0..trips {
        for (from, to) in [(0, 1), (1, 0)] {
            sides[to].receive(len);
            sides[from].send(len, writes);
            while sides[to].done.is_empty() {
                let [one, other] = &mut *sides;
                let (from, to) = if from == 0 { (one, other) } else { (other, one) };
                to.endpoint.completions(&mut to.done, 8);
                from.endpoint.completions(&mut from.done, 8);
            }
            sides[to].done.clear();
        }
    }
    (now() - start) / (2 * trips)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let batches = arguments.next().transpose()?.unwrap_or(12);
    let mut config = Config::default();
    if let Some(slot_bytes) = arguments.next().transpose()? {
        config.slot_bytes = u32::try_from(slot_bytes)?;
    }
    if let Some(streaming_bytes) = arguments.next().transpose()? {
        config.streaming_bytes = streaming_bytes;
    }
    let [one, other, ..] = allowed_cpus()?[..] else { return Err("two CPUs are needed".into()) };
    let mut sides = [Node::new(&config)?, Node::new(&config)?];
    sides[0].endpoint.insert_peer(&sides[1].endpoint.address())?;
    sides[1].endpoint.insert_peer(&sides[0].endpoint.address())?;
    let mut times: BTreeMap<(usize, bool, &str), Vec<Duration>> = BTreeMap::new();
    let distance = || line_round_trip(one, other, PROBE).map(|trip| trip.map(Distance::of));
    for _ in 0..batches {
        for len in LENGTHS {
            for writes in [false, true] {
                let trial = on_one_thread(&mut sides, len, writes, 4);
                let trips = (BATCH.as_nanos() / (2 * trial.as_nanos()).max(1)).clamp(4, 20_000);
                let cost = on_one_thread(&mut sides, len, writes, u32::try_from(trips)?);
                times.entry((len, writes, "one")).or_default().push(cost);
                let before = distance()?;
                let trial = batch(&mut sides, [one, other], len, writes, 4);
                let trips = (BATCH.as_nanos() / (2 * trial.as_nanos()).max(1)).clamp(4, 20_000);
                let half = batch(&mut sides, [one, other], len, writes, u32::try_from(trips)?);
                if let (Some(before), Some(after)) = (before, distance()?)
                    && before == after
                {
                    times.entry((len, writes, before.name())).or_default().push(half);
                }
            }
        }
    }
    println!("{:>9} {:>8} {:>5} {:>12} {:>8}", "bytes", "buffer", "cpus", "half trip us", "batches");
    for ((len, writes, distance), mut halves) in times {
        halves.sort_unstable();
        let median = halves[halves.len() / 2].as_secs_f64() * 1e6;
        let buffer = if writes { "written" } else { "still" };
        println!("{len:>9} {buffer:>8} {distance:>5} {median:>12.3} {:>8}", halves.len());
    }
    Ok(())
}
