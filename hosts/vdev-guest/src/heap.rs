//! This library's own heap on its own pages: the program may have its own malloc, or be inside the C library's.
//!
//! Nothing allocates where the program was interrupted; only opening, mapping and closing files need memory.
#![allow(unsafe_code, reason = "a global allocator on pages from the kernel")]

use crate::lock::Lock;
use crate::sys::{call, word};
use dlmalloc::{Allocator, Dlmalloc};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

/// Pages directly from the kernel.
#[derive(Debug)]
struct Pages;

// SAFETY: each call returns pages that only this heap uses, or refuses; sizes are dlmalloc's own.
unsafe impl Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let protection = word(libc::PROT_READ | libc::PROT_WRITE);
        let flags = word(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: without MAP_FIXED the kernel picks a free range.
        let mapped = unsafe { call(libc::SYS_mmap, [0, size, protection, flags, usize::MAX, 0]) };
        mapped.map_or((ptr::null_mut(), 0, 0), |base| (ptr::with_exposed_provenance_mut(base), size, 0))
    }

    fn remap(&self, base: *mut u8, old: usize, new: usize, can_move: bool) -> *mut u8 {
        let flags = if can_move { word(libc::MREMAP_MAYMOVE) } else { 0 };
        // SAFETY: the heap owns the range.
        let moved = unsafe { call(libc::SYS_mremap, [base.expose_provenance(), old, new, flags, 0, 0]) };
        moved.map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut)
    }

    fn free_part(&self, base: *mut u8, old: usize, new: usize) -> bool {
        self.free(base.wrapping_add(new), old - new)
    }

    fn free(&self, base: *mut u8, size: usize) -> bool {
        // SAFETY: the heap owns the range and no longer uses it.
        unsafe { call(libc::SYS_munmap, [base.expose_provenance(), size, 0, 0, 0, 0]) }.is_ok()
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        4096
    }
}

/// The heap.
#[derive(Debug)]
pub(crate) struct Heap(Lock<Inner>);

struct Inner(Dlmalloc<Pages>);

// SAFETY: the heap's pages belong to the process, not to a thread.
unsafe impl Send for Inner {}

impl Heap {
    pub(crate) const fn new() -> Self {
        Heap(Lock::new(Inner(Dlmalloc::new_with_allocator(Pages))))
    }

    /// Its lock, which a fork takes.
    pub(crate) fn lock(&self) -> &Lock<impl Sized + use<>> {
        &self.0
    }
}

// SAFETY: dlmalloc fulfils the trait's requirements, under the lock.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: forwarded.
        unsafe { self.0.hold().0.malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: forwarded.
        unsafe { self.0.hold().0.calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: forwarded.
        unsafe { self.0.hold().0.free(block, layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: forwarded.
        unsafe { self.0.hold().0.realloc(block, layout.size(), layout.align(), size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_many_sizes_keep_their_bytes() {
        let heap = Heap::new();
        let layouts = (0..2000_usize).map(|n| Layout::from_size_align(1 + n * 37 % 9000, 1 << (n % 8)).unwrap());
        let mut blocks: Vec<(*mut u8, Layout, u8)> = Vec::new();
        for (n, layout) in layouts.enumerate() {
            let mark = u8::try_from(n % 251).unwrap();
            // SAFETY: sizes are not zero; each block is written within its size and freed once.
            unsafe {
                let block = heap.alloc(layout);
                assert!(!block.is_null() && block.addr().is_multiple_of(layout.align()));
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
    }
}
