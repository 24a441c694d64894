//! Arenas in memory of files. A unit changes its tier when another mapping replaces its own, as in HeMem (Raybuck et
//! al., SOSP 2021).

mod freeze;
#[cfg(test)]
mod tests;

use crate::config::{HUGE, HeapOptions, IN_HUGE, PAGE, TierId, TierMemory};
use crate::error::TierError;
use crate::fork_gate::{NoFork, hold_forks};
use crate::heap::Inner;
use crate::heat::WHOLE;
use crate::stats::Moved;
use freeze::{Hider, Protected};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, PoisonError};
use telpher_mem::{MemoryFile, Window};
use telpher_mover::Mover;
use telpher_os::{Lineage, Userfault, UserfaultFeatures};

/// Owned, zeroed memory of a heap that is shared memory of files and moves in units of 2 MiB. While a unit moves, its
/// writers wait; readers wait only if the unit comes [from a file](TierMemory::File). [`HeapOptions::shared_memory`]
/// sets the kind of memory for each tier.
///
/// Use it where memory cannot be private. It does not support:
///
/// - **Pinned pages.** What a device or io_uring writes into registered pages of a unit that has moved goes to the old
///   copy and is lost.
/// - **Forks.** A child has nothing mapped at these addresses: access through this type panics there, access by address
///   causes a SIGSEGV.
/// - Futexes and locks between processes, which the kernel identifies by their file: a thread that waits in a unit that
///   moves is not woken.
/// - More than some thousands of units on another tier than their neighbours: each is a mapping of its own
///   (`vm.max_map_count`).
///
/// It does not scale either: each unit's move takes the lock of the address space for writing.
#[derive(Debug)]
pub struct SharedArena {
    heap: Arc<Inner>,
    units: Arc<Units>,
}

/// The units of 2 MiB of an arena, and the files they are part of.
#[derive(Debug)]
pub(crate) struct Units {
    window: ManuallyDrop<Window>,
    /// The file of each tier.
    files: ManuallyDrop<Vec<MemoryFile>>,
    /// The kind of memory of each tier.
    made_of: Vec<TierMemory>,
    /// Present if one of them cannot be protected from writes.
    hider: Option<Hider>,
    /// The process that owns the mappings.
    lineage: Lineage,
    userfault: Userfault,
    mover: Mover,
    /// The number of free units of the home tier that keep their pages.
    spare: usize,
    home: TierId,
    slots: Mutex<FileSlots>,
    /// A test sets this: units are then moved without protection.
    #[cfg(test)]
    bare: std::sync::atomic::AtomicBool,
}

#[derive(Debug)]
struct FileSlots {
    /// The position of each unit.
    units: Vec<FileSlot>,
    /// The free positions of each tier.
    free: Vec<Vec<u32>>,
}

/// A position in a tier's file, in units.
#[derive(Clone, Copy, Debug)]
struct FileSlot {
    tier: TierId,
    number: u32,
}

impl FileSlot {
    fn offset(self) -> u64 {
        u64::from(self.number) * HUGE
    }
}

impl SharedArena {
    pub(crate) fn new(heap: &Arc<Inner>, len: usize) -> Result<SharedArena, TierError> {
        heap.is_ours()?;
        let options = heap.options();
        let userfault = Userfault::open(UserfaultFeatures::PROTECT_SHARED)?;
        hold_forks();
        let window = Window::new(len)?;
        let units = u32::try_from((window.range().end - window.range().start) / HUGE).unwrap_or(u32::MAX);
        let (mut files, mut free) = (Vec::new(), Vec::new());
        let made_of = (0..options.tiers.len()).map(|tier| options.memory(tier).clone()).collect::<Vec<_>>();
        for (tier, of_tier) in options.tiers.iter().enumerate() {
            let home = tier == options.home.index();
            let most = if home { units } else { units.min(u32::try_from(of_tier.bytes / HUGE).unwrap_or(u32::MAX)) };
            let (file, most) = file(options, tier, most)?;
            if home && most < units {
                return Err(TierError::HomeTooSmall { needed: u64::from(units) * HUGE, has: u64::from(most) * HUGE });
            }
            files.push(file);
            free.push(if home { Vec::new() } else { (0..most).rev().collect() });
        }
        let hides = made_of.iter().any(TierMemory::is_hidden);
        let hider = if hides { Some(Hider::new(options.retry_timeout)?) } else { None };
        // SAFETY: there is no reference to the window yet, and the file belongs to this arena.
        unsafe { window.show(window.range(), &files[options.home.index()], 0)? };
        let home_slot = |number| FileSlot { tier: options.home, number };
        let slots = Mutex::new(FileSlots { units: (0..units).map(home_slot).collect(), free });
        let spare = usize::try_from(options.spare_bytes / HUGE).unwrap_or(usize::MAX);
        let (mover, home) = (options.mover.clone(), options.home);
        let units = Arc::new(Units {
            window: ManuallyDrop::new(window),
            files: ManuallyDrop::new(files),
            made_of,
            hider,
            lineage: Lineage::current(),
            userfault,
            mover,
            spare,
            home,
            slots,
            #[cfg(test)]
            bare: false.into(),
        });
        heap.has_shared(&units);
        Ok(SharedArena { heap: Arc::clone(heap), units })
    }

