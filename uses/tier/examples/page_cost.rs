//! Prints the cost of moving a page, by batch size and for contiguous and scattered pages, and of moving 2 MiB with
//! each mechanism: `cargo run --release -p telpher-tier --example page_cost`.

use std::ops::{DerefMut, Range};
use std::time::Instant;
use telpher_mem::PageSize;
use telpher_tier::{Heap, HeapOptions, TierError, TierId, TierOptions};

const FAST: TierId = TierId(0);
const HOME: TierId = TierId(1);

/// Bytes of each arena.
const ARENA: usize = 16 << 20;
/// Round trips that are not counted, because they fill the pools, and round trips that are.
const WARM: u64 = 16;
const ROUNDS: u64 = 400;

fn heap(batch: u64, shadow_bytes: u64) -> Result<Heap, TierError> {
    let tier = |name: &str| TierOptions { name: name.into(), node: None, bytes: 256 << 20 };
    let mut options = HeapOptions::new(vec![tier("fast"), tier("slow")]);
    options.batch = usize::try_from(batch).expect("a batch");
    options.shadow_bytes = shadow_bytes;
    Heap::new(options)
}

/// Returns the median cost of a page there and back, in nanoseconds, over ranges of this many pages at this distance;
/// `each` is called before the move back.
fn cost(
    heap: &Heap,
    start: u64,
    [pages, apart]: [u64; 2],
    mut each: impl FnMut(&Range<u64>),
) -> Result<[u128; 2], TierError> {
    let mut nanos = [Vec::new(), Vec::new()];
    let len = pages * apart * 4096;
    for round in 0..WARM + ROUNDS {
        let first = start + round % (ARENA as u64 / len) * len;
        let range = first..first + len;
        for (to, nanos) in [FAST, HOME].into_iter().zip(&mut nanos) {
            if to == HOME {
                each(&range);
            }
            let started = Instant::now();
            let moved = heap.migrate(range.clone(), to)?;
            let took = started.elapsed();
            assert_eq!(moved.pages, pages, "{moved:?}: is there enough memory, and are there huge pages?");
            if round >= WARM {
                nanos.push(took.as_nanos() / u128::from(pages));
            }
        }
    }
    Ok(nanos.map(|mut nanos| {
        nanos.sort_unstable();
        nanos[nanos.len() / 2]
    }))
}

fn row(what: &str, [there, back]: [u128; 2]) {
    let rate = |nanos: u128| f64::from(4096_u32) / f64::from(u32::try_from(nanos.max(1)).unwrap_or(u32::MAX));
    println!("| {what} | {there} | {back} | {:.1} | {:.1} |", rate(there), rate(back));
}

fn main() -> Result<(), TierError> {
    println!("| pages at once | ns a page, there | and back | GB/s, there | and back |\n|---|---|---|---|---|");
    for (apart, how) in [(1, "neighbours"), (2, "every second one")] {
        for batch in [1_u64, 8, 32, 128, 512] {
            let heap = heap(batch, 0)?;
            let mut arena = heap.arena(ARENA, PageSize::Small)?;
            // Only touched pages are present.
            arena.chunks_exact_mut(4096).step_by(apart).for_each(|page| page.fill(1));
            let costs = cost(&heap, arena.addresses().start, [batch, apart as u64], |_| ())?;
            row(&format!("{batch} small, {how}"), costs);
        }
    }
    for (written, how) in [(false, "not written"), (true, "each written at its end")] {
        for batch in [32_u64, 512] {
            let heap = heap(batch, ARENA as u64)?;
            let mut arena = heap.arena(ARENA, PageSize::Small)?;
            arena.fill(1);
            let start = arena.addresses().start;
            let costs = cost(&heap, start, [batch, 1], |range| {
                let offset = |address: u64| usize::try_from(address - start).expect("in the arena");
                if written {
                    let bytes = &mut arena.deref_mut()[offset(range.start)..offset(range.end)];
                    bytes.chunks_exact_mut(4096).for_each(|page| page[4095] = page[4095].wrapping_add(1));
                }
            })?;
            row(&format!("{batch} small with old copies, {how}"), costs);
        }
    }
    for huge in [1_u64, 4] {
        let heap = heap(huge * 512, 0)?;
        let mut arena = heap.arena(ARENA, PageSize::Huge)?;
        arena.fill(1);
        row(&format!("{huge} huge"), cost(&heap, arena.addresses().start, [huge * 512, 1], |_| ())?);
    }
    for units in [1_u64, 4] {
        let heap = heap(512, 0)?;
        let mut arena = heap.shared_arena(ARENA)?;
        arena.fill(1);
        let costs = cost(&heap, arena.addresses().start, [units * 512, 1], |_| ())?;
        row(&format!("{units} units of 2 MiB of a shared arena"), costs);
    }
    Ok(())
}
