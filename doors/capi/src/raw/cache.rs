//! A cache's dealings with C: memory to make copies of, memory to make them in, and functions that decide.

use super::Raw;
use crate::failure::Refusal;
use crate::words::{CachePolicy, Obtain, Place, Release, Resident, Tier, Worth};
use std::ffi::c_void;
use std::ptr::{NonNull, with_exposed_provenance};
use std::sync::Arc;
use telpher_cache::{Asked, Eviction, Placement};
use telpher_mem::{StableBuf, Supply};

/// A range of the caller's memory that blocks are copied of.
///
/// Whoever makes one has been promised that until all clones of it are dropped the range stays mapped and initialised, and nobody
/// writes it while a copy of it is made. A cache drops the clones of a block when it was withdrawn and its handles are gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent {
    address: u64,
    len: usize,
}

impl Lent {
    /// A range, if it is one.
    ///
    /// # Safety
    ///
    /// The promise of [`Lent`], if the range is one at all.
    pub(crate) unsafe fn new(start: *const c_void, len: usize) -> Result<Lent, Refusal> {
        // SAFETY: our caller's promise says more than that of a range that is only read.
        let Raw { address, len } = unsafe { Raw::new("the block", start, len as u64) }?;
        Ok(Lent { address, len })
    }

    /// All addresses there are: to name blocks by, not to read.
    pub(crate) fn everything() -> Lent {
        Lent { address: 0, len: usize::try_from(super::LIMIT).unwrap_or(usize::MAX) }
    }

    /// Its length in bytes.
    pub(crate) fn size(&self) -> usize {
        self.len
    }
}

// SAFETY: the two numbers never change, and the bytes behind them are what the promise says; a cache reads only blocks that somebody
// made a `Lent` of by `new`.
unsafe impl StableBuf for Lent {
    fn address(&self) -> u64 {
        self.address
    }
    fn len(&self) -> usize {
        self.len
    }
}

/// What C's functions are called with.
#[derive(Clone, Copy, Debug)]
struct User(*mut c_void);

// SAFETY: not looked at here; C's functions may be called by any thread (`telpher.h`), with this argument.
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
    /// The functions of a tier that has both; nothing if it has none.
    ///
    /// # Safety
    ///
    /// The functions keep the contract that `telpher.h` has for them, as long as the allocator lives.
    pub(crate) unsafe fn of(tier: &Tier) -> Result<Option<Allocator>, Refusal> {
        match (tier.obtain, tier.release) {
            (Some(obtain), Some(release)) => Ok(Some(Allocator { obtain, release, user: User(tier.user) })),
            (None, None) => Ok(None),
            (None, _) => Err(Refusal::Null("the tier's function obtain")),
            (_, None) => Err(Refusal::Null("the tier's function release")),
        }
    }
}

// SAFETY: by the contract of the header that `Allocator::of` was promised, what `obtain` returns is the caller's alone, mapped and
// writable for `len` bytes until `release`, and both may be called by any thread. Whatever lies in memory of a foreign allocator is
// initialised as far as Rust can know: bytes that somebody else left.
unsafe impl Supply for Allocator {
    fn obtain(&self, len: usize) -> Option<NonNull<u8>> {
        // SAFETY: the promise of `Allocator::of`.
        NonNull::new(unsafe { (self.obtain)(self.user.0, len) }.cast())
    }

    fn release(&self, start: NonNull<u8>, len: usize) {
        // SAFETY: as above; `start` came from `obtain` with this length.
        unsafe { (self.release)(self.user.0, start.as_ptr().cast(), len) }
    }
}

/// C's functions as policies, where there are any.
///
/// # Safety
///
/// The functions keep the contract that `telpher.h` has for them, as long as the policies live.
pub(crate) unsafe fn policies(policy: &CachePolicy) -> (Option<Placement>, Option<Eviction>) {
    let user = User(policy.user);
    // SAFETY: our caller's promise is the callee's, for both.
    let place =
        policy.place.map(|place| Placement::Chosen(Arc::new(move |asked| unsafe { placed(place, user, asked) })));
    // SAFETY: as above.
    let worth = policy.worth.map(|worth| Eviction::Worth(Arc::new(move |entry| unsafe { valued(worth, user, entry) })));
    (place, worth)
}

/// # Safety
///
/// As for [`policies`].
unsafe fn placed(place: Place, user: User, asked: &Asked) -> usize {
    let node = asked.node.and_then(|node| i32::try_from(node).ok()).unwrap_or(-1);
    // SAFETY: our caller's promise; the address is one that C passed in, and is not looked at.
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
    // SAFETY: our caller's promise; the structure lives until the function returns.
    unsafe { worth(user.0, &raw const entry) }
}

/// An address as C has it.
pub(crate) fn pointer(address: u64) -> *const c_void {
    with_exposed_provenance(size(address))
}

fn size(value: u64) -> usize {
    // Came from a pointer or a length.
    usize::try_from(value).unwrap_or(usize::MAX)
}
