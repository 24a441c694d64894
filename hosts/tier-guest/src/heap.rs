//! This library's own memory, in a reserved range of address space. The program's allocations are managed, and the code
//! that manages them must not be.
//!
//! The range is reserved at the first allocation, before the program's `main`, and never released. So every address in
//! it is known to belong to the library, whatever the program maps beside it.
//!
//! For the same reason this library has memory functions of its own. Those of the program, or of the library of
//! `telpher offload`, use memory that is managed. A thread that has taken such a page away would wait for itself.
#![allow(unsafe_code, reason = "the pages of a global allocator, and memory functions in assembly")]

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
#[cfg(test)]
use std::ops::Range;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use telpher_interpose::preload::{Heap, PageSource};

telpher_interpose::hidden_memory_functions!();

/// The address space to reserve. Source: derived: two bytes for each managed page of 4 KiB (its state and its heat),
/// twice for lists that grow, for 8 TiB; chosen: as much again for everything else. It is address space, not memory.
const RESERVED: usize = 64 << 30;
/// The least to reserve, where the system limits a process' address space (`ulimit -v`). Source: chosen.
const AT_LEAST: usize = 64 << 20;

/// The start of the range; its length is zero until it is reserved.
static START: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
/// Bytes of it that the allocator has.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The pages of the reserved range.
#[derive(Debug)]
struct Pages;

/// Reserves the range, or a smaller one.
fn reserve() -> bool {
    let mut len = RESERVED;
    while len >= AT_LEAST {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: without a fixed address the kernel picks an unused range.
        if let Ok(start) = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), flags) } {
            START.store(start.expose_provenance(), Ordering::Relaxed);
            LEN.store(len, Ordering::Relaxed);
            return true;
        }
        len /= 2;
    }
    false
}

// SAFETY: pages are handed out once and never taken back, so they belong to this allocator alone. It is called only
// under its lock.
unsafe impl PageSource for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let none = (ptr::null_mut(), 0, 0);
        if LEN.load(Ordering::Relaxed) == 0 && !reserve() {
            return none;
        }
        let (used, len) = (USED.load(Ordering::Relaxed), LEN.load(Ordering::Relaxed));
        let Some(end) = used.checked_add(size).filter(|&end| end <= len) else { return none };
        let block: *mut u8 = ptr::with_exposed_provenance_mut(START.load(Ordering::Relaxed) + used);
        // SAFETY: unused pages of the reserved range.
        if unsafe { mprotect(block.cast(), size, MprotectFlags::READ | MprotectFlags::WRITE) }.is_err() {
            return none;
        }
        USED.store(end, Ordering::Relaxed);
        (block, size, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        4096
    }
}

/// The allocator of this library.
#[cfg_attr(not(test), global_allocator)]
static HEAP: Heap<Pages> = Heap::new(Pages);

/// Returns the addresses of this library's memory.
#[cfg(test)]
fn reserved() -> Range<u64> {
    let start = START.load(Ordering::Relaxed) as u64;
    start..start + LEN.load(Ordering::Relaxed) as u64
}

/// Keeps the allocator consistent and unlocked in forked children from now on.
pub(crate) fn keep_through_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| telpher_os::on_fork(before, after));
}

extern "C" fn before() {
    HEAP.take();
}

extern "C" fn after() {
    HEAP.give();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::{GlobalAlloc, Layout};

    #[test]
    fn blocks_are_in_the_reserved_range_and_keep_their_bytes() {
        let heap = Heap::new(Pages);
        let layouts = (0..2000_usize).map(|n| Layout::from_size_align(1 + n * 37 % 9000, 1 << (n % 8)).unwrap());
        let mut blocks: Vec<(*mut u8, Layout, u8)> = Vec::new();
        for (n, layout) in layouts.enumerate() {
            let mark = u8::try_from(n % 251).unwrap();
            // SAFETY: sizes are not zero; each block is written within its size and freed once.
            unsafe {
                let block = heap.alloc(layout);
                assert!(!block.is_null() && block.addr().is_multiple_of(layout.align()));
                let at = block.expose_provenance() as u64;
                assert!(reserved().contains(&at) && reserved().contains(&(at + layout.size() as u64)));
                block.write_bytes(mark, layout.size());
                blocks.push((block, layout, mark));
                if n % 3 == 0 {
                    let (block, layout, mark) = blocks.swap_remove(n % blocks.len());
                    assert_eq!((*block, *block.add(layout.size() - 1)), (mark, mark));
                    heap.dealloc(block, layout);
                }
            }
        }
        for (block, layout, mark) in blocks {
            // SAFETY: as above.
            unsafe {
                assert!(std::slice::from_raw_parts(block, layout.size()).iter().all(|byte| *byte == mark));
                heap.dealloc(block, layout);
            }
        }
        // Freed memory is reused: the range is never released and must last.
        let used = || USED.load(Ordering::Relaxed);
        let (before, layout) = (used(), Layout::from_size_align(1 << 20, 4096).unwrap());
        for _ in 0..1000 {
            // SAFETY: as above.
            unsafe {
                let block = heap.alloc(layout);
                assert!(!block.is_null());
                heap.dealloc(block, layout);
            }
        }
        assert!(used() - before < 8 << 20, "{} bytes more", used() - before);
    }
}
