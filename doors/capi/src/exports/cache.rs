//! Caches: blocks of the caller's memory, copied to faster memory ahead of time.

use super::{answer, change, count, end, hand_out, look, timeout};
use crate::cache::{Cache, Entry, Prefetch};
use crate::exports::Mover;
use crate::failure::{Failure, Refusal};
use crate::options::{Of, Options};
use crate::raw::{Allocator, Lent, policies};
use crate::words::{CachePolicy, CacheStats, Tier, tier_flag};
use std::ffi::{c_char, c_int, c_void};
use telpher_cache::{Cache as Inner, Config, Priority, TierConfig};
use telpher_mem::{PageSize, Pool, PoolOptions};

/// A cache whose copies a mover makes, with its tiers and the caller's policies.
///
/// # Safety
///
/// See the [module's rules](crate); `tiers` is valid for `count` structures, and the functions of tiers and policy keep
/// the header's contract as long as the cache or any of its entries is there, or the mover has anything outstanding.
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
        // SAFETY: our caller's promise.
        let mover = unsafe { look("the mover", mover) }?;
        // SAFETY: our caller's promise.
        let Options { cache: options, .. } = Options::parse(Of::Cache, unsafe { super::options(options) }?)?;
        if tiers.is_null() && count > 0 {
            return Err(Refusal::Null("the list of tiers").into());
        }
        let mut config = Config::new(Vec::<TierConfig>::new());
        for index in 0..count as usize {
            // SAFETY: `index < count`, and valid for so many by our caller's promise.
            let tier = unsafe { look("the tier", tiers.add(index)) }?;
            // SAFETY: our caller's promise.
            config.tiers.push(unsafe { tier_of(tier) }?);
        }
        (config.placement, config.eviction) = (options.placement, options.eviction);
        config.in_flight = options.in_flight.unwrap_or(config.in_flight);
        // SAFETY: our caller's promise.
        if let Some(policy) = unsafe { policy.as_ref() } {
            if policy.reserved != [0; 5] {
                return Err(Refusal::Reserved("cache's policy").into());
            }
            // SAFETY: our caller's promise.
            let (placement, eviction) = unsafe { policies(policy) };
            config.placement = placement.unwrap_or(config.placement);
            config.eviction = eviction.unwrap_or(config.eviction);
        }
        Ok(Cache::new(Inner::new(mover.inner.clone(), config)?))
    };
    // SAFETY: our caller's promise.
    answer(|| unsafe { hand_out(cache, make) })
}

/// Memory as a tier has it.
///
/// # Safety
///
/// The tier's functions keep the header's contract as long as the pool lives.
unsafe fn tier_of(tier: &Tier) -> Result<TierConfig, Failure> {
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
    // SAFETY: our caller's promise is the callee's.
    let pool = match unsafe { Allocator::of(tier) }? {
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
    };
    Ok(TierConfig { pool, near: has(TELPHER_TIER_NEAR).then_some(tier.near_node) })
}

/// Ends a cache's handle, once nobody reads memory of the caller's for it.
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
        // SAFETY: our caller's promise.
        unsafe { look("the cache", cache) }?.withdraw(Lent::everything())?;
        // SAFETY: came from `telpher_cache_new` and is used no more (our caller's promise).
        drop(unsafe { Box::from_raw(cache) });
        Ok(0)
    })
}

/// The entry that has a block, or a new one whose copy begins.
///
/// # Safety
///
/// See the [module's rules](crate); and the block is lent until it was withdrawn and its entries' handles have ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_access(
    cache: *const Cache,
    start: *const c_void,
    len: usize,
    entry: *mut *mut Entry,
) -> c_int {
    // SAFETY: our caller's promise, for all three.
    answer(|| unsafe { hand_out(entry, || Ok(look("the cache", cache)?.access(Lent::new(start, len)?)?)) })
}

/// The same in a tier of the caller's choice.
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
    // SAFETY: our caller's promise, for all three.
    let access = || unsafe { Ok(look("the cache", cache)?.access_in(tier as usize, Lent::new(start, len)?)?) };
    // SAFETY: our caller's promise.
    answer(|| unsafe { hand_out(entry, access) })
}

/// The entry that has a block, if there is one; 1 if so, 0 if not.
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
        // SAFETY: our caller's promise.
        let place = unsafe { change("the place for the handle", entry) }?;
        *place = std::ptr::null_mut();
        // SAFETY: our caller's promise, for both.
        let Some(found) = (unsafe { look("the cache", cache)?.peek(Lent::new(start, len)?)? }) else { return Ok(0) };
        *place = Box::into_raw(Box::new(found));
        Ok(1)
    })
}

/// Says that a block will be asked for.
///
/// # Safety
///
/// As for [`telpher_cache_access`]; and `prefetch` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_prefetch(
    cache: *const Cache,
    start: *const c_void,
    len: usize,
    priority: u32,
    prefetch: *mut *mut Prefetch,
) -> c_int {
    let ask = || {
        // SAFETY: our caller's promise.
        let cache = unsafe { look("the cache", cache) }?;
        let priority = u8::try_from(priority).map_err(|_| Refusal::Priority(priority))?;
        // SAFETY: our caller's promise.
        Ok(cache.prefetch(unsafe { Lent::new(start, len) }?, Priority(priority))?)
    };
    // SAFETY: our caller's promise.
    answer(|| if prefetch.is_null() { ask().map(|_| 0) } else { unsafe { hand_out(prefetch, ask) } })
}

