//! Trampolines, and executable memory for them within reach of a 32-bit jump.

use super::table::Site;
use super::{JUMP, Refusal, jump};
use crate::sites::patch::Patch;
use crate::{entry, kernel};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of one trampoline: code, then the two words it needs.
const SPAN: usize = 64;
/// Behind the call.
const BACK: usize = 11;
/// From there to the word that the call reads.
const CALL_TO: u8 = 29;
/// The jump back to the program.
const LEAVE: usize = 19;
/// Address of `entry::enter`, which the call reads.
const ENTER: usize = 40;
const _: () = assert!(BACK + CALL_TO as usize == ENTER);
/// Address of the site's record.
const RECORD: usize = 48;

/// Bytes of one pool.
const POOL: usize = 64 << 10;
/// Pools there may be. Each serves all sites within 2 GiB.
const POOLS: usize = 32;
/// Nothing is mapped below, where a pointer of zero with an offset should fault.
const LOWEST: usize = 1 << 20;
/// How far from its sites a pool may be, so that both jumps reach.
const FARTHEST: usize = (1 << 31) - (16 << 20);

#[derive(Debug)]
struct Pool {
    start: AtomicUsize,
    used: AtomicUsize,
}

static ALL: [Pool; POOLS] = [const { Pool { start: AtomicUsize::new(0), used: AtomicUsize::new(0) } }; POOLS];

/// Room for a trampoline of an instruction of `length` bytes at `site`. Only under the lock of `sites`.
///
/// # Errors
/// [`Refusal::Unreachable`]: there is no memory near enough.
pub(super) fn trampoline(site: usize, length: u8) -> Result<usize, Refusal> {
    let reaches =
        |place: usize| jump(site, place).is_some() && jump(place + LEAVE, site + usize::from(length)).is_some();
    // Relaxed, here and below: only under the lock.
    for pool in &ALL {
        let start = match pool.start.load(Ordering::Relaxed) {
            0 => {
                let start = map_near(site).ok_or(Refusal::Unreachable)?;
                pool.start.store(start, Ordering::Relaxed);
                start
            }
            start => start,
        };
        let used = pool.used.load(Ordering::Relaxed);
        let place = start + used * SPAN;
        if used < POOL / SPAN && reaches(place) {
            pool.used.store(used + 1, Ordering::Relaxed);
            return Ok(place);
        }
    }
    Err(Refusal::Unreachable)
}

/// Executable memory near `site`: rather below it, since heaps and stacks grow towards what lies above code.
fn map_near(site: usize) -> Option<usize> {
    let distances = || std::iter::successors(Some(1usize << 20), |d| Some(d + d / 4)).take_while(|&d| d < FARTHEST);
    let below = distances().filter_map(|distance| site.checked_sub(distance)).filter(|&place| place >= LOWEST);
    let above = distances().filter_map(|distance| site.checked_add(distance));
    below
        .chain(above)
        .map(|place| place & !(POOL - 1))
        .find_map(|place| kernel::map(Some(place), POOL, libc::PROT_READ | libc::PROT_EXEC).ok())
}

/// Writes the trampoline of `site` at `place`, which goes on at `next`.
///
/// # Errors
/// [`Refusal`], if the memory cannot be written.
pub(super) fn fill(patch: &Patch, place: usize, next: usize, site: &'static Site) -> Result<(), Refusal> {
    let mut bytes = [0xcc; SPAN];
    // lea rsp, [rsp - 128]
    bytes[..5].copy_from_slice(&[0x48, 0x8d, 0x64, 0x24, 0x80]);
    // call [rip + CALL_TO]
    bytes[5..BACK].copy_from_slice(&[0xff, 0x15, CALL_TO, 0, 0, 0]);
    // lea rsp, [rsp + 128]
    bytes[BACK..LEAVE].copy_from_slice(&[0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]);
    let leave = jump(place + LEAVE, next).ok_or(Refusal::Unreachable)?;
    bytes[LEAVE..LEAVE + JUMP].copy_from_slice(&leave);
    bytes[ENTER..ENTER + 8].copy_from_slice(&(entry::enter as *const () as usize).to_le_bytes());
    bytes[RECORD..RECORD + 8].copy_from_slice(&std::ptr::from_ref(site).expose_provenance().to_le_bytes());
    // SAFETY: the place is a trampoline's that nobody was told of.
    if unsafe { patch.write(place, &bytes) } { Ok(()) } else { Err(Refusal::Protected) }
}

/// The record of the site whose trampoline called with this return address.
///
/// # Safety
/// It is a trampoline's.
pub(super) unsafe fn site(back: u64) -> &'static Site {
    #[allow(clippy::cast_possible_truncation, reason = "addresses have 64 bits here")]
    let record = std::ptr::with_exposed_provenance::<*const Site>(back as usize + RECORD - BACK);
    // SAFETY: a trampoline ends with the address of its record, which lies in a static and is never changed.
    unsafe { &*record.read() }
}
