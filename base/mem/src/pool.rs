//! Hands out buffers from memory that is mapped beforehand, so that a caller need not wait for the system.
#![allow(unsafe_code, reason = "parts of a mapping are owned separately")]

use crate::gaps::Gaps;
use crate::map::MapError;
use crate::region::{PageSize, Region};
use crate::stable_buf::{StableBuf, StableBufMut};
use std::fmt::{self, Debug};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Alignment of pieces in bytes. Source: a cache line, which is also the unit that devices write whole.
const ALIGN_BYTES: usize = 64;

/// An allocator of the user, from which a [`Pool`] takes memory instead of its own mapping.
///
/// # Safety
/// The memory that [`obtain`](PoolAllocator::obtain) returns is mapped, readable, writable and initialised for `len`
/// bytes. No other code reads or writes it until [`release`](PoolAllocator::release) is called with the same two
/// values. Any thread may call both at any time, and they do not panic.
pub unsafe trait PoolAllocator: Send + Sync {
    /// Returns `len` bytes, or `None` if too few are left. `len` is not zero.
    fn obtain(&self, len: usize) -> Option<NonNull<u8>>;

    /// Takes back what `obtain(len)` returned.
    fn release(&self, start: NonNull<u8>, len: usize);
}

/// Options for the memory of a [`Pool`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolOptions {
    /// The size in bytes.
    pub len: usize,
    /// The page size to ask for.
    pub pages: PageSize,
    /// The only NUMA node for its pages; if `None`, the kernel chooses.
    pub node: Option<u32>,
    /// Makes all pages present before the first piece is handed out. No later access faults, but creating the pool
    /// takes the time to clear it.
    pub present: bool,
}

impl PoolOptions {
    /// Options for `len` bytes of small pages on any node, present.
    #[must_use]
    pub const fn new(len: usize) -> Self {
        PoolOptions { len, pages: PageSize::Small, node: None, present: true }
    }
}

/// Memory that is handed out in pieces and returned when they are dropped. Cloning is cheap and yields the same pool.
///
/// The pool takes a piece from the smallest gap that is large enough, the first of equals. It merges free neighbours. A
/// piece begins at a cache line and is rounded up to whole ones.
///
/// ```
/// use telpher_mem::{Pool, PoolOptions};
///
/// let pool = Pool::new(PoolOptions::new(1 << 20))?;
/// let mut piece = pool.obtain(1000).expect("a megabyte is free");
/// piece.fill(7);
/// assert_eq!((piece.len(), pool.lent()), (1000, 1024));
/// drop(piece);
/// assert_eq!(pool.lent(), 0);
/// # Ok::<(), telpher_mem::MapError>(())
/// ```
///
/// # On drop
///
/// Pieces keep the memory of their pool alive; it is freed when the last piece and the last clone are dropped.
#[derive(Clone)]
pub struct Pool(Arc<Owner>);

/// The memory of a pool, to which pieces are returned.
enum Owner {
    /// A mapping of our own. After its creation the region is accessed by address only.
    Mapped {
        /// Held to keep the memory mapped.
        region: Region,
        start: NonNull<u8>,
        gaps: Mutex<Gaps>,
    },
    /// An allocator of the user.
    Supplied {
        supply: Box<dyn PoolAllocator>,
        /// The most bytes that may be lent at a time.
        most: usize,
        /// Bytes lent, including those of a running request.
        lent: AtomicUsize,
    },
}

// SAFETY: the region's bytes are accessed only through pieces, which do not overlap; a lock protects the gaps; a supply
// is Send and Sync by its trait.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

impl Pool {
    /// Creates a pool with pages of its own.
    ///
    /// # Errors
    /// The system's refusal: too many bytes, or a node that does not exist or may not be used.
    pub fn new(options: PoolOptions) -> Result<Pool, MapError> {
        let mut region = Region::new(options.len, options.pages)?;
        if let Some(node) = options.node {
            region.bind(node)?;
        }
        if options.present {
            region.populate()?;
        }
        Ok(Pool::of(region))
    }

