//! Helpers for the tests of heaps.
#![allow(dead_code, reason = "each test uses a part")]

#[path = "../../../../ci/skip.rs"]
pub(crate) mod skip;
pub(crate) mod stress;

use telpher_os::{Nodes, Scan, Userfault, UserfaultFeatures};
use telpher_tier::{Heap, HeapOptions, TierId, TierOptions};

pub(crate) const PAGE: u64 = 4096;
pub(crate) const FAST: TierId = TierId(0);
pub(crate) const HOME: TierId = TierId(1);

/// Creates a heap with this much fast memory; none where the kernel lacks a feature.
pub(crate) fn heap(test: &str, fast_bytes: u64) -> Option<Heap> {
    heap_with(test, fast_bytes, |_| ())
}

pub(crate) fn heap_with(test: &str, fast_bytes: u64, change: impl FnOnce(&mut HeapOptions)) -> Option<Heap> {
    if Scan::open().is_err() || Userfault::open(UserfaultFeatures::MOVE).is_err() {
        skip::skip(test, "no userfaultfd that moves pages for this user on this kernel (Linux 6.8)");
        return None;
    }
    let tier = |name: &str, bytes| TierOptions { name: name.to_string(), node: None, bytes };
    let mut options = HeapOptions::new(vec![tier("fast", fast_bytes), tier("slow", 0)]);
    change(&mut options);
    Some(Heap::new(options).unwrap())
}

/// Returns the nodes that have memory.
pub(crate) fn nodes_with_memory() -> Vec<u32> {
    let has_memory = |node: &u32| {
        let text = std::fs::read_to_string(format!("/sys/devices/system/node/node{node}/meminfo")).unwrap_or_default();
        !text.is_empty() && !text.contains("MemTotal:              0 kB")
    };
    (0..Nodes::of_this_machine().count()).filter(has_memory).collect()
}
