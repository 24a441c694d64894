//! A cache's interface to C: the source memory, the memory for copies, and policy functions.

use super::Raw;
use crate::c_structs::{CachePolicy, ChooseTier, Obtain, Release, Resident, Tier, Worth};
use crate::failure::Refusal;
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, with_exposed_provenance};
use std::sync::Arc;
use telpher_cache::{Eviction, Placement, PlacementRequest};
use telpher_mem::{PoolAllocator, StableBuf};

/// A range of the caller's memory from which blocks are copied.
///
/// Its creator was guaranteed that the range stays mapped and initialised until all clones are dropped, and that no
/// code writes it while it is being copied. A cache drops the clones of a block when it was withdrawn and its handles
/// are gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerMemory {
    address: u64,
    len: usize,
}

impl CallerMemory {
    /// Creates a range, if it is valid.
    ///
    /// # Safety
    ///
    /// The guarantee of [`CallerMemory`], if the range is valid.
    pub(crate) unsafe fn new(start: *const c_void, len: usize) -> Result<CallerMemory, Refusal> {
        // SAFETY: the caller's guarantee is stronger than what a read-only range needs.
        let Raw { address, len } = unsafe { Raw::new("the block", start, len as u64) }?;
        Ok(CallerMemory { address, len })
    }

    /// All addresses: to name blocks, not to read.
    pub(crate) fn everything() -> CallerMemory {
        CallerMemory { address: 0, len: usize::try_from(super::LIMIT).unwrap_or(usize::MAX) }
    }

    /// Its length in bytes.
    pub(crate) fn size(&self) -> usize {
        self.len
    }

    /// A part of it.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Result<CallerMemory, Refusal> {
        if len == 0 {
            return Err(Refusal::Empty("the block"));
        }
        match offset.checked_add(len).filter(|&end| end <= self.len) {
            Some(_) => Ok(CallerMemory { address: self.address + offset as u64, len }),
            None => Err(Refusal::OutsideBlock { offset: offset as u64, len: len as u64, size: self.len as u64 }),
        }
    }
}

/// A range of the caller's memory that belongs to this side alone.
///
/// Its creator was guaranteed that until it is dropped the range stays mapped and initialised, and no other code
/// accesses it during a call.
#[derive(Debug)]
pub(crate) struct CallerBytes(Raw);

impl CallerBytes {
    /// Creates a range, if it is valid.
    ///
    /// # Safety
    ///
    /// The guarantee of [`CallerBytes`], if the range is valid.
    pub(crate) unsafe fn new(start: *mut c_void, len: usize) -> Result<CallerBytes, Refusal> {
        // SAFETY: our caller's guarantee is the callee's.
        Ok(CallerBytes(unsafe { Raw::new("the block", start, len as u64) }?))
    }
}

impl Deref for CallerBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: no other code accesses the range during a call, and this value writes it only through `&mut self`.
        unsafe { self.0.bytes() }
    }
}

impl DerefMut for CallerBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and exclusive because `self` is.
        unsafe { self.0.bytes_mut() }
    }
}

// SAFETY: the two numbers never change, and the bytes behind them are as guaranteed; a cache reads only blocks for
// which a `CallerMemory` was created by `new`.
unsafe impl StableBuf for CallerMemory {
    fn address(&self) -> u64 {
        self.address
    }
    fn len(&self) -> usize {
        self.len
    }
}

/// The argument for C's functions.
#[derive(Clone, Copy, Debug)]
struct User(*mut c_void);

// SAFETY: not dereferenced here; any thread may call C's functions with this argument (`telpher.h`).
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

/// A pair of C functions as an allocator.
#[derive(Debug)]
pub(crate) struct Allocator {
    obtain: Obtain,
    release: Release,
    user: User,
}

impl Allocator {
    /// The functions of a tier that has both; `None` if it has none.
    ///
    /// # Safety
    ///
    /// The functions follow the contract in `telpher.h` as long as the allocator lives.
    pub(crate) unsafe fn of(tier: &Tier) -> Result<Option<Allocator>, Refusal> {
        match (tier.obtain, tier.release) {
            (Some(obtain), Some(release)) => Ok(Some(Allocator { obtain, release, user: User(tier.user) })),
            (None, None) => Ok(None),
            (None, _) => Err(Refusal::Null("the tier's function obtain")),
            (_, None) => Err(Refusal::Null("the tier's function release")),
        }
    }
}

// SAFETY: by the header's contract, guaranteed to `Allocator::of`, memory from `obtain` belongs to the caller alone,
// mapped and writable for `len` bytes until `release`, and any thread may call both. For Rust the contents of foreign
// memory are initialised: bytes that other code left there.
unsafe impl PoolAllocator for Allocator {
    fn obtain(&self, len: usize) -> Option<NonNull<u8>> {
        // SAFETY: guaranteed to `Allocator::of`.
        NonNull::new(unsafe { (self.obtain)(self.user.0, len) }.cast())
    }

    fn release(&self, start: NonNull<u8>, len: usize) {
        // SAFETY: as above; `start` came from `obtain` with this length.
        unsafe { (self.release)(self.user.0, start.as_ptr().cast(), len) }
    }
}

/// C's functions as policies, where they are given.
///
/// # Safety
///
/// The functions follow the contract in `telpher.h` as long as the policies live.
pub(crate) unsafe fn policies(policy: &CachePolicy) -> (Option<Placement>, Option<Eviction>) {
    let user = User(policy.user);
    // SAFETY: our caller's guarantee is the callee's, for both.
    let place =
        policy.place.map(|place| Placement::Chosen(Arc::new(move |asked| unsafe { placed(place, user, asked) })));
    // SAFETY: as above.
    let worth = policy.worth.map(|worth| Eviction::Worth(Arc::new(move |entry| unsafe { valued(worth, user, entry) })));
    (place, worth)
}

/// # Safety
///
/// As for [`policies`].
unsafe fn placed(place: ChooseTier, user: User, asked: &PlacementRequest) -> usize {
    let node = asked.node.and_then(|node| i32::try_from(node).ok()).unwrap_or(-1);
    // SAFETY: guaranteed by our caller; the address came from C, and is not dereferenced.
    unsafe { place(user.0, pointer(asked.address), size(asked.len), node) as usize }
}

/// # Safety
///
/// As for [`policies`].
unsafe fn valued(worth: Worth, user: User, entry: &telpher_cache::Resident) -> u64 {
    let entry = Resident {
        address: pointer(entry.address),
        size: entry.len,
        age: entry.age,
        unread: entry.unread.into(),
        reserved: [0; 2],
    };
    // SAFETY: guaranteed by our caller; the structure lives until the function returns.
    unsafe { worth(user.0, &raw const entry) }
}

/// An address as a C pointer.
pub(crate) fn pointer(address: u64) -> *const c_void {
    with_exposed_provenance(size(address))
}

fn size(value: u64) -> usize {
    // It came from a pointer or a length.
    usize::try_from(value).unwrap_or(usize::MAX)
}