    /// Creates a pool that hands out the memory of a region.
    #[must_use]
    pub fn of(mut region: Region) -> Pool {
        let start = NonNull::new(region.as_mut_ptr()).expect("a mapping does not begin at zero");
        let gaps = Mutex::new(Gaps::of(region.len() / ALIGN_BYTES * ALIGN_BYTES));
        Pool(Arc::new(Owner::Mapped { region, start, gaps }))
    }

    /// Creates a pool whose pieces come from the caller's allocator, which alone limits its size.
    #[must_use]
    pub fn supplied(supply: impl PoolAllocator + 'static) -> Pool {
        Pool::supplied_up_to(usize::MAX, supply)
    }

    /// Creates a pool on the caller's allocator that lends at most `most` bytes at a time, for an allocator without a
    /// limit.
    #[must_use]
    pub fn supplied_up_to(most: usize, supply: impl PoolAllocator + 'static) -> Pool {
        Pool(Arc::new(Owner::Supplied { supply: Box::new(supply), most, lent: AtomicUsize::new(0) }))
    }

    /// Returns `len` bytes with arbitrary old contents; `None` if no gap is large enough, or `len` is zero.
    #[must_use]
    pub fn obtain(&self, len: usize) -> Option<PoolBuffer> {
        let start = match &*self.0 {
            _ if len == 0 => return None,
            Owner::Mapped { start, gaps, .. } => {
                let at = lock(gaps).take(len.checked_next_multiple_of(ALIGN_BYTES)?)?;
                // SAFETY: gaps lie in the region, which is mapped as long as its owner lives.
                unsafe { start.add(at) }
            }
            Owner::Supplied { supply, most, lent } => {
                let more = |lent: usize| lent.checked_add(len).filter(|lent| lent <= most);
                // Counted before the request and until the release. A caller that is refused meanwhile must not
                // conclude that nothing is lent. Relaxed (all of these): a mere count.
                lent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
                supply.obtain(len).or_else(|| {
                    lent.fetch_sub(len, Ordering::Relaxed);
                    None
                })?
            }
        };
        start.expose_provenance();
        Some(PoolBuffer { owner: Arc::clone(&self.0), start, len })
    }

    /// Returns its size in bytes; `None` if it uses an allocator without a limit.
    #[must_use]
    pub fn capacity(&self) -> Option<usize> {
        match &*self.0 {
            Owner::Mapped { region, .. } => Some(region.len() / ALIGN_BYTES * ALIGN_BYTES),
            Owner::Supplied { most, .. } => (*most != usize::MAX).then_some(*most),
        }
    }

    /// Returns the address of its memory; `None` if it uses the caller's allocator.
    #[must_use]
    pub fn address(&self) -> Option<u64> {
        match &*self.0 {
            Owner::Mapped { start, .. } => Some(start.addr().get() as u64),
            Owner::Supplied { .. } => None,
        }
    }

    /// Returns how many bytes are lent, rounded up to cache lines if the pool has its own mapping.
    ///
    /// **Staleness**: other threads obtain and return pieces meanwhile.
    #[must_use]
    pub fn lent(&self) -> usize {
        match &*self.0 {
            Owner::Mapped { region, gaps, .. } => region.len() / ALIGN_BYTES * ALIGN_BYTES - lock(gaps).free(),
            Owner::Supplied { lent, .. } => lent.load(Ordering::Relaxed),
        }
    }

    /// True if the pool can never provide `len` contiguous bytes, even when nothing is lent. With the caller's
    /// allocator, which has just refused the request, this is true if no lent piece could be returned to it.
    ///
    /// **Staleness**: as [`lent`](Pool::lent).
    #[must_use]
    pub fn is_too_small_for(&self, len: usize) -> bool {
        let is_asked_in_vain = matches!(&*self.0, Owner::Supplied { .. }) && self.lent() == 0;
        is_asked_in_vain || self.capacity().is_some_and(|capacity| capacity < len)
    }
}

