//! Memory lent out in pieces: a tier of it, mapped beforehand, so that who needs a block does not wait for the system.
#![allow(unsafe_code, reason = "pieces of a mapping are owned apart from each other")]

use crate::map::MapError;
use crate::region::{PageSize, Region};
use crate::stable::{StableBuf, StableBufMut};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Pieces begin at multiples of this many bytes. Source: a cache line, which is also what devices write whole.
const GRAIN: usize = 64;

/// Where pieces come from if not from a mapping of ours: a user's own allocator.
///
/// # Safety
/// What [`obtain`](Supply::obtain) returns is mapped, readable, writable and initialised for `len` bytes, and neither read nor
/// written by anybody else until [`release`](Supply::release) was called with the same two values. Both may be called by any thread
/// at any time, and do not panic.
pub unsafe trait Supply: Send + Sync {
    /// `len` bytes; nothing if there are none left. `len` is not zero.
    fn obtain(&self, len: usize) -> Option<NonNull<u8>>;

    /// Takes back what `obtain(len)` returned.
    fn release(&self, start: NonNull<u8>, len: usize);
}

/// How the memory of a [`Pool`] is obtained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolOptions {
    /// Bytes.
    pub len: usize,
    /// Which pages are asked for.
    pub pages: PageSize,
    /// The only NUMA node its pages may be on; the kernel's choice otherwise.
    pub node: Option<u32>,
    /// All pages are there before anything is lent: no later access faults, but making it takes the time of clearing it.
    pub present: bool,
}

impl PoolOptions {
    /// `len` bytes of small pages anywhere, present.
    #[must_use]
    pub const fn new(len: usize) -> Self {
        PoolOptions { len, pages: PageSize::Small, node: None, present: true }
    }
}

/// Memory that is lent out in pieces and taken back when they are dropped. Cheap to clone; every clone is the same pool.
///
/// Of the gaps that are large enough the smallest is taken, the first of equals, and neighbours that are free become one. A piece
/// begins at a cache line and is rounded up to whole ones.
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
/// Pieces keep the memory of their pool; it goes when the last of them does.
#[derive(Clone)]
pub struct Pool(Arc<Owner>);

/// What a piece needs to go back.
enum Owner {
    /// A mapping of ours. The region is reached by address only from here on.
    Mapped {
        /// Kept mapped.
        region: Region,
        start: NonNull<u8>,
        gaps: Mutex<Gaps>,
    },
    /// Somebody else's.
    Supplied {
        supply: Box<dyn Supply>,
        /// Bytes that it may have given and not got back.
        most: usize,
        /// Bytes that it has given and not got back, or is asked for.
        lent: AtomicUsize,
    },
}

// SAFETY: the region's bytes are reached only through pieces, each of which has its own; the gaps are behind a lock; a supply is
// both by its trait.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}

impl Pool {
    /// A pool of its own pages.
    ///
    /// # Errors
    /// The system's refusal: too much asked for, or a node that does not exist or may not be used.
    pub fn new(options: PoolOptions) -> Result<Pool, MapError> {
        let mut region = Region::new(options.len, options.pages)?;
        if let Some(node) = options.node {
            region.bind(node)?;
        }
        if options.present {
            region.populate()?;
        }
        let start = NonNull::new(region.as_mut_ptr()).expect("a mapping does not begin at zero");
        let gaps = Mutex::new(Gaps::of(options.len / GRAIN * GRAIN));
        Ok(Pool(Arc::new(Owner::Mapped { region, start, gaps })))
    }

    /// A pool whose pieces come from an allocator of one's own, and which is as large as that lets it be.
    #[must_use]
    pub fn supplied(supply: impl Supply + 'static) -> Pool {
        Pool::supplied_up_to(usize::MAX, supply)
    }

    /// The same with at most so many bytes lent at a time, for an allocator that always has more.
    #[must_use]
    pub fn supplied_up_to(most: usize, supply: impl Supply + 'static) -> Pool {
        Pool(Arc::new(Owner::Supplied { supply: Box::new(supply), most, lent: AtomicUsize::new(0) }))
    }

