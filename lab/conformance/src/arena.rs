//! The memory of all cases, and the only module that vouches for descriptors.
//!
//! An arena is one reservation of address space. Its first part is memory with named regions. Behind it is a guard that
//! is never mapped and longer than any transfer, so a range of any size ends in the arena or in the guard. No code gets
//! a reference into it: the suite reads and writes through volatile accesses, so a device may access it at any time.
#![allow(unsafe_code, reason = "devices read and write this memory behind the compiler's back")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{Ordering, fence};
use telpher_abi::{CompletionRecord, Descriptor};
use telpher_portal::{Offer, Portal, Submission};

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;
/// Bytes of memory.
const BYTES: u64 = 0x200_0000;
/// Bytes behind it that stay unmapped: twice the longest transfer, because DIF destinations are longer than their
/// source.
const GUARD: u64 = 0x2_4000_0000;
/// Lower addresses are never mapped (Linux `vm.mmap_min_addr` is 64 KiB by default in distributions).
const LOWEST_MAPPED: u64 = 0x1_0000;
/// Higher addresses are not user space.
const USER_END: u64 = 0x8000_0000_0000;

/// Regions of the arena, as offsets.
pub(crate) mod place {
    /// Completion records.
    pub(crate) const RECORDS: u64 = 0x0;
    /// Batch lists.
    pub(crate) const LISTS: u64 = 0x1_0000;
    /// Input of operations; written once, when the arena is created.
    pub(crate) const INPUT: u64 = 0x10_0000;
    /// Output of operations.
    pub(crate) const OUT1: u64 = 0x30_0000;
    /// Second destination.
    pub(crate) const OUT2: u64 = 0x50_0000;
    /// Delta records, seeds, readback targets.
    pub(crate) const AUX: u64 = 0x70_0000;
    /// Four buffers of 4 MiB whose pages cases make inaccessible.
    pub(crate) const AREAS: u64 = 0x80_0000;
    /// Bytes of such a buffer.
    pub(crate) const AREA: u64 = 0x40_0000;
    /// The event log.
    pub(crate) const EVENT_LOG: u64 = 0x180_0000;
    /// Pages that were not touched since [`super::Arena::forget`].
    pub(crate) const COLD: u64 = 0x1c0_0000;
}

/// Access of the process to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// None.
    None,
    /// Read.
    Read,
    /// Read and write.
    All,
}

/// The memory of all cases; see the module.
#[derive(Debug)]
pub(crate) struct Arena {
    base: u64,
    /// Pages that are not [`Access::All`], by offset.
    restricted: RefCell<BTreeMap<u64, Access>>,
}

impl Arena {
    /// Reserves and maps an arena.
    ///
    /// # Panics
    ///
    /// If the system refuses 32 MiB of memory or 9 GiB of address space.
    #[must_use]
    pub(crate) fn new() -> Self {
        let length = usize::try_from(BYTES + GUARD).expect("a 64-bit machine");
        // SAFETY: a fresh private mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED, "reserving {length} bytes of address space");
        let arena = Arena { base: base as u64, restricted: RefCell::default() };
        arena.protect(0, BYTES, Access::All);
        // SAFETY: advice about our own mapping. It may fail (a kernel without huge pages), which changes nothing: only
        // the cases about untouched pages need it, and they check what they got.
        let _ = unsafe { libc::madvise(base, arena.host_size(BYTES), libc::MADV_NOHUGEPAGE) };
        arena
    }

    #[expect(clippy::unused_self, reason = "called as a method of the arena")]
    fn host_size(&self, bytes: u64) -> usize {
        usize::try_from(bytes).expect("a 64-bit machine")
    }

    /// The address of an offset.
    pub(crate) fn at(&self, offset: u64) -> u64 {
        assert!(offset < BYTES, "offset {offset:#x} is outside the arena");
        self.base + offset
    }

    /// The offset of an address.
    fn offset(&self, address: u64) -> u64 {
        let offset = address.wrapping_sub(self.base);
        assert!(offset < BYTES, "address {address:#x} is outside the arena");
        offset
    }

    /// An address of the guard, a page in.
    pub(crate) fn unmapped(&self) -> u64 {
        self.base + BYTES + PAGE
    }

    /// The end of mapped memory, where the guard begins.
    pub(crate) fn end(&self) -> u64 {
        self.base + BYTES
    }

