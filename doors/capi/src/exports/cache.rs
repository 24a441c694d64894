//! Caches: blocks of the caller's memory, copied to faster memory ahead of time.

use super::{answer, change, count, end, hand_out, look, timeout};
use crate::c_structs::{CachePolicy, CacheStats, Tier, tier_flag};
use crate::cache::{Cache, Entry, Prefetch};
use crate::exports::Mover;
use crate::failure::{Failure, Refusal};
use crate::options::{Of, Options};
use crate::raw::{Allocator, CallerMemory, policies};
use std::ffi::{c_char, c_int, c_void};
use telpher_cache::{Cache as Inner, Config, Priority, TierConfig};
use telpher_mem::{PageSize, Pool, PoolOptions};

/// Creates a cache with its tiers and the caller's policies; a mover makes its copies.
///
/// # Safety
///
/// See the [module's rules](crate); `tiers` is valid for `count` structures, and the functions of tiers and policy
/// follow the header's contract as long as the cache or any of its entries exists, or the mover has anything
/// outstanding.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_new(
    cache: *mut *mut Cache,
    mover: *const Mover,
    tiers: *const Tier,
    count: u32,
    policy: *const CachePolicy,
    options: *const c_char,
) -> c_int {
    let make = || {
        // SAFETY: guaranteed by our caller.
        let mover = unsafe { look("the mover", mover) }?;
        // SAFETY: guaranteed by our caller.
        let Options { cache: options, .. } = Options::parse(Of::Cache, unsafe { super::options(options) }?)?;
        if tiers.is_null() && count > 0 {
            return Err(Refusal::Null("the list of tiers").into());
        }
        let mut config = Config::new(Vec::<TierConfig>::new());
        for index in 0..count as usize {
            // SAFETY: `index < count`, and valid for that many as our caller guarantees.
            let tier = unsafe { look("the tier", tiers.add(index)) }?;
            // SAFETY: guaranteed by our caller.
            config.tiers.push(TierConfig { near: near_node(tier), pool: unsafe { pool_of(tier) }? });
        }
        (config.placement, config.eviction) = (options.placement, options.eviction);
        config.in_flight = options.in_flight.unwrap_or(config.in_flight);
        // SAFETY: guaranteed by our caller.
        if let Some(policy) = unsafe { policy.as_ref() } {
            if policy.reserved != [0; 5] {
                return Err(Refusal::Reserved("cache's policy").into());
            }
            // SAFETY: guaranteed by our caller.
            let (placement, eviction) = unsafe { policies(policy) };
            config.placement = placement.unwrap_or(config.placement);
            config.eviction = eviction.unwrap_or(config.eviction);
        }
        Ok(Cache::new(Inner::new(mover.inner.clone(), config)?))
    };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(cache, make) })
}

/// The node near which a tier's memory is, if the caller says so.
fn near_node(tier: &Tier) -> Option<u32> {
    (tier.flags & tier_flag::TELPHER_TIER_NEAR != 0).then_some(tier.near_node)
}

/// Converts a tier's memory.
///
/// # Safety
///
/// The tier's functions follow the header's contract as long as the pool lives.
pub(super) unsafe fn pool_of(tier: &Tier) -> Result<Pool, Failure> {
    use tier_flag::{TELPHER_TIER_ABSENT, TELPHER_TIER_HUGE_PAGES, TELPHER_TIER_NEAR, TELPHER_TIER_ON_NODE};
    let has = |flag| tier.flags & flag != 0;
    if tier.reserved != 0 || tier.reserved2 != [0; 3] {
        return Err(Refusal::Reserved("tier").into());
    }
    let known = TELPHER_TIER_ON_NODE | TELPHER_TIER_NEAR | TELPHER_TIER_HUGE_PAGES | TELPHER_TIER_ABSENT;
    if tier.flags & !known != 0 {
        return Err(Refusal::TierFlags(tier.flags & !known).into());
    }
    let size = usize::try_from(tier.size).map_err(|_| Refusal::TooLong { what: "the tier", len: tier.size })?;
    // SAFETY: our caller's guarantee is the callee's.
    Ok(match unsafe { Allocator::of(tier) }? {
        Some(_) if tier.flags & !TELPHER_TIER_NEAR != 0 => return Err(Refusal::TierTwice.into()),
        Some(allocator) if tier.size == 0 => Pool::supplied(allocator),
        Some(allocator) => Pool::supplied_up_to(size, allocator),
        None if tier.size == 0 => return Err(Refusal::TierEmpty.into()),
        None => Pool::new(PoolOptions {
            len: size,
            pages: if has(TELPHER_TIER_HUGE_PAGES) { PageSize::Huge } else { PageSize::Small },
            node: has(TELPHER_TIER_ON_NODE).then_some(tier.node),
            present: !has(TELPHER_TIER_ABSENT),
        })?,
    })
}

