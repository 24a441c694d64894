//! The cost of a chain through a ring, with warm caches, on one thread: taken, translated, returned, in bursts of 32.
//!
//! `cargo run --release -p telpher-vhost --example rings --features test-util`
//!
//! The driver fills the whole ring before the clock starts and collects it after the clock has stopped, so all chains
//! of a ring share one clock read. The time of an empty interval is subtracted.

use std::time::Instant;
use telpher_vhost::layout::Features;
use telpher_vhost::ring::{Burst, Direction, MockDriver, MockGuest, Ring, Used};

const SIZE: u16 = 1024;
const BURST: usize = 32;
const RINGS: usize = 40;
const ROUNDS: usize = 101;

fn main() {
    let clock = median((0..1001).map(|_| Instant::now().elapsed().as_secs_f64() * 1e9));
    println!("a look at the clock: {clock:.1} ns, {:.2} ns of a chain", clock / f64::from(SIZE));
    println!("{:<8} {:>22} {:>10}", "layout", "descriptors a chain", "ns/chain");
    for features in [Features::empty(), Features::RING_PACKED] {
        for descriptors in [1, 2] {
            let nanos = chain(features, descriptors, clock);
            let layout = if features.is_empty() { "split" } else { "packed" };
            println!("{layout:<8} {descriptors:>22} {nanos:>10.2}");
        }
    }
}

fn chain(features: Features, descriptors: usize, clock: f64) -> f64 {
    let mut guest = MockGuest::new(16 << 20);
    let agreed = features | Features::VERSION_1;
    let mut driver = MockDriver::new(&mut guest, SIZE, agreed, Direction::Receive);
    let mut ring = Ring::new(guest.memory(), driver.setup()).expect("the ring lies in the guest");
    let buffers: Vec<_> = (0..descriptors).map(|_| (guest.lend(2048), 1024)).collect();
    let (mut burst, mut used) = (Burst::with_capacity(BURST), Vec::with_capacity(BURST));
    let mut back = Vec::with_capacity(SIZE.into());
    median((0..ROUNDS).map(|_| {
        let (mut nanos, mut chains) = (0.0, 0);
        for _ in 0..RINGS {
            let mut offered = 0;
            while driver.offer(&buffers).is_some() {
                offered += 1;
            }
            let start = Instant::now();
            for _ in 0..offered / BURST {
                burst.clear();
                ring.take(&mut burst, BURST).expect("the driver keeps to the rules");
                used.clear();
                used.extend(burst.chains().iter().map(|chain| Used::of(chain, chain.len)));
                ring.put(&used);
                std::hint::black_box(ring.publish());
            }
            nanos += start.elapsed().as_secs_f64() * 1e9 - clock;
            back.clear();
            driver.collect_into(&mut back);
            assert_eq!((back.len(), driver.lent()), (offered, 0));
            chains += offered;
        }
        nanos / chains as f64
    }))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
