//! Trampolines, and executable memory for them within reach of a 32-bit jump.

use super::entered::{BACK, RECORD};
use super::jump::{JUMP, Refusal, jump};
use super::patch::Patch;
use super::table::Site;
use crate::{entry, kernel};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of one trampoline: code, then its two data words.
const SPAN: usize = 64;
/// Distance from there to the word that the call reads.
const CALL_TO: u8 = 29;
/// Offset of the jump back to the program.
const LEAVE: usize = 19;
/// Offset of the address of `entry::enter`, which the call reads.
const ENTER: usize = 40;
const _: () = assert!(BACK + CALL_TO as usize == ENTER);
/// Bytes of one pool.
const POOL: usize = 64 << 10;
/// The most pools. Each serves all sites within 2 GiB.
const POOLS: usize = 32;
/// Nothing is mapped below this, so that a null pointer with an offset faults.
const LOWEST: usize = 1 << 20;
/// The largest distance of a pool from its sites, so that both jumps reach.
const FARTHEST: usize = (1 << 31) - (16 << 20);

#[derive(Debug)]
struct Pool {
    start: AtomicUsize,
    used: AtomicUsize,
}

static ALL: [Pool; POOLS] = [const { Pool { start: AtomicUsize::new(0), used: AtomicUsize::new(0) } }; POOLS];

/// Reserves a trampoline for an instruction of `length` bytes at `site`. Only under the lock of `sites`.
///
/// # Errors
/// [`Refusal::Unreachable`]: no memory is near enough.
pub(super) fn trampoline(site: usize, length: u8) -> Result<usize, Refusal> {
    let reaches =
        |address: usize| jump(site, address).is_some() && jump(address + LEAVE, site + usize::from(length)).is_some();
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
        let address = start + used * SPAN;
        if used < POOL / SPAN && reaches(address) {
            pool.used.store(used + 1, Ordering::Relaxed);
            return Ok(address);
        }
    }
    Err(Refusal::Unreachable)
}

/// Maps executable memory near `site`: preferably below it, since heaps and stacks grow towards the addresses above
/// code.
fn map_near(site: usize) -> Option<usize> {
    let distances = || std::iter::successors(Some(1usize << 20), |d| Some(d + d / 4)).take_while(|&d| d < FARTHEST);
    let below = distances().filter_map(|distance| site.checked_sub(distance)).filter(|&address| address >= LOWEST);
    let above = distances().filter_map(|distance| site.checked_add(distance));
    below
        .chain(above)
        .map(|address| address & !(POOL - 1))
        .find_map(|address| kernel::map(Some(address), POOL, libc::PROT_READ | libc::PROT_EXEC).ok())
}

/// Writes the trampoline of `site` at `address`; it continues at `next`.
///
/// # Errors
/// [`Refusal`], if the memory cannot be written.
pub(super) fn fill(patch: &Patch, address: usize, next: usize, site: &'static Site) -> Result<(), Refusal> {
    let mut bytes = [0xcc; SPAN];
    // lea rsp, [rsp - 128]
    bytes[..5].copy_from_slice(&[0x48, 0x8d, 0x64, 0x24, 0x80]);
    // call [rip + CALL_TO]
    bytes[5..BACK].copy_from_slice(&[0xff, 0x15, CALL_TO, 0, 0, 0]);
    // lea rsp, [rsp + 128]
    bytes[BACK..LEAVE].copy_from_slice(&[0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0]);
    let leave = jump(address + LEAVE, next).ok_or(Refusal::Unreachable)?;
    bytes[LEAVE..LEAVE + JUMP].copy_from_slice(&leave);
    bytes[ENTER..ENTER + 8].copy_from_slice(&(entry::enter as *const () as usize).to_le_bytes());
    bytes[RECORD..RECORD + 8].copy_from_slice(&std::ptr::from_ref(site).expose_provenance().to_le_bytes());
    // SAFETY: the memory was reserved for a trampoline and is not yet in use.
    if unsafe { patch.write(address, &bytes) } { Ok(()) } else { Err(Refusal::Protected) }
}
