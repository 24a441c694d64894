//! A program's hot pages move to a faster tier while another thread counts in them; addresses and contents do not
//! change.
//!
//! `cargo run -p telpher-capi --example page_tiers -- model:spr`
//!
//! Here both tiers are the machine's only memory. With HBM on node 1: `TierOptions { node: Some(1), .. }`.

use std::error::Error;
use telpher_device::{OpenOptions, open};
use telpher_mem::PageSize;
use telpher_mover::{Mover, Policy, Threshold};
use telpher_tier::{Heap, HeapOptions, TierId, TierOptions};

const PAGES: usize = 2048;
const ROUNDS: u64 = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or("model:spr".into());
    let device = open(&name.parse()?, OpenOptions::default())?;
    let tier = |name: &str, bytes| TierOptions { name: name.into(), node: None, bytes };
    let mut options = HeapOptions::new(vec![tier("fast", 16 << 20), tier("slow", 0)]);
    options.mover = Mover::new(device.portals, Policy { threshold: Threshold::all(16 << 10), ..Policy::default() });
    let heap = Heap::new(options)?;
    let mut arena = heap.arena(PAGES * 4096, PageSize::Small)?;
    for (page, bytes) in arena.chunks_exact_mut(4096).enumerate() {
        bytes[..8].copy_from_slice(&(page as u64 + 1).to_ne_bytes());
    }

    let all = arena.addresses();
    let hot = all.start..all.start + PAGES as u64 / 2 * 4096;
    // Increments the first word of every page, repeatedly.
    let count = |arena: &mut [u8]| {
        for _ in 0..ROUNDS {
            for bytes in arena.chunks_exact_mut(4096) {
                let word = bytes.first_chunk_mut().expect("a page");
                *word = (u64::from_ne_bytes(*word) + 1).to_ne_bytes();
            }
        }
    };
    // The first half is hot. A thread that touches a page being moved waits for it.
    let moved = std::thread::scope(|scope| {
        scope.spawn(|| count(&mut arena));
        heap.migrate(hot, TierId(0))
    })?;

    let on = heap.residency(all)?;
    let is_wrong = |(page, bytes): &(usize, &[u8])| bytes[..8] != (*page as u64 + 1 + ROUNDS).to_ne_bytes();
    let wrong = arena.chunks_exact(4096).enumerate().filter(is_wrong).count();
    println!("{} pages moved; {} fast, {} slow, {wrong} wrong", moved.pages, on[0], on[1]);
    Ok(())
}
