//! Memory of a heap, for a program to use.
#![allow(unsafe_code, reason = "makes slices of an owned mapping")]

pub(crate) mod shared;

use crate::config::PAGE;
use crate::error::TierError;
use crate::heap::{Heap, Inner};
use shared::SharedArena;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use telpher_mem::{MapError, PageSize, RawPages};

/// Owned, zeroed memory of a [`Heap`]: a slice of bytes whose pages change their tier and nothing else.
///
/// ```no_run
/// use telpher_mem::PageSize;
/// use telpher_tier::{Heap, HeapOptions, TierId, TierOptions};
///
/// let tier = |name: &str, node| TierOptions { name: name.into(), node: Some(node), bytes: 1 << 30 };
/// let heap = Heap::new(HeapOptions::new(vec![tier("hbm", 1), tier("ddr", 0)]))?;
/// let mut arena = heap.arena(64 << 20, PageSize::Small)?;
/// arena.fill(7);
/// let hot = arena.addresses().start..arena.addresses().start + (1 << 20);
/// let moved = heap.migrate(hot, TierId(0))?;
/// assert_eq!(moved.pages + moved.left.all(), 256);
/// assert!(arena.iter().all(|&byte| byte == 7));
/// # Ok::<(), telpher_tier::TierError>(())
/// ```
#[derive(Debug)]
pub struct Arena {
    heap: Arc<Inner>,
    tract: ManuallyDrop<RawPages>,
}

impl Arena {
    pub(crate) fn new(heap: &Arc<Inner>, len: usize, pages: PageSize) -> Result<Arena, TierError> {
        let tract = RawPages::new(len, pages)?;
        if let Some(node) = heap.home_node() {
            tract.bind(node)?;
        }
        if pages == PageSize::Huge {
            // A fault is filled with small pages, so huge pages are allocated now.
            tract.populate(tract.range())?;
        }
        heap.backend.adopt(tract.range(), None)?;
        Ok(Arena { heap: Arc::clone(heap), tract: ManuallyDrop::new(tract) })
    }

    /// Returns its addresses.
    #[must_use]
    pub fn addresses(&self) -> Range<u64> {
        self.tract.range()
    }

    /// Discards the whole pages in a range of offsets: they read as zero, and are on no tier until they are touched.
    ///
    /// # Errors
    /// The system refuses, for example because the pages are locked in memory.
    ///
    /// # Panics
    /// If the range is not inside the arena.
    pub fn discard(&mut self, range: Range<usize>) -> Result<(), MapError> {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "{range:?} lies in an arena of {} bytes",
            self.len()
        );
        let start = range.start.next_multiple_of(4096) as u64;
        let end = (range.end - range.end % 4096) as u64;
        let first = self.tract.start();
        if start < end { self.tract.discard(first + start..first + end) } else { Ok(()) }
    }
}

/// Memory that the heap allocates.
impl Heap {
    /// Allocates zeroed memory of this heap on the home tier, rounded up to 2 MiB. Small pages are allocated when they
    /// are touched, huge pages at once, as far as the system has any.
    ///
    /// # Errors
    /// [`TierError`]: the system refuses the memory, or there are too many separate ranges.
    pub fn arena(&self, len: usize, pages: PageSize) -> Result<Arena, TierError> {
        Arena::new(&self.inner, len, pages)
    }

    /// Allocates zeroed shared memory of files on the home tier, rounded up to 2 MiB and allocated at once, for uses
    /// where memory cannot be private. [`SharedArena`] lists its limits. It moves in whole units of 2 MiB. Its use of
    /// each tier's `bytes` counts separately from the rest of the heap.
    ///
    /// # Errors
    /// [`TierError`]: the system refuses the memory, or cannot protect memory of files from writes (Linux 5.19).
    pub fn shared_arena(&self, len: usize) -> Result<SharedArena, TierError> {
        SharedArena::new(&self.inner, len)
    }
}

