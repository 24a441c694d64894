//! Memory on several tiers; pages move between them while the program runs.

use super::{Mover, answer, copy_text, end, hand_out, look, put, text};
use crate::c_structs::{TierInfo, TierMoved, TierOptions, TierReport, TierStats, tier_arena_flag, tier_flag};
use crate::failure::{Failure, Refusal};
use crate::options::{Of, Options};
use crate::raw::Raw;
use crate::tier::{TierArena, TierHeap, TierManager, whole_pages};
use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use telpher_mem::PageSize;
use telpher_mover::Mover as Inner;
use telpher_tier::{HeapOptions, TierMemory, TierOptions as Inside};

/// A range of addresses. Its bytes are not lent: a heap moves pages, without any visible read or write.
fn range_of(start: *const c_void, len: usize) -> Result<Range<u64>, Failure> {
    let (address, len) = Raw::place("the range", start, len as u64)?;
    // Cannot overflow: it lies in the address space.
    Ok(address..address + len as u64)
}

/// Creates a heap without memory; a mover makes its copies, or the CPU if `mover` is NULL.
///
/// # Safety
///
/// See the [module's rules](crate); `tiers` is valid for `count` structures, and their names and paths are texts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_tier_heap_new(
    heap: *mut *mut TierHeap,
    mover: *const Mover,
    tiers: *const TierOptions,
    count: u32,
    options: *const c_char,
) -> c_int {
    let make = || {
        // SAFETY: guaranteed by our caller.
        let Options { heap: words, .. } = Options::parse(Of::Heap, unsafe { super::options(options) }?)?;
        if tiers.is_null() && count > 0 {
            return Err(Refusal::Null("the list of tiers").into());
        }
        let (mut all, mut shared) = (Vec::new(), Vec::new());
        for index in 0..count as usize {
            // SAFETY: `index < count`, and valid for that many as our caller guarantees, and so are its texts.
            let (tier, memory) = unsafe { tier_of(index, look("the tier", tiers.add(index))?) }?;
            all.push(tier);
            shared.push(memory);
        }
        let mut options = HeapOptions::new(all);
        options.shared_memory = shared;
        // SAFETY: guaranteed by our caller.
        options.mover = unsafe { mover.as_ref() }.map_or_else(Inner::cpu, |mover| mover.inner.clone());
        words.change(&mut options);
        TierHeap::new(options)
    };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(heap, make) })
}

/// Converts a tier, and its file for shared arenas.
///
/// # Safety
///
/// Its name and its path are NULL or texts.
unsafe fn tier_of(index: usize, tier: &TierOptions) -> Result<(Inside, TierMemory), Failure> {
    use tier_flag::{TELPHER_TIER_HUGE_PAGES, TELPHER_TIER_ON_NODE};
    let TierOptions { name, size, flags, node, path, reserved } = *tier;
    if reserved != [0; 4] {
        return Err(Refusal::Reserved("tier").into());
    }
    let unknown = flags & !(TELPHER_TIER_ON_NODE | TELPHER_TIER_HUGE_PAGES);
    let memory = match (path.is_null(), flags & TELPHER_TIER_HUGE_PAGES) {
        _ if unknown != 0 => return Err(Refusal::HeapTierFlags(unknown).into()),
        (true, 0) => TierMemory::Pages,
        (true, _) => TierMemory::HugePages,
        // SAFETY: guaranteed by our caller.
        (false, 0) => TierMemory::File(unsafe { text("the tier's path", path) }?.into()),
        (false, both) => return Err(Refusal::HeapTierFlags(both).into()),
    };
    // SAFETY: guaranteed by our caller.
    let name = if name.is_null() { index.to_string() } else { unsafe { text("the tier's name", name) }?.to_owned() };
    Ok((Inside { name, node: (flags & TELPHER_TIER_ON_NODE != 0).then_some(node), bytes: size }, memory))
}

/// Frees a heap's handle. Its arenas stay valid.
///
/// # Safety
///
/// See the [module's rules](crate); and memory that the heap adopted was released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_tier_heap_free(heap: *mut TierHeap) {
    // SAFETY: guaranteed by our caller.
    unsafe { end(heap) }
}

/// Returns the mechanism by which its pages change tiers.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_tier_mechanism_of(heap: *const TierHeap) -> c_int {
    // SAFETY: guaranteed by our caller.
    answer(|| Ok(unsafe { look("the heap", heap) }?.mechanism().cast_signed()))
}

/// Returns the state of a tier.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_tier_info_of(heap: *const TierHeap, tier: u32, info: *mut TierInfo) -> c_int {
    // SAFETY: guaranteed by our caller, for both.
    answer(|| unsafe { put("the output pointer for the tier", info, look("the heap", heap)?.info(tier)?) })
}

/// Returns a tier's full name.
///
/// # Safety
///
/// See the [module's rules](crate); and `buffer` is valid for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_tier_name(
    heap: *const TierHeap,
    tier: u32,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let heap = unsafe { look("the heap", heap) }?;
        heap.info(tier)?;
        // SAFETY: guaranteed by our caller.
        unsafe { copy_text(&heap.0.options().tiers[tier as usize].name, buffer, size) }
    })
}

/// Returns a heap's counters.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_tier_stats_of(heap: *const TierHeap, stats: *mut TierStats) -> c_int {
    // SAFETY: guaranteed by our caller, for both.
    answer(|| unsafe { put("the output pointer for the statistics", stats, look("the heap", heap)?.stats()) })
}