impl Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("capacity", &self.capacity()).field("lent", &self.lent()).finish()
    }
}

/// No panic under the lock leaves the gaps half changed, so a poisoned lock is still usable.
fn lock(gaps: &Mutex<Gaps>) -> MutexGuard<'_, Gaps> {
    gaps.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of a [`Pool`], owned; a slice. Dropping it returns them to the pool.
pub struct PoolBuffer {
    owner: Arc<Owner>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a piece owns its bytes alone, like a Box<[u8]>.
unsafe impl Send for PoolBuffer {}
// SAFETY: shared, its bytes are only read.
unsafe impl Sync for PoolBuffer {}

impl Deref for PoolBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes from `start` belong to this piece alone until it is dropped. They are mapped,
        // because the piece keeps the owner alive, and written only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for PoolBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and exclusive because `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Debug for PoolBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece").field("start", &self.start).field("len", &self.len).finish()
    }
}

impl Drop for PoolBuffer {
    fn drop(&mut self) {
        match &*self.owner {
            Owner::Mapped { start, gaps, .. } => {
                let at = self.start.addr().get() - start.addr().get();
                lock(gaps).give_back(at, self.len.next_multiple_of(ALIGN_BYTES));
            }
            Owner::Supplied { supply, lent, .. } => {
                supply.release(self.start, self.len);
                lent.fetch_sub(self.len, Ordering::Relaxed);
            }
        }
    }
}