/// Frees a cache's handle, after the last read of the caller's memory for it.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_free(cache: *mut Cache) -> c_int {
    if cache.is_null() {
        return 0;
    }
    answer(|| {
        // SAFETY: guaranteed by our caller.
        unsafe { look("the cache", cache) }?.withdraw(CallerMemory::everything())?;
        // SAFETY: came from `telpher_cache_new` and is not used any more (guaranteed by our caller).
        drop(unsafe { Box::from_raw(cache) });
        Ok(0)
    })
}

/// Returns the entry that contains a block, or a new one whose copy starts.
///
/// # Safety
///
/// See the [module's rules](crate); and the block is lent until it was withdrawn and its entries' handles were freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_access(
    cache: *const Cache,
    start: *const c_void,
    len: usize,
    entry: *mut *mut Entry,
) -> c_int {
    // SAFETY: guaranteed by our caller, for all three.
    answer(|| unsafe { hand_out(entry, || Ok(look("the cache", cache)?.access(CallerMemory::new(start, len)?)?)) })
}

/// Like [`telpher_cache_access`], in a tier chosen by the caller.
///
/// # Safety
///
/// As for [`telpher_cache_access`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_access_in(
    cache: *const Cache,
    tier: u32,
    start: *const c_void,
    len: usize,
    entry: *mut *mut Entry,
) -> c_int {
    // SAFETY: guaranteed by our caller, for all three.
    let access = || unsafe { Ok(look("the cache", cache)?.access_in(tier as usize, CallerMemory::new(start, len)?)?) };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(entry, access) })
}

/// Returns the entry that contains a block and 1, or 0 if there is none.
///
/// # Safety
///
/// As for [`telpher_cache_access`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_peek(
    cache: *const Cache,
    start: *const c_void,
    len: usize,
    entry: *mut *mut Entry,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let place = unsafe { change("the output pointer for the handle", entry) }?;
        *place = std::ptr::null_mut();
        // SAFETY: guaranteed by our caller, for both.
        let Some(found) = (unsafe { look("the cache", cache)?.peek(CallerMemory::new(start, len)?)? }) else {
            return Ok(0);
        };
        *place = Box::into_raw(Box::new(found));
        Ok(1)
    })
}

/// Announces that a block will be accessed.
///
/// # Safety
///
/// As for [`telpher_cache_access`]; and `prefetch` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_prefetch(
    cache: *const Cache,
    start: *const c_void,
    len: usize,
    priority: u32,
    prefetch: *mut *mut Prefetch,
) -> c_int {
    let ask = || {
        // SAFETY: guaranteed by our caller.
        let cache = unsafe { look("the cache", cache) }?;
        let priority = u8::try_from(priority).map_err(|_| Refusal::Priority(priority))?;
        // SAFETY: guaranteed by our caller.
        Ok(cache.prefetch(unsafe { CallerMemory::new(start, len) }?, Priority(priority))?)
    };
    // SAFETY: guaranteed by our caller.
    answer(|| if prefetch.is_null() { ask().map(|_| 0) } else { unsafe { hand_out(prefetch, ask) } })
}

/// Removes the entries with any of these bytes and returns how many. Afterwards no copy reads them.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_invalidate(cache: *const Cache, start: *const c_void, len: usize) -> c_int {
    // SAFETY: guaranteed by our caller, for both.
    answer(|| Ok(count(unsafe { look("the cache", cache)?.withdraw(CallerMemory::new(start, len)?) }?)))
}

