//! The cost of a packet into a guest and out of it, by stage: one thread, copies by the CPU, bursts of 32.
//!
//! `cargo run --release -p telpher-vhost --example packets --features test-util`
//!
//! A fast driver runs on the same thread: *driver* is the time to make buffers available and to collect them. The cost
//! of reading the clock between stages is measured and subtracted.

use std::time::Instant;
use telpher_vhost::layout::Features;
use telpher_vhost::ring::{Direction, MockDriver, MockGuest, Ring};
use telpher_vhost::{PacketPool, PoolOptions, QueueOptions, Virtqueue};

/// Source: the default of testpmd's virtio-user.
const SIZE: u16 = 256;
const BURST: usize = 32;
const BURSTS: u32 = 1_000;
const ROUNDS: usize = 41;
const HEADER: u32 = 12;

/// Nanoseconds per packet of each stage.
#[derive(Clone, Copy, Default)]
struct Stages {
    driver: f64,
    begin: f64,
    land: f64,
}

fn main() {
    let clock = median((0..1001).map(|_| Instant::now().elapsed().as_secs_f64() * 1e9)) / BURST as f64;
    println!("a look at the clock: {clock:.2} ns of a packet");
    let layouts = [("split", Features::MRG_RXBUF), ("packed", Features::MRG_RXBUF | Features::RING_PACKED)];
    for (layout, features) in layouts {
        println!("{layout}, ns a packet; enqueue: submit, poll; dequeue: all in one");
        println!(
            "{:>6} | {:>8} {:>8} {:>8} {:>8} | {:>8} {:>8} {:>8}",
            "bytes", "submit", "poll", "driver", "all", "dequeue", "driver", "all"
        );
        for len in [64, 128, 256, 512, 1024, 1280, 1518] {
            let (enqueue, dequeue) = (enqueue(features, len, clock), dequeue(features, len, clock));
            let all = |stages: Stages| stages.driver + stages.begin + stages.land;
            println!(
                "{len:>6} | {:>8.1} {:>8.1} {:>8.1} {:>8.1} | {:>8.1} {:>8.1} {:>8.1}",
                enqueue.begin,
                enqueue.land,
                enqueue.driver,
                all(enqueue),
                dequeue.begin,
                dequeue.driver,
                all(dequeue)
            );
        }
    }
}

/// A guest with its driver and buffers, and the virtqueue.
struct TestGuest {
    driver: MockDriver,
    queue: Virtqueue,
    pool: PacketPool,
    buffers: Vec<u64>,
    next: usize,
    back: Vec<(u16, u32)>,
    _guest: MockGuest,
}

impl TestGuest {
    fn new(features: Features, direction: Direction) -> TestGuest {
        let mut guest = MockGuest::new(16 << 20);
        let driver = MockDriver::new(&mut guest, SIZE, features | Features::VERSION_1, direction);
        let ring = Ring::new(guest.memory(), driver.setup()).expect("the ring lies in the guest");
        let pool = PacketPool::new(PoolOptions { buffers: 1024, longest: 2048 }).expect("memory for packets");
        let queue = Virtqueue::new(ring, &pool, &QueueOptions::default());
        // Like DPDK's buffers: not a power of two apart.
        let buffers = (0..SIZE).map(|_| guest.lend(2176)).collect();
        TestGuest { driver, queue, pool, buffers, next: 0, back: Vec::with_capacity(SIZE.into()), _guest: guest }
    }

    fn offer(&mut self, count: usize, len: u32) {
        for _ in 0..count {
            self.driver.offer(&[(self.buffers[self.next], len)]).expect("the ring has room");
            self.next = (self.next + 1) % self.buffers.len();
        }
    }

    fn collect(&mut self) {
        self.back.clear();
        self.driver.collect_into(&mut self.back);
        assert_eq!(self.back.len(), BURST);
    }
}

fn enqueue(features: Features, len: u32, clock: f64) -> Stages {
    let mut scene = TestGuest::new(features, Direction::Receive);
    let (mut row, mut done) = (scene.pool.allocate(BURST), scene.pool.empty(BURST));
    (0..BURST).for_each(|index| row.resize(index, len));
    scene.offer(usize::from(SIZE) - BURST, 2048);
    measure(clock, || {
        let start = Instant::now();
        scene.offer(BURST, 2048);
        let offered = Instant::now();
        let sent = scene.queue.submit_enqueue_burst(&mut row);
        let submitted = Instant::now();
        let landed = scene.queue.poll_enqueue_completed(&mut done);
        let polled = Instant::now();
        scene.collect();
        let end = Instant::now();
        assert_eq!((sent, landed), (BURST, BURST));
        done.move_to(BURST, &mut row);
        [start, offered, submitted, polled, end]
    })
}

fn dequeue(features: Features, len: u32, clock: f64) -> Stages {
    let mut scene = TestGuest::new(features, Direction::Transmit);
    let (mut spare, mut into) = (scene.pool.allocate(BURST), scene.pool.empty(BURST));
    measure(clock, || {
        let start = Instant::now();
        scene.offer(BURST, len + HEADER);
        let offered = Instant::now();
        let came = scene.queue.try_dequeue_burst(&mut into, &mut spare, BURST);
        let taken = Instant::now();
        scene.collect();
        let end = Instant::now();
        assert_eq!(came, BURST);
        into.move_to(BURST, &mut spare);
        [start, offered, taken, taken, end]
    })
}

/// Medians over rounds; `burst` returns the times between driver, begin, land and driver.
fn measure(clock: f64, mut burst: impl FnMut() -> [Instant; 5]) -> Stages {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let mut sum = Stages::default();
        for _ in 0..BURSTS {
            let [begun, offered, submitted, polled, end] = burst();
            let nanos = |from: Instant, to: Instant| {
                if from == to { 0.0 } else { (to - from).as_secs_f64() * 1e9 / BURST as f64 - clock }
            };
            sum.driver += nanos(begun, offered) + nanos(polled, end);
            sum.begin += nanos(offered, submitted);
            sum.land += nanos(submitted, polled);
        }
        rounds.push(sum);
    }
    let of = |stage: fn(&Stages) -> f64| median(rounds.iter().map(stage)) / f64::from(BURSTS);
    Stages { driver: of(|round| round.driver), begin: of(|round| round.begin), land: of(|round| round.land) }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
