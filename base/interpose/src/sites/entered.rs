//! From the call of a trampoline back to its site.

use super::table::Site;
use crate::decode::Instruction;
use crate::thread::Thread;
use std::sync::atomic::{AtomicU64, Ordering};

/// Offset in a trampoline of the instruction after the call.
pub(super) const BACK: usize = 11;
/// Offset in a trampoline of the address of the site's record.
pub(super) const RECORD: usize = 48;

/// A counter for some of the threads, in a cache line of its own.
#[repr(align(64))]
#[derive(Debug)]
struct Shard(AtomicU64);

static CALLS: [Shard; 16] = [const { Shard(AtomicU64::new(0)) }; 16];

/// Returns how often a trampoline has called.
pub(super) fn calls() -> u64 {
    CALLS.iter().map(|shard| shard.0.load(Ordering::Relaxed)).sum()
}

/// Returns the record of the site whose trampoline called with this return address.
///
/// # Safety
/// The address is a trampoline's.
unsafe fn site(back: u64) -> &'static Site {
    #[allow(clippy::cast_possible_truncation, reason = "addresses have 64 bits here")]
    let record = std::ptr::with_exposed_provenance::<*const Site>(back as usize + RECORD - BACK);
    // SAFETY: a trampoline ends with the address of its record, which lies in a static and is never changed.
    unsafe { &*record.read() }
}

/// Returns the instruction and address of the site whose trampoline called with this return address.
///
/// # Safety
/// The address is a trampoline's.
pub(crate) unsafe fn entered(back: u64) -> (Instruction, u64) {
    // SAFETY: forwarded.
    let site = unsafe { site(back) };
    let here = Thread::current();
    let shard = std::ptr::from_ref(here).addr() >> 12;
    CALLS[shard % CALLS.len()].0.fetch_add(1, Ordering::Relaxed);
    (site.instruction(), site.address() as u64)
}