/// Forgets what has any of these bytes; how many. Nobody reads them for the cache any more then.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_invalidate(cache: *const Cache, start: *const c_void, len: usize) -> c_int {
    // SAFETY: our caller's promise, for both.
    answer(|| Ok(count(unsafe { look("the cache", cache)?.withdraw(Lent::new(start, len)?) }?)))
}

/// 1 if a copy of a block would lie on another NUMA node than the block, 0 if not.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_apart(cache: *const Cache, start: *const c_void, len: usize) -> c_int {
    answer(|| {
        // SAFETY: our caller's promise, for both.
        let apart = unsafe { look("the cache", cache)?.is_apart(Lent::new(start, len)?) }?;
        Ok(apart.ok_or(Refusal::NodeUnknown)?.into())
    })
}

/// Forgets the entries nobody uses; how many.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_flush(cache: *const Cache) -> c_int {
    // SAFETY: our caller's promise.
    answer(|| Ok(count(unsafe { look("the cache", cache) }?.flush())))
}

/// Forgets all entries; how many.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_clear(cache: *const Cache) -> c_int {
    // SAFETY: our caller's promise.
    answer(|| Ok(count(unsafe { look("the cache", cache) }?.clear())))
}

/// Begins copies that may begin, and lets devices without a thread work.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_drive(cache: *const Cache) -> c_int {
    answer(|| {
        // SAFETY: our caller's promise.
        unsafe { look("the cache", cache) }?.drive();
        Ok(0)
    })
}

/// What a cache has done and has.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_cache_stats(cache: *const Cache, stats: *mut CacheStats) -> c_int {
    answer(|| {
        // SAFETY: our caller's promise.
        let cache = unsafe { look("the cache", cache) }?;
        if stats.is_null() {
            return Err(Refusal::Null("the place for the statistics").into());
        }
        // SAFETY: not null, valid for a write by our caller's promise.
        unsafe { stats.write(cache.stats()) };
        Ok(0)
    })
}

/// Where an entry's bytes are at the moment; NULL for NULL.
///
/// # Safety
///
/// See the [module's rules](crate); and `fast` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_entry_location(entry: *const Entry, fast: *mut c_int) -> *const c_void {
    // SAFETY: our caller's promise. Nothing here panics.
    let (at, is_fast) = unsafe { entry.as_ref() }.map_or((std::ptr::null(), false), Entry::location);
    // SAFETY: our caller's promise.
    if let Some(fast) = unsafe { fast.as_mut() } {
        *fast = is_fast.into();
    }
    at
}

/// How many bytes an entry's handle is about; 0 for NULL.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_entry_size(entry: *const Entry) -> usize {
    // SAFETY: our caller's promise.
    unsafe { entry.as_ref() }.map_or(0, Entry::size)
}

/// 1 if there is nothing left to wait for, 0 if there is; takes one step.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_entry_done(entry: *const Entry) -> c_int {
    // SAFETY: our caller's promise.
    answer(|| Ok(unsafe { look("the entry", entry) }?.is_settled().into()))
}

/// Waits until there is nothing left to wait for (1) or a time has passed (0).
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_entry_wait(entry: *const Entry, timeout_ns: i64) -> c_int {
    // SAFETY: our caller's promise.
    answer(|| Ok(unsafe { look("the entry", entry) }?.wait(timeout(timeout_ns)?).into()))
}

/// 1 if the block was said to have changed since, 0 if not.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_entry_stale(entry: *const Entry) -> c_int {
    // SAFETY: our caller's promise.
    answer(|| Ok(unsafe { look("the entry", entry) }?.is_stale().into()))
}

/// Another handle to the same.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_entry_share(entry: *const Entry, other: *mut *mut Entry) -> c_int {
    // SAFETY: our caller's promise, for both.
    answer(|| unsafe { hand_out(other, || Ok(look("the entry", entry)?.share())) })
}

/// Ends a handle to an entry.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_entry_free(entry: *mut Entry) {
    // SAFETY: our caller's promise.
    unsafe { end(entry) }
}

/// 1 if the copy is there, 0 if not; takes one step.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_prefetch_done(prefetch: *const Prefetch) -> c_int {
    // SAFETY: our caller's promise.
    answer(|| Ok(unsafe { look("the prefetch", prefetch) }?.is_there().into()))
}

/// Calls off what was asked for and ends the handle; 1 if its copy had not begun, 0 if it goes on.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_prefetch_cancel(prefetch: *mut Prefetch) -> c_int {
    if prefetch.is_null() {
        return 0;
    }
    // SAFETY: came from `telpher_cache_prefetch` and is used no more (our caller's promise).
    answer(|| Ok(unsafe { Box::from_raw(prefetch) }.cancel().into()))
}

/// Ends a handle; what was asked for goes on.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_prefetch_free(prefetch: *mut Prefetch) {
    // SAFETY: our caller's promise.
    unsafe { end(prefetch) }
}
