//! `select sum(b) where a < 50`, with b prefetched: while column a is filtered, a device copies the blocks of b to fast
//! memory.
//!
//! `cargo run -p telpher-capi --example column_sum -- model:spr`
//!
//! On a machine with HBM the pool is bound to its node: `PoolOptions { node: Some(8), .. }`.

use std::error::Error;
use std::sync::Arc;
use telpher_cache::{Cache, Config, Priority};
use telpher_device::{OpenOptions, open};
use telpher_mem::{Pool, PoolOptions};
use telpher_mover::{Mover, Policy, Threshold};

const ROWS: usize = 1024 * 1024;
const BLOCK_ROWS: usize = 16 * 1024;
const BLOCKS: usize = ROWS / BLOCK_ROWS;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or("model:spr".into());
    let device = open(&name.parse()?, OpenOptions::default())?;
    let mover = Mover::new(device.portals, Policy { threshold: Threshold::all(16 << 10), ..Policy::default() });
    let fast = Pool::new(PoolOptions::new(ROWS * size_of::<i32>()))?;
    let cache = Cache::new(mover, Config::new([fast]))?;

    let column = |value: fn(usize) -> usize| -> Result<Arc<[u8]>, Box<dyn Error>> {
        let values = (0..ROWS).map(|row| i32::try_from(value(row)));
        Ok(values.collect::<Result<Vec<i32>, _>>()?.into_iter().flat_map(i32::to_ne_bytes).collect())
    };
    let (a, b) = (column(|row| row * 7 % 100)?, column(|row| row % 1000)?);
    let part = |block: usize| block * BLOCK_ROWS * size_of::<i32>()..(block + 1) * BLOCK_ROWS * size_of::<i32>();

    // The first blocks have the highest priority.
    for block in 0..BLOCKS {
        cache.prefetch(&b, part(block), Priority(u8::try_from(255 - block)?))?;
    }

    let (mut rows, mut sum) = (0, 0);
    for block in 0..BLOCKS {
        let values = |bytes: &[u8]| -> Vec<i32> {
            bytes.as_chunks::<4>().0.iter().map(|value| i32::from_ne_bytes(*value)).collect()
        };
        let selected: Vec<bool> = values(&a[part(block)]).iter().map(|&value| value < 50).collect();

        // The copy, or the source if there was no memory for one.
        let block = cache.access(&b, part(block))?;
        for (value, _) in values(&block.wait()).iter().zip(&selected).filter(|(_, selected)| **selected) {
            rows += 1;
            sum += i64::from(*value);
        }
    }
    println!("{rows} of {ROWS} rows, sum {sum}, {} of {BLOCKS} blocks fetched ahead", cache.stats().hits);
    Ok(())
}
