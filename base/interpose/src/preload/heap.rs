//! The heap of a preloaded library, on its own pages: the program may have its own `malloc`, or be inside the C
//! library's.
#![allow(unsafe_code, reason = "a global allocator on pages from the kernel")]

use super::lock::Lock;
use crate::kernel;
use dlmalloc::Dlmalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

/// The source of a heap's pages.
pub use dlmalloc::Allocator as PageSource;

/// A heap. A preloaded library has one, as its `global_allocator`.
#[derive(Debug)]
pub struct Heap<P>(Lock<Inner<P>>);

struct Inner<P>(Dlmalloc<P>);

// SAFETY: the heap's pages belong to the process, not to a thread.
unsafe impl<P: Send> Send for Inner<P> {}

impl<P: PageSource> Heap<P> {
    /// Creates an empty heap.
    pub const fn new(pages: P) -> Self {
        Heap(Lock::new(Inner(Dlmalloc::new_with_allocator(pages))))
    }

    /// Locks the heap before a fork, so that it is consistent in the child.
    pub fn take(&self) {
        self.0.take();
    }

    /// Unlocks it after the fork, in parent and child.
    pub fn give(&self) {
        self.0.give();
    }
}

// SAFETY: dlmalloc keeps the trait's promises, under the lock.
unsafe impl<P: PageSource + Send> GlobalAlloc for Heap<P> {
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

/// Pages directly from the kernel, returned when they are free.
#[derive(Clone, Copy, Debug)]
pub struct KernelPages;

// SAFETY: each call returns pages that only one heap uses, or refuses; sizes are dlmalloc's own.
unsafe impl PageSource for KernelPages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let mapped = kernel::map(None, size, libc::PROT_READ | libc::PROT_WRITE);
        mapped.map_or((ptr::null_mut(), 0, 0), |base| (ptr::with_exposed_provenance_mut(base), size, 0))
    }

    fn remap(&self, base: *mut u8, old: usize, new: usize, can_move: bool) -> *mut u8 {
        // SAFETY: the heap owns the range.
        let moved = unsafe { kernel::remap(base.expose_provenance(), old, new, can_move) };
        moved.map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut)
    }

    fn free_part(&self, base: *mut u8, old: usize, new: usize) -> bool {
        self.free(base.wrapping_add(new), old - new)
    }

    fn free(&self, base: *mut u8, size: usize) -> bool {
        // SAFETY: the heap owns the range and no longer uses it.
        unsafe { kernel::unmap(base.expose_provenance(), size) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_many_sizes_keep_their_bytes() {
        let heap = Heap::new(KernelPages);
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