    /// `len` bytes with whatever was in them before; nothing if no gap is large enough, or `len` is zero.
    #[must_use]
    pub fn obtain(&self, len: usize) -> Option<Piece> {
        let start = match &*self.0 {
            _ if len == 0 => return None,
            Owner::Mapped { start, gaps, .. } => {
                let at = lock(gaps).take(len.checked_next_multiple_of(GRAIN)?)?;
                // SAFETY: gaps lie in the region, which is mapped as long as its owner lives.
                unsafe { start.add(at) }
            }
            Owner::Supplied { supply, most, lent } => {
                let more = |lent: usize| lent.checked_add(len).filter(|lent| lent <= most);
                // Counted before it is there, and until it is back: who was refused meanwhile must not take it that nothing is lent.
                // Relaxed (all of these): counted, nothing more.
                lent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
                supply.obtain(len).or_else(|| {
                    lent.fetch_sub(len, Ordering::Relaxed);
                    None
                })?
            }
        };
        start.expose_provenance();
        Some(Piece { owner: Arc::clone(&self.0), start, len })
    }

    /// Bytes it has in all; nothing if its allocator is somebody else's and may give any number.
    #[must_use]
    pub fn capacity(&self) -> Option<usize> {
        match &*self.0 {
            Owner::Mapped { region, .. } => Some(region.len() / GRAIN * GRAIN),
            Owner::Supplied { most, .. } => (*most != usize::MAX).then_some(*most),
        }
    }

    /// Where its memory begins; nothing if its allocator is somebody else's.
    #[must_use]
    pub fn address(&self) -> Option<u64> {
        match &*self.0 {
            Owner::Mapped { start, .. } => Some(start.addr().get() as u64),
            Owner::Supplied { .. } => None,
        }
    }

    /// Bytes of it that are lent, rounded up to cache lines if it has a mapping of its own.
    ///
    /// **Staleness**: other threads obtain and give back meanwhile.
    #[must_use]
    pub fn lent(&self) -> usize {
        match &*self.0 {
            Owner::Mapped { region, gaps, .. } => region.len() / GRAIN * GRAIN - lock(gaps).free,
            Owner::Supplied { lent, .. } => lent.load(Ordering::Relaxed),
        }
    }

    /// It never has `len` bytes in a row, also when nothing is lent. Of somebody else's allocator, which was just asked in vain, this is
    /// true if there is nothing that it could be given back.
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

/// No panic happens under the lock that leaves gaps half changed; a poisoned one is as good as another.
fn lock(gaps: &Mutex<Gaps>) -> MutexGuard<'_, Gaps> {
    gaps.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of a [`Pool`], owned; a slice. They go back when it is dropped.
pub struct Piece {
    owner: Arc<Owner>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a piece owns its bytes alone, like a Box<[u8]>.
unsafe impl Send for Piece {}
// SAFETY: shared, its bytes are only read.
unsafe impl Sync for Piece {}

impl Deref for Piece {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes from `start` are this piece's alone until it is dropped, and mapped, since it keeps the
        // owner; they are written only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Piece {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and exclusive because `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Piece").field("start", &self.start).field("len", &self.len).finish()
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        match &*self.owner {
            Owner::Mapped { start, gaps, .. } => {
                let at = self.start.addr().get() - start.addr().get();
                lock(gaps).give_back(at, self.len.next_multiple_of(GRAIN));
            }
            Owner::Supplied { supply, lent, .. } => {
                supply.release(self.start, self.len);
                lent.fetch_sub(self.len, Ordering::Relaxed);
            }
        }
    }
}

// SAFETY: the bytes stay where they are until the piece is dropped, whoever moves it; only the owner of the piece writes them.
unsafe impl StableBuf for Piece {
    fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }
    fn len(&self) -> usize {
        self.len
    }
}
// SAFETY: a piece owns its bytes alone.
unsafe impl StableBufMut for Piece {
    fn address_mut(&mut self) -> u64 {
        self.start.addr().get() as u64
    }
}

/// What is free of a range, in whole grains.
#[derive(Debug, Default)]
struct Gaps {
    /// Bytes by where they begin. No two touch.
    by_start: BTreeMap<usize, usize>,
    /// The same as (bytes, start).
    by_len: BTreeSet<(usize, usize)>,
    /// Bytes in all.
    free: usize,
}

impl Gaps {
    /// One gap.
    fn of(len: usize) -> Gaps {
        let mut gaps = Gaps::default();
        if len > 0 {
            gaps.insert(0, len);
            gaps.free = len;
        }
        gaps
    }

    fn insert(&mut self, start: usize, len: usize) {
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
    }