    /// Returns its addresses.
    #[must_use]
    pub fn addresses(&self) -> Range<u64> {
        self.units.range()
    }

    /// # Panics
    /// In a forked child.
    fn bytes(&self) -> (usize, usize) {
        assert!(self.units.lineage.is_current(), "a shared arena stays with the process that made it");
        let range = self.addresses();
        let address = usize::try_from(range.start).expect("an address");
        (address, usize::try_from(range.end - range.start).expect("a length"))
    }
}

/// Opens a tier's file of one to `most` units, and returns how many of them it has.
fn file(options: &HeapOptions, tier: usize, most: u32) -> Result<(MemoryFile, u32), TierError> {
    let (node, bytes) = (options.tiers[tier].node, (most.max(1) as usize) << 21);
    Ok(match options.memory(tier) {
        TierMemory::Pages => {
            let file = MemoryFile::new(bytes)?;
            if let Some(node) = node {
                file.bind(node)?;
            }
            (file, most)
        }
        TierMemory::HugePages => (MemoryFile::huge(bytes, node)?, most),
        TierMemory::File(path) => {
            let file = MemoryFile::of(path, bytes)?;
            let range = file.range();
            let has = u32::try_from((range.end - range.start) / HUGE).unwrap_or(u32::MAX);
            if tier == options.home.index() {
                file.clear();
            }
            (file, most.min(has))
        }
    })
}

