//! What a page costs to move, by how many go at once: `cargo run --release -p telpher-tier --example page_cost`.

use std::time::Instant;
use telpher_mem::PageSize;
use telpher_tier::{Heap, HeapOptions, TierId, TierOptions};

fn main() -> Result<(), telpher_tier::TierError> {
    let tier = |name: &str| TierOptions { name: name.into(), node: None, bytes: 256 << 20 };
    for (size, batches) in [(PageSize::Small, &[1_u64, 8, 32, 128, 512][..]), (PageSize::Huge, &[512, 2048][..])] {
        for &batch in batches {
            let mut options = HeapOptions::new(vec![tier("fast"), tier("slow")]);
            options.batch = usize::try_from(batch).expect("a batch");
            let heap = Heap::new(options)?;
            let mut arena = heap.arena(16 << 20, size)?;
            arena.fill(1);
            let start = arena.addresses().start;
            // There and back once, so that the pools have what they need.
            let mut nanos = Vec::new();
            for round in 0..400_u64 {
                let first = start + round % (4096 / batch) * batch * 4096;
                for to in [TierId(0), TierId(1)] {
                    let begun = Instant::now();
                    let moved = heap.migrate(first..first + batch * 4096, to)?;
                    let took = begun.elapsed();
                    if moved.pages == batch && round > 16 {
                        nanos.push(took.as_nanos() / u128::from(batch));
                    }
                }
            }
            nanos.sort_unstable();
            let median = nanos.get(nanos.len() / 2).copied().unwrap_or(0);
            println!("{size:?}, {batch} pages at once: {median} ns a page (median of {})", nanos.len());
        }
    }
    Ok(())
}