    /// Changes the access to whole pages.
    pub(crate) fn protect(&self, offset: u64, bytes: u64, access: Access) {
        assert!(offset.is_multiple_of(PAGE) && offset + bytes <= BYTES, "whole pages of the arena");
        let flags = match access {
            Access::None => libc::PROT_NONE,
            Access::Read => libc::PROT_READ,
            Access::All => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: the range is in our mapping, and no references into it exist.
        let done = unsafe {
            libc::mprotect(
                ptr::with_exposed_provenance_mut(self.host_size(self.base + offset)),
                self.host_size(bytes),
                flags,
            )
        };
        assert_eq!(done, 0, "mprotect of our own pages");
        let mut restricted = self.restricted.borrow_mut();
        for page in (offset..offset + bytes).step_by(4096) {
            if access == Access::All {
                restricted.remove(&page);
            } else {
                restricted.insert(page, access);
            }
        }
    }

    /// Makes every page accessible again.
    pub(crate) fn restore(&self) {
        if !self.restricted.borrow().is_empty() {
            self.protect(0, BYTES, Access::All);
        }
    }

    /// Discards pages, so that they are mapped but not present and will read as zero.
    pub(crate) fn forget(&self, offset: u64, bytes: u64) {
        assert!(offset.is_multiple_of(PAGE) && offset + bytes <= BYTES, "whole pages of the arena");
        // SAFETY: the range is in our mapping; its content is discarded, and no references into it exist.
        let done = unsafe {
            libc::madvise(
                ptr::with_exposed_provenance_mut(self.host_size(self.base + offset)),
                self.host_size(bytes),
                libc::MADV_DONTNEED,
            )
        };
        assert_eq!(done, 0, "madvise of our own pages");
    }

    /// True if the range is readable, or writable if `write`.
    fn allows(&self, offset: u64, bytes: u64, write: bool) -> bool {
        let restricted = self.restricted.borrow();
        let first = offset & !(PAGE - 1);
        offset + bytes <= BYTES && restricted.range(first..offset + bytes).all(|(_, a)| *a == Access::Read && !write)
    }

    /// Reads bytes.
    pub(crate) fn read(&self, address: u64, bytes: u64) -> Vec<u8> {
        let offset = self.offset(address);
        assert!(self.allows(offset, bytes, false), "the suite reads {address:#x}, which a case made inaccessible");
        fence(Ordering::Acquire);
        // SAFETY: in our mapping and readable (checked above); volatile, because devices write here.
        (0..bytes).map(|i| unsafe { ptr::read_volatile(self.pointer(address + i)) }).collect()
    }

    /// Writes bytes.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        let offset = self.offset(address);
        assert!(
            self.allows(offset, bytes.len() as u64, true),
            "the suite writes {address:#x}, which a case made inaccessible"
        );
        for (i, byte) in (0..).zip(bytes) {
            // SAFETY: in our mapping and writable (checked above); volatile, because devices read here.
            unsafe { ptr::write_volatile(self.pointer(address + i), *byte) };
        }
        fence(Ordering::Release);
    }

    /// Fills a range with one byte.
    pub(crate) fn set(&self, address: u64, bytes: u64, value: u8) {
        let offset = self.offset(address);
        assert!(self.allows(offset, bytes, true), "the suite writes {address:#x}, which a case made inaccessible");
        // SAFETY: in our mapping and writable (checked above). Not volatile: used before the range is submitted to a
        // device.
        unsafe { ptr::write_bytes(self.pointer(address), value, self.host_size(bytes)) };
        fence(Ordering::Release);
    }