// SAFETY: the bytes stay in place until the piece is dropped, even if it moves; only the owner of the piece writes
// them.
unsafe impl StableBuf for PoolBuffer {
    fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }
    fn len(&self) -> usize {
        self.len
    }
}
// SAFETY: a piece owns its bytes alone.
unsafe impl StableBufMut for PoolBuffer {
    fn address_mut(&mut self) -> u64 {
        self.start.addr().get() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pool(len: usize) -> Pool {
        Pool::new(PoolOptions::new(len)).unwrap()
    }

    #[test]
    fn returned_pieces_merge_into_one_gap() {
        let pool = pool(4096);
        let mut pieces: Vec<PoolBuffer> = (0..64).map(|_| pool.obtain(64).unwrap()).collect();
        assert!(pool.obtain(1).is_none());
        // This order frees pieces with two, one and no free neighbour.
        for at in [1, 0, 0, 3, 4, 2] {
            pieces.remove(at);
        }
        pieces.clear();
        assert_eq!((pool.lent(), pool.capacity()), (0, Some(4096)));
        assert_eq!(pool.obtain(4096).map(|piece| piece.address()), pool.address());
    }

    #[test]
    fn zero_and_too_many_bytes_are_refused() {
        let pool = pool(1000);
        assert_eq!(pool.capacity(), Some(960));
        for len in [0, 961, usize::MAX, usize::MAX - 62] {
            assert!(pool.obtain(len).is_none(), "{len}");
        }
        assert!(!pool.is_too_small_for(960) && pool.is_too_small_for(961));
        assert!(Pool::new(PoolOptions::new(0)).unwrap().obtain(1).is_none());
    }

    #[test]
    fn a_piece_outlives_its_pool() {
        let piece = pool(4096).obtain(100).unwrap();
        assert!(piece.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_missing_node_is_refused_with_the_system_error() {
        let error = Pool::new(PoolOptions { node: Some(999), ..PoolOptions::new(4096) }).unwrap_err();
        assert!(error.to_string().contains("bind"), "{error}");
        let absent = Pool::new(PoolOptions { node: Some(u32::MAX), ..PoolOptions::new(4096) });
        assert!(absent.is_err());
    }

    #[test]
    fn a_custom_allocator_gets_back_every_block() {
        struct Counting(Arc<AtomicUsize>);
        // SAFETY: each block is a new, zeroed block of the global allocator.
        unsafe impl PoolAllocator for Counting {
            fn obtain(&self, len: usize) -> Option<NonNull<u8>> {
                self.0.fetch_add(len, Ordering::Relaxed);
                let block = Box::leak(vec![0_u8; len].into_boxed_slice());
                NonNull::new(block.as_mut_ptr())
            }
            fn release(&self, start: NonNull<u8>, len: usize) {
                self.0.fetch_sub(len, Ordering::Relaxed);
                // SAFETY: the block that `obtain` leaked.
                drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(start.as_ptr(), len)) });
            }
        }
        let lent = Arc::new(AtomicUsize::new(0));
        let pool = Pool::supplied(Counting(Arc::clone(&lent)));
        assert!(pool.is_too_small_for(1), "the allocator refused, and nothing is lent");
        let (a, b) = (pool.obtain(10).unwrap(), pool.obtain(20).unwrap());
        assert_eq!((lent.load(Ordering::Relaxed), pool.lent(), pool.is_too_small_for(1)), (30, 30, false));
        drop((a, pool, b));
        assert_eq!(lent.load(Ordering::Relaxed), 0);
        let pool = Pool::supplied_up_to(30, Counting(Arc::clone(&lent)));
        let (a, b) = (pool.obtain(10).unwrap(), pool.obtain(20).unwrap());
        assert!(pool.obtain(1).is_none() && pool.capacity() == Some(30), "all of it is lent");
        drop(a);
        assert!(pool.obtain(11).is_none() && pool.obtain(usize::MAX).is_none() && pool.obtain(10).is_some());
        assert_eq!((lent.load(Ordering::Relaxed), pool.lent()), (20, 20));
        assert!(pool.is_too_small_for(31) && !pool.is_too_small_for(30));
        drop((b, pool));
        assert_eq!(lent.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_custom_block_counts_as_lent_during_both_calls() {
        /// An allocator that checks the count of its own pool.
        struct ChecksCount(Arc<std::sync::OnceLock<Pool>>);
        impl ChecksCount {
            fn is_lent(&self, len: usize) {
                assert_eq!(self.0.get().map(|pool| (pool.lent(), pool.is_too_small_for(1))), Some((len, false)));
            }
        }
        // SAFETY: each block is a new, zeroed block of the global allocator, which is never freed.
        unsafe impl PoolAllocator for ChecksCount {
            fn obtain(&self, len: usize) -> Option<NonNull<u8>> {
                self.is_lent(len);
                (len < 100).then(|| NonNull::from(Box::leak(vec![0_u8; len].into_boxed_slice())).cast())
            }
            fn release(&self, _: NonNull<u8>, len: usize) {
                self.is_lent(len);
            }
        }
        let own = Arc::new(std::sync::OnceLock::new());
        let pool = Pool::supplied(ChecksCount(Arc::clone(&own)));
        own.set(pool.clone()).unwrap();
        drop(pool.obtain(10).unwrap());
        assert!(pool.obtain(100).is_none());
        assert_eq!(pool.lent(), 0);
    }

    proptest! {
        #[test]
        fn no_two_pieces_share_a_byte_and_no_byte_is_lost(steps in prop::collection::vec((0_usize..700, any::<prop::sample::Index>()), 1..200)) {
            let pool = pool(16 << 10);
            let mut kept: Vec<PoolBuffer> = Vec::new();
            for (number, (len, which)) in steps.into_iter().enumerate() {
                if len % 3 == 0 && !kept.is_empty() {
                    kept.swap_remove(which.index(kept.len()));
                } else if let Some(mut piece) = pool.obtain(len) {
                    piece.fill(u8::try_from(number).unwrap());
                    kept.push(piece);
                }
                let mut ranges: Vec<_> = kept.iter().map(|piece| (piece.address(), piece.address() + piece.len() as u64)).collect();
                ranges.sort_unstable();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
                prop_assert!(kept.iter().all(|piece| piece.iter().all(|&byte| byte == piece[0])));
                let lent: usize = kept.iter().map(|piece| piece.len().next_multiple_of(ALIGN_BYTES)).sum();
                prop_assert_eq!(pool.lent(), lent);
            }
            kept.clear();
            prop_assert!(pool.obtain(16 << 10).is_some());
        }
    }
}