    fn remove(&mut self, start: usize, len: usize) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }

    /// Takes `len` bytes from the smallest gap that has them.
    fn take(&mut self, len: usize) -> Option<usize> {
        let &(gap, start) = self.by_len.range((len, 0)..).next()?;
        self.remove(start, gap);
        if gap > len {
            self.insert(start + len, gap - len);
        }
        self.free -= len;
        Some(start)
    }

    fn give_back(&mut self, mut start: usize, mut len: usize) {
        self.free += len;
        if let Some((&before, &gap)) = self.by_start.range(..start).next_back()
            && before + gap == start
        {
            self.remove(before, gap);
            (start, len) = (before, len + gap);
        }
        if let Some(&gap) = self.by_start.get(&(start + len)) {
            self.remove(start + len, gap);
            len += gap;
        }
        self.insert(start, len);
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
    fn what_is_given_back_becomes_one_gap_again() {
        let pool = pool(4096);
        let mut pieces: Vec<Piece> = (0..64).map(|_| pool.obtain(64).unwrap()).collect();
        assert!(pool.obtain(1).is_none());
        // In an order in which each has both, one or no free neighbour.
        for at in [1, 0, 0, 3, 4, 2] {
            pieces.remove(at);
        }
        pieces.clear();
        assert_eq!((pool.lent(), pool.capacity()), (0, Some(4096)));
        assert_eq!(pool.obtain(4096).map(|piece| piece.address()), pool.address());
    }

    #[test]
    fn nothing_and_too_much_are_refused() {
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
    fn a_node_that_is_not_there_is_refused_with_the_machine_s_word() {
        let error = Pool::new(PoolOptions { node: Some(999), ..PoolOptions::new(4096) }).unwrap_err();
        assert!(error.to_string().contains("bind"), "{error}");
        let absent = Pool::new(PoolOptions { node: Some(u32::MAX), ..PoolOptions::new(4096) });
        assert!(absent.is_err());
    }

    #[test]
    fn an_allocator_of_one_s_own_gets_back_what_it_gave() {
        struct Counting(Arc<AtomicUsize>);
        // SAFETY: each is a new block of the global allocator, zeroed.
        unsafe impl Supply for Counting {
            fn obtain(&self, len: usize) -> Option<NonNull<u8>> {
                self.0.fetch_add(len, Ordering::Relaxed);
                let block = Box::leak(vec![0_u8; len].into_boxed_slice());
                NonNull::new(block.as_mut_ptr())
            }
            fn release(&self, start: NonNull<u8>, len: usize) {
                self.0.fetch_sub(len, Ordering::Relaxed);
                // SAFETY: what `obtain` leaked.
                drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(start.as_ptr(), len)) });
            }
        }
        let lent = Arc::new(AtomicUsize::new(0));
        let pool = Pool::supplied(Counting(Arc::clone(&lent)));
        assert!(pool.is_too_small_for(1), "asked in vain, and nothing to be given back");
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
    fn what_an_allocator_gives_counts_as_lent_from_before_until_after() {
        /// Looks at its own pool.
        struct Looks(Arc<std::sync::OnceLock<Pool>>);
        impl Looks {
            fn is_lent(&self, len: usize) {
                assert_eq!(self.0.get().map(|pool| (pool.lent(), pool.is_too_small_for(1))), Some((len, false)));
            }
        }
        // SAFETY: each is a new block of the global allocator, zeroed, which is never taken back.
        unsafe impl Supply for Looks {
            fn obtain(&self, len: usize) -> Option<NonNull<u8>> {
                self.is_lent(len);
                (len < 100).then(|| NonNull::from(Box::leak(vec![0_u8; len].into_boxed_slice())).cast())
            }
            fn release(&self, _: NonNull<u8>, len: usize) {
                self.is_lent(len);
            }
        }
        let own = Arc::new(std::sync::OnceLock::new());
        let pool = Pool::supplied(Looks(Arc::clone(&own)));
        own.set(pool.clone()).unwrap();
        drop(pool.obtain(10).unwrap());
        assert!(pool.obtain(100).is_none());
        assert_eq!(pool.lent(), 0);
    }

    proptest! {
        #[test]
        fn no_two_pieces_share_a_byte_and_no_byte_is_lost(steps in prop::collection::vec((0_usize..700, any::<prop::sample::Index>()), 1..200)) {
            let pool = pool(16 << 10);
            let mut kept: Vec<Piece> = Vec::new();
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
                let lent: usize = kept.iter().map(|piece| piece.len().next_multiple_of(GRAIN)).sum();
                prop_assert_eq!(pool.lent(), lent);
            }
            kept.clear();
            prop_assert!(pool.obtain(16 << 10).is_some());
        }
    }
}
