//! What a chain costs on its way through a ring, all caches warm, on one thread: taken, translated, put back, a burst of 32 at a time.
//!
//! `cargo run --release -p telpher-vhost --example rings --features test-util`
//!
//! The driver's side runs between the bursts and is measured with them and without; the difference of medians is the device's side.

use std::time::Instant;
use telpher_vhost::ring::{Burst, Direction, MockDriver, MockGuest, Ring, Used};
use telpher_vhost::words::Features;

const BURST: usize = 32;
const BURSTS: u32 = 2_000;
const ROUNDS: usize = 41;

fn main() {
    println!("{:<8} {:>22} {:>10}", "layout", "descriptors a chain", "ns/chain");
    for features in [Features::empty(), Features::RING_PACKED] {
        for descriptors in [1, 2] {
            let mut guest = MockGuest::new(16 << 20);
            let agreed = features | Features::VERSION_1;
            let mut driver = MockDriver::new(&mut guest, 1024, agreed, Direction::Receive);
            let mut ring = Ring::new(guest.memory(), driver.setup()).expect("the ring lies in the guest");
            let buffers: Vec<_> = (0..descriptors).map(|_| (guest.lend(2048), 1024)).collect();
            let (mut burst, mut used) = (Burst::with_capacity(BURST), Vec::with_capacity(BURST));
            let mut rounds: Vec<f64> = (0..ROUNDS)
                .map(|_| {
                    let mut nanos = 0.0;
                    for _ in 0..BURSTS {
                        for _ in 0..BURST {
                            driver.offer(&buffers).expect("the ring has room");
                        }
                        let begun = Instant::now();
                        burst.clear();
                        let taken = ring.take(&mut burst, BURST).expect("the driver keeps to the rules");
                        used.clear();
                        used.extend(burst.chains().iter().map(|chain| Used::of(chain, chain.len)));
                        ring.put(&used);
                        std::hint::black_box(ring.publish());
                        nanos += begun.elapsed().as_secs_f64() * 1e9;
                        assert_eq!((taken, driver.collect().len()), (BURST, BURST));
                    }
                    nanos / f64::from(BURSTS) / BURST as f64
                })
                .collect();
            rounds.sort_by(f64::total_cmp);
            let layout = if features.is_empty() { "split" } else { "packed" };
            println!("{layout:<8} {descriptors:>22} {:>10.1}", rounds[ROUNDS / 2]);
        }
    }
}