/// Returns 1 if a copy of a block would lie on another NUMA node than the block, 0 if not.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_apart(cache: *const Cache, start: *const c_void, len: usize) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller, for both.
        let apart = unsafe { look("the cache", cache)?.is_apart(CallerMemory::new(start, len)?) }?;
        Ok(apart.ok_or(Refusal::NodeUnknown)?.into())
    })
}

/// Removes the unused entries; returns how many.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_flush(cache: *const Cache) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| Ok(count(unsafe { look("the cache", cache) }?.flush())))
}

/// Removes all entries; returns how many.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_clear(cache: *const Cache) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| Ok(count(unsafe { look("the cache", cache) }?.clear())))
}

/// Starts copies that may start, and runs devices without a thread of their own.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_drive(cache: *const Cache) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        unsafe { look("the cache", cache) }?.drive();
        Ok(0)
    })
}

/// Returns a cache's counters and state.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_stats(cache: *const Cache, stats: *mut CacheStats) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let cache = unsafe { look("the cache", cache) }?;
        if stats.is_null() {
            return Err(Refusal::Null("the output pointer for the statistics").into());
        }
        // SAFETY: not null, valid for a write as our caller guarantees.
        unsafe { stats.write(cache.stats()) };
        Ok(0)
    })
}

/// Returns the current address of an entry's bytes; NULL for NULL.
///
/// # Safety
///
/// See the [module's rules](crate); and `fast` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_entry_location(entry: *const Entry, fast: *mut c_int) -> *const c_void {
    // SAFETY: guaranteed by our caller. Nothing here panics.
    let (at, is_fast) = unsafe { entry.as_ref() }.map_or((std::ptr::null(), false), Entry::location);
    // SAFETY: guaranteed by our caller.
    if let Some(fast) = unsafe { fast.as_mut() } {
        *fast = is_fast.into();
    }
    at
}

/// Returns the size of an entry's block in bytes; 0 for NULL.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_entry_size(entry: *const Entry) -> usize {
    // SAFETY: guaranteed by our caller.
    unsafe { entry.as_ref() }.map_or(0, Entry::size)
}

/// Returns 1 if there is nothing left to wait for, otherwise 0; makes one step of progress.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_entry_done(entry: *const Entry) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| Ok(unsafe { look("the entry", entry) }?.copy_has_ended().into()))
}

/// Waits until there is nothing left to wait for (1) or a time has passed (0).
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_entry_wait(entry: *const Entry, timeout_ns: i64) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| Ok(unsafe { look("the entry", entry) }?.wait(timeout(timeout_ns)?).into()))
}

/// Returns 1 if the block was invalidated since, otherwise 0.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_entry_stale(entry: *const Entry) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| Ok(unsafe { look("the entry", entry) }?.is_stale().into()))
}

/// Creates another handle to the same entry.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_entry_share(entry: *const Entry, other: *mut *mut Entry) -> c_int {
    // SAFETY: guaranteed by our caller, for both.
    answer(|| unsafe { hand_out(other, || Ok(look("the entry", entry)?.share())) })
}

/// Frees a handle to an entry.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_entry_free(entry: *mut Entry) {
    // SAFETY: guaranteed by our caller.
    unsafe { end(entry) }
}

/// Returns 1 if the copy is complete, 0 if not; makes one step of progress.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_prefetch_done(prefetch: *const Prefetch) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| Ok(unsafe { look("the prefetch", prefetch) }?.is_there().into()))
}

/// Cancels a prefetch and frees the handle; returns 1 if its copy had not started, 0 if it continues.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_prefetch_cancel(prefetch: *mut Prefetch) -> c_int {
    if prefetch.is_null() {
        return 0;
    }
    // SAFETY: came from `telpher_cache_prefetch` and is not used any more (guaranteed by our caller).
    answer(|| Ok(unsafe { Box::from_raw(prefetch) }.cancel().into()))
}

/// Frees a handle; the prefetch continues.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_prefetch_free(prefetch: *mut Prefetch) {
    // SAFETY: guaranteed by our caller.
    unsafe { end(prefetch) }
}