/// Moves pages to a tier.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_tier_migrate(
    heap: *const TierHeap,
    start: *const c_void,
    len: usize,
    tier: u32,
    moved: *mut TierMoved,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let heap = unsafe { look("the heap", heap) }?;
        let answer = heap.migrate(range_of(start, len)?, tier)?;
        if !moved.is_null() {
            // SAFETY: not null, and guaranteed by our caller.
            unsafe { moved.write(answer) };
        }
        Ok(0)
    })
}

/// Returns the number of a range's pages on each tier.
///
/// # Safety
///
/// See the [module's rules](crate); and `pages` is valid for `count` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_tier_residency(
    heap: *const TierHeap,
    start: *const c_void,
    len: usize,
    pages: *mut u64,
    count: u32,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let heap = unsafe { look("the heap", heap) }?;
        if pages.is_null() && count > 0 {
            return Err(Refusal::Null("the output pointer for numbers of pages").into());
        }
        let on = heap.0.residency(range_of(start, len)?)?;
        for (index, on) in on.iter().take(count as usize).enumerate() {
            // SAFETY: not null, `index < count`, and guaranteed by our caller.
            unsafe { pages.add(index).write(*on) };
        }
        Ok(super::count(on.len()))
    })
}

/// Tells a manager what the caller knows about some memory.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_tier_advise(
    heap: *const TierHeap,
    start: *const c_void,
    len: usize,
    advice: u32,
    tier: u32,
) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        unsafe { look("the heap", heap) }?.advise(range_of(start, len)?, advice, tier)?;
        Ok(0)
    })
}

/// Starts a manager, which finds hot and cold pages and moves them.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_tier_manager_new(
    manager: *mut *mut TierManager,
    heap: *const TierHeap,
    options: *const c_char,
) -> c_int {
    let make = || {
        // SAFETY: guaranteed by our caller.
        let heap = unsafe { look("the heap", heap) }?;
        // SAFETY: guaranteed by our caller.
        let Options { manager: words, .. } = Options::parse(Of::Manager, unsafe { super::options(options) }?)?;
        heap.manage(|options| words.change(options))
    };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(manager, make) })
}

/// Returns what a manager has found and done.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_tier_report_of(manager: *const TierManager, report: *mut TierReport) -> c_int {
    // SAFETY: guaranteed by our caller, for both.
    answer(|| unsafe { put("the output pointer for the report", report, look("the manager", manager)?.report()?) })
}

/// Stops a manager. Pages stay where they are.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_tier_manager_free(manager: *mut TierManager) {
    // SAFETY: guaranteed by our caller.
    unsafe { end(manager) }
}

/// Adopts memory that the caller has mapped.
///
/// # Safety
///
/// See the [module's rules](crate); and the header's rules for such memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_tier_adopt(heap: *const TierHeap, start: *mut c_void, len: usize) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let heap = unsafe { look("the heap", heap) }?;
        // SAFETY: private anonymous memory that stays mapped as long as the heap uses it, as our
        // caller guarantees.
        unsafe { heap.0.adopt(whole_pages(range_of(start, len)?)?) }?;
        Ok(0)
    })
}

/// Releases adopted memory.
///
/// # Safety
///
/// See the [module's rules](crate); and the range belongs to no arena.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_tier_release(heap: *const TierHeap, start: *mut c_void, len: usize) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let heap = unsafe { look("the heap", heap) }?;
        // SAFETY: guaranteed by our caller.
        unsafe { heap.0.release(&whole_pages(range_of(start, len)?)?) }?;
        Ok(0)
    })
}

/// Creates an arena: memory of a heap.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_tier_arena_new(
    arena: *mut *mut TierArena,
    heap: *const TierHeap,
    size: usize,
    flags: u32,
) -> c_int {
    let make = || {
        // SAFETY: guaranteed by our caller.
        let heap = unsafe { look("the heap", heap) }?;
        match flags {
            _ if size == 0 => Err(Refusal::Empty("the arena").into()),
            0 => heap.arena(size, PageSize::Small),
            tier_arena_flag::TELPHER_TIER_ARENA_HUGE_PAGES => heap.arena(size, PageSize::Huge),
            tier_arena_flag::TELPHER_TIER_ARENA_SHARED => heap.shared_arena(size),
            flags => Err(Refusal::ArenaFlags(flags).into()),
        }
    };
    // SAFETY: guaranteed by our caller.
    answer(|| unsafe { hand_out(arena, make) })
}

/// Returns the address of an arena's memory; NULL for NULL.
///
/// # Safety
///
/// See the [module's rules](crate); `size` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_tier_arena_memory(arena: *const TierArena, size: *mut usize) -> *mut c_void {
    let mut start = std::ptr::null_mut();
    answer(|| {
        // SAFETY: guaranteed by our caller.
        let range = unsafe { look("the arena", arena) }?.range();
        let whole = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        if !size.is_null() {
            // SAFETY: not null, and guaranteed by our caller.
            unsafe { size.write(whole(range.end - range.start)) };
        }
        start = std::ptr::with_exposed_provenance_mut(whole(range.start));
        Ok(0)
    });
    start
}

/// Discards pages of an arena.
///
/// # Safety
///
/// See the [module's rules](crate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_tier_arena_discard(arena: *const TierArena, offset: usize, len: usize) -> c_int {
    answer(|| {
        // SAFETY: guaranteed by our caller.
        unsafe { look("the arena", arena) }?.discard(offset as u64, len as u64)?;
        Ok(0)
    })
}

/// Frees an arena and its memory.
///
/// # Safety
///
/// See the [module's rules](crate); and its memory is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telpher_tier_arena_free(arena: *mut TierArena) {
    // SAFETY: guaranteed by our caller.
    unsafe { end(arena) }
}