/// Memory that the program has mapped itself.
impl Heap {
    /// Adopts memory that this process has mapped itself: private and anonymous, with or without pages in it. All of it
    /// counts as the home tier's until it moves. The program may still discard, move and unmap it; the kernel reports
    /// this to the heap. With [`Mechanism::MovePages`](crate::Mechanism) it does not, and the program must call
    /// [`release`](Heap::release).
    ///
    /// Pages of mappings that cannot be moved stay where they are and are counted.
    ///
    /// # Safety
    /// - A page of the range that was never touched reads as zeros, as private anonymous memory does.
    /// - This process does not drop its last clone of this [`Heap`] while it uses the range. No thread on which the
    ///   heap depends (its own threads, and those that call [`Heap::migrate`]) touches the range while pages are moved.
    ///
    /// # Errors
    /// [`TierError`]: no whole pages, known already, too many separate ranges, or the system refuses to register the
    /// range.
    pub unsafe fn adopt(&self, range: Range<u64>) -> Result<(), TierError> {
        // SAFETY: the caller's promise.
        unsafe { self.adopt_in(range.clone(), range) }
    }

    /// Like [`adopt`](Heap::adopt), for a mapping that may grow, shrink or go meanwhile. `room` reaches from the end of
    /// the mapping before it to the start of the mapping behind it. Without it, a mapping that has grown would be cut
    /// in two, and then cannot be moved as one (`mremap(2)`, EFAULT). Memory that was mapped in the room since is
    /// registered, too, and may be adopted when it is found.
    ///
    /// # Safety
    /// As for [`adopt`](Heap::adopt), for all private anonymous memory in the room.
    ///
    /// # Errors
    /// As for [`adopt`](Heap::adopt). Also if the range has changed; then look again.
    pub unsafe fn adopt_in(&self, range: Range<u64>, room: Range<u64>) -> Result<(), TierError> {
        self.inner.is_ours()?;
        if range.is_empty() || !range.start.is_multiple_of(PAGE) || !range.end.is_multiple_of(PAGE) {
            return Err(TierError::NotPages { start: range.start, end: range.end });
        }
        let room = room.start.min(range.start)..room.end.max(range.end);
        self.inner.backend.adopt(range, Some(room))
    }

    /// Releases memory that was [adopted](Heap::adopt), or a part of it: its pages stay on their tiers and are no
    /// longer moved.
    ///
    /// # Errors
    /// [`TierError`]: this is a forked child.
    ///
    /// # Safety
    /// The range is not part of an [`Arena`].
    pub unsafe fn release(&self, range: &Range<u64>) -> Result<(), TierError> {
        self.inner.is_ours()?;
        self.inner.backend.release(range);
        Ok(())
    }
}

impl Deref for Arena {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let range = self.tract.range();
        let start: *const u8 = std::ptr::with_exposed_provenance(usize::try_from(range.start).expect("an address"));
        let len = usize::try_from(range.end - range.start).expect("a length");
        // SAFETY: mapped while this lives, initialised (zero), and written through `&mut self` only. An exchange moves
        // pages and changes none of their bytes; a thread that touches a page that is out waits until it is back.
        unsafe { std::slice::from_raw_parts(start, len) }
    }
}

impl DerefMut for Arena {
    fn deref_mut(&mut self) -> &mut [u8] {
        let range = self.tract.range();
        let start: *mut u8 = std::ptr::with_exposed_provenance_mut(usize::try_from(range.start).expect("an address"));
        let len = usize::try_from(range.end - range.start).expect("a length");
        // SAFETY: as in `deref`, and exclusive because `self` is.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.heap.is_ours().is_ok() {
            self.heap.backend.release(&self.tract.range());
        }
        // SAFETY: the tract is not used after this; a forked child has a mapping of its own there.
        unsafe { ManuallyDrop::drop(&mut self.tract) };
    }
}