    fn pointer(&self, address: u64) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.host_size(address))
    }

    /// The first eight bytes of a record, as one access.
    pub(crate) fn status_word(&self, address: u64) -> u64 {
        let offset = self.offset(address);
        assert!(offset.is_multiple_of(8) && self.allows(offset, 8, false), "an aligned, readable record");
        // SAFETY: aligned, in our mapping and readable (checked above); volatile, because devices write here.
        let word = unsafe { ptr::read_volatile(self.pointer(address).cast::<u64>()) };
        fence(Ordering::Acquire);
        word
    }

    /// A completion record.
    pub(crate) fn record(&self, address: u64) -> CompletionRecord {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(&self.read(address, 32));
        CompletionRecord::from_bytes(&bytes)
    }

    /// Zeroes a completion record.
    pub(crate) fn clear_record(&self, address: u64) {
        self.write(address, &[0; 32]);
    }

    /// Writes a batch list.
    pub(crate) fn write_list(&self, address: u64, list: &[Descriptor]) {
        for (i, descriptor) in (0..).zip(list) {
            self.write(address + 64 * i, &descriptor.to_bytes());
        }
    }

    /// Offers a descriptor whose addresses are all in the arena, in its guard, or where nothing is ever mapped.
    ///
    /// # Panics
    ///
    /// If it names other memory, which is a bug of the case.
    pub(crate) fn offer(&self, portal: &dyn Portal, descriptor: &Descriptor) -> Offer {
        self.check(descriptor, true);
        // SAFETY: `check` has verified that every range that the descriptor, or a member of its batch, names is in this
        // arena, in the guard behind it, or where nothing is mapped. The arena's memory belongs to the arena alone, is
        // accessed through raw pointers only, and its addresses are never returned to the system (see `drop`), so any
        // access at any time is tolerated.
        portal.offer(&unsafe { Submission::vouch(*descriptor) })
    }

    fn check(&self, d: &Descriptor, may_be_batch: bool) {
        for (address, bytes) in named_ranges(d) {
            assert!(
                self.is_ours(address, bytes),
                "a case names memory outside the arena: {address:#x}, {bytes} bytes, in {d:?}"
            );
        }
        if d.opcode_code() == 0x01 && may_be_batch {
            let (list, count) = (d.src() & !63, u64::from(d.size()).min(0x1_0000));
            for i in 0..count {
                let at = list + 64 * i;
                let offset = at.wrapping_sub(self.base);
                // If the suite cannot read a member, a device cannot either.
                if offset < BYTES && self.allows(offset, 64, false) {
                    let mut bytes = [0; 64];
                    bytes.copy_from_slice(&self.read(at, 64));
                    self.check(&Descriptor::from_bytes(&bytes), false);
                }
            }
        }
    }

    fn is_ours(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return address >= USER_END };
        end <= LOWEST_MAPPED || address >= USER_END || (address >= self.base && end <= self.base + BYTES + GUARD)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: replaces our own mapping; no references into it exist. The addresses stay reserved for ever, so a
        // late device access finds nothing there instead of other memory.
        let _ = unsafe {
            libc::mmap(
                ptr::with_exposed_provenance_mut(self.host_size(self.base)),
                self.host_size(BYTES + GUARD),
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
    }
}

/// Every memory range that a descriptor of DSA 1.x names, legal or not. Wider than the accessed ranges: DIF
/// destinations count twice the source, and alignment is rounded outwards.
fn named_ranges(d: &Descriptor) -> Vec<(u64, u64)> {
    let size = u64::from(d.size());
    let wide = 2 * size + 64;
    let mut ranges = match d.opcode_code() {
        0x01 => vec![(d.src() & !63, 64 * size + 64)],
        0x03 | 0x05 => vec![(d.src(), size), (d.dst(), size)],
        0x04 => vec![(d.dst(), size)],
        0x06 => vec![(d.src(), size)],
        0x07 => vec![(d.src(), size), (d.dst(), size), (d.delta_address(), d.max_delta_size().into())],
        0x08 => vec![(d.src(), d.delta_record_size().into()), (d.dst(), size)],
        0x09 => vec![(d.src(), size), (d.dst(), size), (d.dst2(), size)],
        0x10 => vec![(d.src(), size)],
        0x11 => vec![(d.src(), size), (d.dst(), size)],
        0x12 => vec![(d.src(), size)],
        0x13..=0x15 => vec![(d.src(), size), (d.dst(), wide)],
        0x20 => vec![(d.dst() & !63, size + 128)],
        _ => Vec::new(),
    };
    let flag = |bit: u32| d.flags().bits() >> bit & 1 == 1;
    match d.opcode_code() {
        0x02 if flag(16) => ranges.push((d.src(), 1)),
        0x10 | 0x11 if flag(16) => ranges.push((d.crc_seed_address(), 8)),
        _ => {}
    }
    if d.opcode_code() == 0x02 && flag(17) {
        ranges.push((d.dst(), 1));
    }
    if flag(2) {
        ranges.push((d.completion_address() & !31, 64));
    }
    ranges
}
