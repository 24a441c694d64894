//! Prices that one thread changes while others add them up from copies in fast memory: each sum is of the version that
//! its reader holds. Then a block that is modified in fast memory, and copied back where it differs.
//!
//! `cargo run -p telpher-capi --example versioned -- model:spr`

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use telpher_cache::{Cache, Config, Find, Versioned, WriteBack};
use telpher_device::{OpenOptions, open};
use telpher_mem::{Pool, PoolOptions};
use telpher_mover::{Mover, Policy, Threshold};

const PRICES: usize = 100_000;
const BLOCK: usize = 20_000;
const CHANGES: u8 = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or("model:spr".into());
    let device = open(&name.parse()?, OpenOptions::default())?;
    let mover = Mover::new(device.portals, Policy { threshold: Threshold::all(16 << 10), ..Policy::default() });
    let fast = || Pool::new(PoolOptions::new(2 * PRICES));
    let cache = Cache::new(mover.clone(), Config::new([fast()?]))?;
    let versioned = Versioned::new(&cache, vec![0_u8; PRICES]);

    let wrong = AtomicU32::new(0);
    let add_up = || {
        let mut version = 0;
        while version < u64::from(CHANGES) {
            let reading = versioned.read();
            version = reading.version();
            let blocks = (0..PRICES).step_by(BLOCK).map(|at| reading.access(at..at + BLOCK).expect("inside"));
            let sum: u64 = blocks.map(|block| block.wait().iter().map(|&price| u64::from(price)).sum::<u64>()).sum();
            if sum != version * PRICES as u64 {
                // Relaxed: read after the threads have ended.
                wrong.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        let _readers = [(); 3].map(|()| scope.spawn(add_up));
        // Every price is the number of the version.
        (1..=CHANGES).for_each(|version| versioned.write().fill(version));
    });
    println!("{} versions, {} sums of another one", versioned.version(), wrong.load(Ordering::Relaxed));

    let mut block = WriteBack::fetch(&mover, &fast()?, versioned.into_inner()).map_err(|error| error.to_string())?;
    block.write(50_000..70_000)[..10].fill(7);
    let synced = block.sync(Find::Differing)?;
    println!(
        "10 bytes written, {} compared, {} copied back; price 50000 is {}",
        synced.compared,
        synced.copied,
        block.home()[50_000]
    );
    Ok(())
}
