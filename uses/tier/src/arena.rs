//! Memory of a heap, for a program to use.
#![allow(unsafe_code, reason = "makes slices of an owned mapping")]

pub(crate) mod shared;

use crate::config::PAGE;
use crate::error::TierError;
use crate::heap::{Heap, Inner};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use telpher_mem::{MapError, PageSize, Tract};

/// Owned, zeroed memory of a [`Heap`](crate::Heap); a slice of bytes, whose pages change their tier and nothing else.
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
    tract: ManuallyDrop<Tract>,
}

impl Arena {
    pub(crate) fn new(heap: &Arc<Inner>, len: usize, pages: PageSize) -> Result<Arena, TierError> {
        let tract = Tract::new(len, pages)?;
        if let Some(node) = heap.home_node() {
            tract.bind(node)?;
        }
        if pages == PageSize::Huge {
            // An empty page that is put there at a touch is a small one.
            tract.populate(tract.range())?;
        }
        heap.way.adopt(tract.range(), None)?;
        Ok(Arena { heap: Arc::clone(heap), tract: ManuallyDrop::new(tract) })
    }

    /// Where it is.
    #[must_use]
    pub fn addresses(&self) -> Range<u64> {
        self.tract.range()
    }

    /// Gives the whole pages of a range of offsets back: they read as zero, and are on no tier until they are touched.
    ///
    /// # Errors
    /// The system's refusal, for example when the pages are locked in memory.
    ///
    /// # Panics
    /// If the range does not lie in the arena.
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

/// Memory that is somebody else's.
impl Heap {
    /// Takes memory over that this process has mapped itself: private, anonymous, pages or none in it. All of it counts as the home tier's until
    /// it moves. It may be discarded, moved and unmapped as before, which the heap hears of; by [`Mechanism::MovePages`](crate::Mechanism) it
    /// does not, and wants to be [told](Heap::release).
    ///
    /// Pages of mappings that cannot be moved stay where they are, and are counted.
    ///
    /// # Safety
    /// - A page of the range that nobody has touched reads as zeros, as of private anonymous memory.
    /// - This process does not end its [`Heap`]s, of which this is a clone, while it uses the range; nor does a thread on which the heap depends,
    ///   its own and those that call [`Heap::migrate`], touch the range while pages are moved.
    ///
    /// # Errors
    /// [`TierError`]: no whole pages, known already, too many pieces, or the system refuses to have its faults answered.
    pub unsafe fn adopt(&self, range: Range<u64>) -> Result<(), TierError> {
        // SAFETY: the caller's promise.
        unsafe { self.adopt_in(range.clone(), range) }
    }

    /// As [`adopt`](Heap::adopt), of a mapping that may grow, shrink or go meanwhile: `room` is from where the mapping before it ended to where the one
    /// behind it began. Without it a mapping that has grown would be cut in two, and what is cut in two cannot be moved as one (`mremap(2)`, EFAULT). What
    /// has come into the room since has its faults answered, too, and may be taken over when it is found.
    ///
    /// # Safety
    /// As for [`adopt`](Heap::adopt), for all private anonymous memory in the room.
    ///
    /// # Errors
    /// As for [`adopt`](Heap::adopt); the range is no longer what it was, too, which wants another look.
    pub unsafe fn adopt_in(&self, range: Range<u64>, room: Range<u64>) -> Result<(), TierError> {
        self.inner.is_ours()?;
        if range.is_empty() || !range.start.is_multiple_of(PAGE) || !range.end.is_multiple_of(PAGE) {
            return Err(TierError::NotPages { start: range.start, end: range.end });
        }
        let room = room.start.min(range.start)..room.end.max(range.end);
        self.inner.way.adopt(range, Some(room))
    }

    /// Lets memory go that was [taken over](Heap::adopt), or a part of it: its pages stay on the tiers they are on, and nobody moves them.
    ///
    /// # Errors
    /// [`TierError`]: this is a forked child.
    ///
    /// # Safety
    /// The range is of no [`Arena`].
    pub unsafe fn release(&self, range: &Range<u64>) -> Result<(), TierError> {
        self.inner.is_ours()?;
        self.inner.way.release(range);
        Ok(())
    }
}

impl Deref for Arena {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let range = self.tract.range();
        let start: *const u8 = std::ptr::with_exposed_provenance(usize::try_from(range.start).expect("an address"));
        let len = usize::try_from(range.end - range.start).expect("a length");
        // SAFETY: mapped while this lives, initialised (zero), and written through `&mut self` only: an exchange moves pages, and changes no byte
        // of them; whoever touches one that is out waits until it is back.
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
            self.heap.way.release(&self.tract.range());
        }
        // SAFETY: nothing uses the tract after this; a forked child has a mapping of its own there.
        unsafe { ManuallyDrop::drop(&mut self.tract) };
    }
}