impl Units {
    pub(crate) fn range(&self) -> Range<u64> {
        self.window.range()
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, FileSlots> {
        // A unit's position changes only after the unit has moved.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the units that lie entirely in a range, and the number of the range's pages in other units.
    fn units_in(&self, range: &Range<u64>) -> (Range<usize>, u64) {
        let all = self.range();
        let part = range.start.max(all.start)..range.end.min(all.end);
        if part.start >= part.end {
            return (0..0, 0);
        }
        let unit = |address: u64| usize::try_from(address / HUGE).expect("in the window");
        let first = unit((part.start - all.start).next_multiple_of(HUGE));
        let end = unit(part.end - all.start).max(first);
        (first..end, (part.end - part.start) / PAGE - ((end - first) * IN_HUGE) as u64)
    }

    /// Adds the pages of a range on each tier.
    pub(crate) fn residency(&self, range: &Range<u64>, on: &mut [u64]) {
        let slots = self.slots();
        for (unit, slot) in (self.range().start..).step_by(2 << 20).zip(&slots.units) {
            let part = unit.max(range.start)..(unit + HUGE).min(range.end);
            on[slot.tier.index()] += part.end.saturating_sub(part.start) / PAGE;
        }
    }

    /// Writes the tiers of the pages of a range; the pages of a unit move together.
    pub(crate) fn tiers(&self, range: &Range<u64>, tiers: &mut [u8]) {
        let slots = self.slots();
        for (page, tier) in (range.start..range.end).step_by(4096).zip(tiers) {
            let unit = usize::try_from((page - self.range().start) / HUGE).expect("in the window");
            *tier = slots.units[unit].tier.0 | WHOLE;
        }
    }

    /// Moves the units that lie in a range.
    pub(crate) fn migrate(&self, range: &Range<u64>, to: TierId) -> Moved {
        let (units, others) = self.units_in(range);
        let mut moved = Moved::default();
        moved.left.unsupported += others;
        for unit in units {
            // Other threads get a turn between units.
            let mut slots = self.slots();
            let from = slots.units[unit];
            let count = if from.tier == to {
                &mut moved.left.already
            } else if let Some(number) = slots.free[to.index()].pop() {
                let slot = FileSlot { tier: to, number };
                let went = self.change(unit, from, slot).is_ok();
                let (now, free) = if went { (slot, from) } else { (from, slot) };
                slots.units[unit] = now;
                // Reserved memory is kept: no other program could use it.
                let is_reserved = self.made_of[free.tier.index()] != TierMemory::Pages;
                if free.tier == self.home && !is_reserved && slots.free[self.home.index()].len() >= self.spare {
                    // If the kernel refuses, the memory is kept.
                    let offset = usize::try_from(free.offset()).expect("in the file");
                    let _ = self.files[free.tier.index()].discard(offset, 2 << 20);
                }
                slots.free[free.tier.index()].push(free.number);
                if went { &mut moved.pages } else { &mut moved.left.failed }
            } else {
                &mut moved.left.no_room
            };
            *count += IN_HUGE as u64;
        }
        moved
    }

    /// Copies a unit to another position and maps it there.
    fn change(&self, unit: usize, from: FileSlot, to: FileSlot) -> Result<(), TierError> {
        let first = self.range().start + unit as u64 * HUGE;
        let unit = first..first + HUGE;
        // A child must not inherit the new mapping before it is excluded from forks.
        let _no_fork = NoFork::new();
        let files = [from, to].map(|slot| (&self.files[slot.tier.index()], slot.offset()));
        if let (true, Some(hider)) = (self.made_of[from.tier.index()].is_hidden(), &self.hider) {
            // SAFETY: the unit maps this part of a file of ours, which is mapped nowhere else.
            let mut hidden = unsafe { hider.hide(&self.window, unit, files[0])? };
            self.copy(from, to);
            // SAFETY: the bytes are the same, and nothing writes them: the unit is hidden, and the new position belongs
            // to this arena.
            return unsafe { hidden.show(files[1].0, files[1].1) };
        }
        let protected = Protected::new(&self.userfault, unit.clone()).map_err(TierError::Register)?;
        #[cfg(test)]
        if self.bare.load(std::sync::atomic::Ordering::Relaxed) {
            self.userfault.protect(unit.clone(), false).expect("it is protected");
        }
        self.copy(from, to);
        // SAFETY: the bytes are the same, and nothing writes them: the unit is protected, and the new position belongs
        // to this arena.
        unsafe { self.window.show(unit, files[1].0, files[1].1)? };
        drop(protected);
        Ok(())
    }

    /// Copies a position that is not written to another, which is free.
    fn copy(&self, from: FileSlot, to: FileSlot) {
        let address = |slot: FileSlot| {
            let start = self.files[slot.tier.index()].range().start + slot.offset();
            usize::try_from(start).expect("an address")
        };
        // SAFETY: both positions are in files of ours. One is mapped only in its unit, which is not written while it is
        // protected or hidden. The other is free and mapped nowhere.
        let (source, target) = unsafe {
            let source: *const u8 = std::ptr::with_exposed_provenance(address(from));
            let target: *mut u8 = std::ptr::with_exposed_provenance_mut(address(to));
            (std::slice::from_raw_parts(source, 2 << 20), std::slice::from_raw_parts_mut(target, 2 << 20))
        };
        if self.mover.copy_slices(source, target).is_err() {
            target.copy_from_slice(source);
        }
    }
}

impl Deref for SharedArena {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let (start, len) = self.bytes();
        let start: *const u8 = std::ptr::with_exposed_provenance(start);
        // SAFETY: mapped while this lives, initialised (zero), and written through `&mut self` only. A unit has the
        // same bytes at its new position, and writers wait while it moves.
        unsafe { std::slice::from_raw_parts(start, len) }
    }
}

impl DerefMut for SharedArena {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (start, len) = self.bytes();
        let start: *mut u8 = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: as in `deref`, and exclusive because `self` is.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        // A forked child has none of these mappings; its memory at their addresses may be used for something else by
        // now.
        if self.lineage.is_current() {
            // SAFETY: dropped once, and not used after this.
            unsafe {
                ManuallyDrop::drop(&mut self.window);
                ManuallyDrop::drop(&mut self.files);
            }
        }
    }
}

impl Drop for SharedArena {
    fn drop(&mut self) {
        self.heap.has_no_more(&self.units);
    }
}
