//! The work of one submitting thread: an operation, its buffers in several slots, and the expected results.

use super::BenchError;
use super::buffers::{PAGE, fill_known, first_difference, touched};
use super::protection::{BLOCK, DIF, NEW_TAGS, TAGS, crc16_fast, protected, protected_len};
use crate::ffi;
use crate::options::{Pages, Placement};
use std::cell::RefCell;
use telpher_abi::{DELTA_ENTRY_BYTES, MAX_DELTA_TRANSFER, Opcode};
use telpher_mem::{PageSize, Pool, PoolBuffer, Region};
use telpher_mover::{Buffers, Channel, CrcMode, Delta, Hint, Outcome, Rejected, Ticket};
use telpher_ops::dif;
use telpher_ops::{compare, compare_pattern, copy, crc, delta, dualcast, fill, flush};

/// The pattern that Fill writes and Compare Pattern expects.
const PATTERN: u64 = 0x0123_4567_89ab_cdef;
/// One 8-byte word in this many differs for the delta operations.
const DELTA_SPACING: usize = 64;
/// The byte that fills a destination before a checked run.
const SPOILT: u8 = 0xee;

/// The buffers of one transfer. A buffer is `None` if the operation does not use it, or while the device has it.
#[derive(Debug, Default)]
struct Slot {
    src: Option<PoolBuffer>,
    src2: Option<PoolBuffer>,
    dst: Option<PoolBuffer>,
    dst2: Option<PoolBuffer>,
    /// The expected result, for operations that return one.
    expected: Option<Outcome>,
    /// Bytes of the delta record in `src`, for apply.
    record_bytes: u32,
    /// The unused rest of the last 4 KiB of each buffer that is a part of a larger page.
    _rests: Vec<PoolBuffer>,
}

/// The memory for buffers.
#[derive(Debug)]
pub(crate) struct BufferMemory {
    /// NUMA nodes of the buffers.
    placement: Option<Placement>,
    pages: BufferPages,
}

#[derive(Debug)]
enum BufferPages {
    /// Each buffer has pages of its own.
    Own(PageSize),
    /// Buffers are parts of larger pages, and begin at multiples of 4 KiB.
    Parts { src: Pool, dst: Pool },
}

/// The most bytes that the buffers of a transfer take.
pub(crate) fn buffer_bytes(size: usize) -> usize {
    // Three buffers. Blocks with integrity fields are a 64th longer, and each buffer ends with a page.
    size.saturating_add(size / 64).saturating_add(2 * PAGE).saturating_mul(3)
}

impl BufferMemory {
    /// Allocates the memory of up to `bytes` bytes of buffers if they are parts of larger pages.
    pub(crate) fn new(pages: Pages, placement: Option<Placement>, bytes: usize) -> Result<Self, BenchError> {
        let parts = |node: Option<u32>| -> Result<Pool, BenchError> {
            let mut region = Region::gigantic(bytes)?;
            if let Some(node) = node {
                region.bind(node)?;
            }
            region.populate()?;
            Ok(Pool::of(region))
        };
        let pages = match (pages, placement) {
            (Pages::Small, _) => BufferPages::Own(PageSize::Small),
            (Pages::Huge, _) => BufferPages::Own(PageSize::Huge),
            (Pages::Gigantic, Some(nodes)) => {
                BufferPages::Parts { src: parts(Some(nodes.src))?, dst: parts(Some(nodes.dst))? }
            }
            (Pages::Gigantic, None) => {
                let pool = parts(None)?;
                BufferPages::Parts { src: pool.clone(), dst: pool }
            }
        };
        Ok(BufferMemory { placement, pages })
    }

    /// Small pages on any node.
    pub(crate) fn small() -> Self {
        BufferMemory { placement: None, pages: BufferPages::Own(PageSize::Small) }
    }

    /// Returns a buffer of `len` bytes, on the source's or the destination's node.
    fn buffer(&self, side: Side, len: usize, rests: &RefCell<Vec<PoolBuffer>>) -> Result<PoolBuffer, BenchError> {
        const ENOUGH: &str = "the memory was made for all buffers";
        match &self.pages {
            BufferPages::Own(pages) => {
                let node = self.placement.map(|nodes| if side == Side::Src { nodes.src } else { nodes.dst });
                if node.is_some() {
                    place_on(node)?;
                }
                // A pool lends whole cache lines.
                let region = touched(len.next_multiple_of(64), *pages);
                if node.is_some() {
                    place_on(None)?;
                }
                Ok(Pool::of(region?).obtain(len).expect(ENOUGH))
            }
            BufferPages::Parts { src, dst } => {
                let pool = if side == Side::Src { src } else { dst };
                let buffer = pool.obtain(len).expect(ENOUGH);
                let rest = len.next_multiple_of(PAGE) - len.next_multiple_of(64);
                rests.borrow_mut().extend(pool.obtain(rest));
                Ok(buffer)
            }
        }
    }
}

/// Which buffer of a transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Src,
    Dst,
}

/// An operation of one size in several slots.
#[derive(Debug)]
pub(crate) struct OperationSlots {
    op: Opcode,
    size: usize,
    slots: Vec<Slot>,
    next: usize,
}

/// Returns why an operation does not support a size, or `None` if it does.
pub(crate) fn refuses(op: Opcode, size: u64) -> Option<&'static str> {
    match op {
        Opcode::CreateDelta | Opcode::ApplyDelta if size > u64::from(MAX_DELTA_TRANSFER) || !size.is_multiple_of(8) => {
            Some("takes multiples of 8 bytes up to 512 KiB")
        }
        Opcode::DifCheck | Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate
            if !size.is_multiple_of(BLOCK as u64) =>
        {
            Some("is measured with blocks of 512 bytes and takes multiples of them")
        }
        _ => None,
    }
}

impl OperationSlots {
    /// Creates `places` transfers of `size` bytes.
    pub(crate) fn new(op: Opcode, size: usize, places: usize, memory: &BufferMemory) -> Result<Self, BenchError> {
        let slots = (0..places).map(|i| slot(op, size, i as u64 + 1, memory)).collect::<Result<_, _>>()?;
        Ok(OperationSlots { op, size, slots, next: 0 })
    }

    /// Returns the number of slots.
    pub(crate) fn places(&self) -> usize {
        self.slots.len()
    }

    /// Returns the next slot in rotation.
    #[inline]
    pub(crate) fn turn(&mut self) -> usize {
        let at = self.next;
        self.next = if at + 1 == self.slots.len() { 0 } else { at + 1 };
        at
    }

    /// Executes one transfer on the CPU; returns whether its result is as expected.
    #[inline]
    pub(crate) fn on_cpu(&mut self, place: usize, hint: Hint) -> bool {
        let slot = &mut self.slots[place];
        let Slot { src, src2, dst, dst2, expected, record_bytes, .. } = slot;
        let (src, src2) = (src.as_deref().unwrap_or(&[]), src2.as_deref().unwrap_or(&[]));
        let (dst, dst2) = (dst.as_deref_mut().unwrap_or(&mut []), dst2.as_deref_mut().unwrap_or(&mut []));
        match self.op {
            Opcode::MemoryMove => copy(src, dst, hint),
            Opcode::Fill => fill(dst, PATTERN, hint),
            Opcode::Compare => return compare(src, src2).is_none(),
            Opcode::ComparePattern => return compare_pattern(src, PATTERN).is_none(),
            Opcode::CreateDelta => {
                let created = delta::create(src, src2, 0, dst);
                return !created.overflow && created.bytes_compared == src.len();
            }
            Opcode::ApplyDelta => return delta::apply(&src[..*record_bytes as usize], dst, None).is_ok(),
            Opcode::Dualcast => dualcast(src, dst, dst2, hint),
            Opcode::CrcGeneration => return *expected == Some(Outcome::Crc(crc::crc32c(0, src, CrcMode::default()))),
            Opcode::CopyCrc => {
                return *expected == Some(Outcome::Crc(crc::copy_crc32c(src, dst, 0, CrcMode::default(), hint)));
            }
            Opcode::DifCheck => return dif::check(&DIF, src, &mut { TAGS }).error.is_none(),
            Opcode::DifInsert => return dif::insert(&DIF, src, dst, &mut { TAGS }) == src.len() / BLOCK,
            Opcode::DifStrip => return dif::strip(&DIF, src, dst, &mut { TAGS }).error.is_none(),
            Opcode::DifUpdate => {
                return dif::update(&DIF, src, dst, &mut { TAGS }, &mut { NEW_TAGS }).error.is_none();
            }
            Opcode::CacheFlush => flush::flush(src),
            _ => {}
        }
        true
    }

    /// Hands one transfer with its buffers to a channel.
    #[inline]
    pub(crate) fn prepare(
        &mut self,
        place: usize,
        channel: &mut BufferChannel,
    ) -> Result<Ticket, Box<Rejected<PoolBuffer, PoolBuffer>>> {
        const HELD: &str = "a place is prepared only after its buffers came back";
        let slot = &mut self.slots[place];
        let mut src = || slot.src.take().expect(HELD);
        let mut src2 = || slot.src2.take().expect(HELD);
        let mut dst = || slot.dst.take().expect(HELD);
        let mut dst2 = || slot.dst2.take().expect(HELD);
        match self.op {
            Opcode::Fill => channel.fill(dst(), PATTERN),
            Opcode::Compare => channel.compare(src(), src2()),
            Opcode::ComparePattern => channel.compare_pattern(src(), PATTERN),
            Opcode::CreateDelta => channel.create_delta(src(), src2(), dst()),
            Opcode::ApplyDelta => channel.apply_delta(src(), dst(), slot.record_bytes),
            Opcode::Dualcast => channel.dualcast(src(), dst(), dst2()),
            Opcode::CrcGeneration => channel.crc(src(), 0, CrcMode::default()),
            Opcode::CopyCrc => channel.copy_crc(src(), dst(), 0, CrcMode::default()),
            Opcode::DifCheck => channel.dif_check(src(), DIF, TAGS),
            Opcode::DifInsert => channel.dif_insert(src(), dst(), DIF, TAGS),
            Opcode::DifStrip => channel.dif_strip(src(), dst(), DIF, TAGS),
            Opcode::DifUpdate => channel.dif_update(src(), dst(), DIF, TAGS, NEW_TAGS),
            Opcode::CacheFlush => channel.flush(src()),
            // Other names that options accept are handled by the arms above.
            _ => channel.copy(src(), dst()),
        }
        .map_err(Box::new)
    }

    /// Takes a transfer's buffers back; returns whether its result is as expected.
    #[inline]
    pub(crate) fn give_back(
        &mut self,
        place: usize,
        buffers: Buffers<PoolBuffer, PoolBuffer>,
        outcome: Outcome,
    ) -> bool {
        let slot = &mut self.slots[place];
        let Buffers { src, src2, dst, dst2 } = buffers;
        for (place, back) in
            [(&mut slot.src, src), (&mut slot.src2, src2), (&mut slot.dst, dst), (&mut slot.dst2, dst2)]
        {
            if back.is_some() {
                *place = back;
            }
        }
        match slot.expected {
            Some(expected) => expected == outcome,
            // Mismatches of integrity fields have their own variant.
            None => matches!(outcome, Outcome::Done | Outcome::Dif { .. }),
        }
    }

    /// Returns the number of slots that a check covers: all small ones, or one of the largest.
    pub(crate) fn checked_places(&self) -> usize {
        ((1 << 20) / self.size).clamp(1, self.slots.len())
    }

    /// Overwrites the destinations of the slots that the next check covers.
    pub(crate) fn spoil(&mut self) {
        let checked = self.checked_places();
        for slot in &mut self.slots[..checked] {
            // Applying a delta changes only a few bytes, so the destination gets the original bytes.
            if self.op == Opcode::ApplyDelta {
                fill_known(slot.dst.as_deref_mut().unwrap_or(&mut []), 7);
                continue;
            }
            for dst in [&mut slot.dst, &mut slot.dst2].into_iter().flatten() {
                ffi::memset(dst, SPOILT);
            }
        }
        self.next = 0;
    }

    /// Compares the destinations with the expected bytes.
    pub(crate) fn check(&self, route: &str) -> Result<(), BenchError> {
        for slot in &self.slots[..self.checked_places()] {
            let Some(dst) = slot.dst.as_deref() else { continue };
            let expected = self.right_bytes(slot);
            let expected = expected.as_deref().unwrap_or_else(|| slot.src.as_deref().unwrap_or(&[]));
            let wrong = [Some(dst), slot.dst2.as_deref()].into_iter().flatten().find_map(|bytes| {
                let bytes = &bytes[..expected.len().min(bytes.len())];
                if bytes.len() == expected.len() && ffi::memcmp_equal(bytes, expected) {
                    return None;
                }
                first_difference(bytes, expected)
            });
            if let Some(offset) = wrong {
                let (op, size) = (self.op.short_name().to_owned(), self.size as u64);
                return Err(BenchError::Mismatch { op, route: route.into(), size, offset: offset as u64 });
            }
        }
        Ok(())
    }

    /// Returns the expected bytes of the destination; `None` if they equal the source.
    fn right_bytes(&self, slot: &Slot) -> Option<Vec<u8>> {
        let src = slot.src.as_deref().unwrap_or(&[]);
        match self.op {
            Opcode::Fill => {
                let mut bytes = PATTERN.to_le_bytes().repeat(self.size.div_ceil(8));
                bytes.truncate(self.size);
                Some(bytes)
            }
            Opcode::CreateDelta => Some(delta_record(src, slot.src2.as_deref().unwrap_or(&[]))),
            Opcode::ApplyDelta => {
                let mut bytes = vec![0; self.size];
                fill_known(&mut bytes, 7);
                for entry in src[..slot.record_bytes as usize].chunks_exact(DELTA_ENTRY_BYTES as usize) {
                    let at = 8 * usize::from(u16::from_le_bytes([entry[0], entry[1]]));
                    bytes[at..at + 8].copy_from_slice(&entry[2..]);
                }
                Some(bytes)
            }
            Opcode::DifInsert => Some(protected(src, TAGS, crc16_fast)),
            Opcode::DifStrip => Some(without_tuples(src)),
            Opcode::DifUpdate => Some(protected(&without_tuples(src), NEW_TAGS, crc16_fast)),
            _ => None,
        }
    }
}

/// A channel for the buffers of [`BufferMemory`].
pub(crate) type BufferChannel = Channel<PoolBuffer, PoolBuffer>;

fn without_tuples(src: &[u8]) -> Vec<u8> {
    src.chunks_exact(protected_len(BLOCK)).flat_map(|block| &block[..BLOCK]).copied().collect()
}

/// Returns the delta record that turns `a` into `b`, computed from the definition.
fn delta_record(a: &[u8], b: &[u8]) -> Vec<u8> {
    let words = a.chunks_exact(8).zip(b.chunks_exact(8)).enumerate();
    let entry = |(at, (_, new)): (usize, (&[u8], &[u8]))| {
        let offset = u16::try_from(at).expect("a delta has at most 65536 words").to_le_bytes();
        [&offset[..], new].concat()
    };
    words.filter(|(_, (old, new))| old != new).flat_map(entry).collect()
}

/// Changes one word in [`DELTA_SPACING`].
fn change(bytes: &mut [u8]) {
    for word in bytes.chunks_exact_mut(8).step_by(DELTA_SPACING) {
        word[3] ^= 0xff;
    }
}

/// Bytes that are needed only until the buffers have their contents. Buffers that are parts of larger pages begin at
/// small pages only if none is given back meanwhile.
fn known_bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill_known(&mut bytes, seed);
    bytes
}

fn slot(op: Opcode, size: usize, seed: u64, memory: &BufferMemory) -> Result<Slot, BenchError> {
    let rests = RefCell::default();
    let known = |len: usize| -> Result<PoolBuffer, BenchError> {
        let mut buffer = memory.buffer(Side::Src, len, &rests)?;
        fill_known(&mut buffer, seed);
        Ok(buffer)
    };
    let empty = |len: usize| memory.buffer(Side::Dst, len, &rests);
    let blocks = || -> Result<(PoolBuffer, usize), BenchError> {
        let data = known_bytes(size, seed);
        let mut buffer = memory.buffer(Side::Src, protected_len(size), &rests)?;
        buffer.copy_from_slice(&protected(&data, TAGS, crc16_fast));
        Ok((buffer, size))
    };
    let mut slot = Slot::default();
    match op {
        Opcode::MemoryMove => (slot.src, slot.dst) = (Some(known(size)?), Some(empty(size)?)),
        Opcode::Fill => slot.dst = Some(empty(size)?),
        Opcode::Compare => {
            (slot.src, slot.src2) = (Some(known(size)?), Some(known(size)?));
            slot.expected = Some(Outcome::Equal);
        }
        Opcode::ComparePattern => {
            let mut src = known(size)?;
            let pattern = PATTERN.to_le_bytes();
            src.iter_mut().zip(pattern.iter().cycle()).for_each(|(byte, p)| *byte = *p);
            slot.src = Some(src);
            slot.expected = Some(Outcome::Equal);
        }
        Opcode::CreateDelta | Opcode::ApplyDelta => {
            let old = known_bytes(size, seed);
            let mut new = old.clone();
            change(&mut new);
            let record = delta_record(&old, &new);
            let bytes = u32::try_from(record.len()).expect("a delta record is shorter than a megabyte");
            if op == Opcode::CreateDelta {
                let room = record.len().next_multiple_of(10).max(80);
                let mut src2 = known(size)?;
                change(&mut src2);
                (slot.src, slot.src2, slot.dst) = (Some(known(size)?), Some(src2), Some(empty(room)?));
                slot.expected = Some(Outcome::Delta(Delta::Complete { bytes }));
            } else {
                let mut src = known(record.len().max(80))?;
                src[..record.len()].copy_from_slice(&record);
                let mut dst = empty(size)?;
                fill_known(&mut dst, 7);
                (slot.src, slot.dst, slot.record_bytes) = (Some(src), Some(dst), bytes);
            }
        }
        Opcode::Dualcast => {
            (slot.src, slot.dst, slot.dst2) = (Some(known(size)?), Some(empty(size)?), Some(empty(size)?))
        }
        Opcode::CrcGeneration | Opcode::CopyCrc => {
            let src = known(size)?;
            slot.expected = Some(Outcome::Crc(crc_fast::crc32_iscsi(&src)));
            slot.src = Some(src);
            if op == Opcode::CopyCrc {
                slot.dst = Some(empty(size)?);
            }
        }
        Opcode::DifInsert => {
            (slot.src, slot.dst) = (Some(known(size)?), Some(empty(protected_len(size))?));
        }
        Opcode::DifCheck | Opcode::DifStrip | Opcode::DifUpdate => {
            let (src, data) = blocks()?;
            slot.src = Some(src);
            match op {
                Opcode::DifStrip => slot.dst = Some(empty(data)?),
                Opcode::DifUpdate => slot.dst = Some(empty(protected_len(data))?),
                _ => {}
            }
        }
        _ => slot.src = Some(known(size)?),
    }
    slot._rests = rests.into_inner();
    Ok(slot)
}

/// Makes this thread's next pages come from `node`. Without a node no call is made, because some systems forbid it.
fn place_on(node: Option<u32>) -> Result<(), BenchError> {
    ffi::place_new_pages(node).map_err(|source| BenchError::Placement { source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cpu_operation_writes_the_expected_bytes() {
        for &(_, op) in Opcode::NAMED {
            let mut work = OperationSlots::new(op, 4096, 3, &BufferMemory::small()).unwrap();
            work.spoil();
            for place in 0..work.places() {
                assert!(work.on_cpu(place, Hint::Cache), "{op}");
            }
            work.check("CPU").unwrap();
        }
    }

    #[test]
    fn parts_of_a_larger_page_hold_every_operation_and_begin_at_small_pages() {
        for (size, places) in [(64, 5), (512, 3), (4096, 3), (65_536, 2)] {
            for &(_, op) in Opcode::NAMED.iter().filter(|(_, op)| refuses(*op, size as u64).is_none()) {
                let pool = Pool::of(touched(places * buffer_bytes(size), PageSize::Small).unwrap());
                let pages = BufferPages::Parts { src: pool.clone(), dst: pool.clone() };
                let memory = BufferMemory { placement: None, pages };
                let mut work = OperationSlots::new(op, size, places, &memory).unwrap();
                work.spoil();
                for place in 0..places {
                    assert!(work.on_cpu(place, Hint::Cache), "{op}");
                    let Slot { src, src2, dst, dst2, .. } = &work.slots[place];
                    let mut starts = [src, src2, dst, dst2].into_iter().flatten().map(|buffer| buffer.as_ptr().addr());
                    assert!(starts.all(|start| start.is_multiple_of(PAGE)), "{op} {size}");
                }
                work.check("CPU").unwrap();
                drop(work);
                assert_eq!(pool.lent(), 0);
            }
        }
    }

    #[test]
    fn without_pages_of_1_gib_the_refusal_says_how_to_reserve_them() {
        // More than any machine has.
        let error = BufferMemory::new(Pages::Gigantic, None, 1 << 46).unwrap_err();
        let message = telpher_os::chain(&error);
        assert!(message.contains("hugepages-1048576kB/nr_hugepages"), "{message}");
    }

    #[test]
    fn an_unwritten_destination_is_found() {
        for op in [
            Opcode::MemoryMove,
            Opcode::Fill,
            Opcode::Dualcast,
            Opcode::CopyCrc,
            Opcode::DifInsert,
            Opcode::DifStrip,
            Opcode::DifUpdate,
            Opcode::CreateDelta,
        ] {
            let mut work = OperationSlots::new(op, 512, 2, &BufferMemory::small()).unwrap();
            work.spoil();
            let message = work.check("CPU").unwrap_err().to_string();
            assert!(message.contains("first wrong byte at offset 0"), "{op}: {message}");
        }
    }

    #[test]
    fn an_error_names_operation_size_and_offset_of_a_wrong_byte() {
        let mut work = OperationSlots::new(Opcode::MemoryMove, 300, 2, &BufferMemory::small()).unwrap();
        assert!(work.on_cpu(0, Hint::Cache) && work.on_cpu(1, Hint::Cache));
        work.slots[1].dst.as_mut().unwrap()[299] ^= 1;
        assert_eq!(
            work.check("inline sync").unwrap_err().to_string(),
            "wrong result of move (inline sync) at a size of 300 bytes: first wrong byte at offset 299"
        );
    }

    #[test]
    fn a_wrong_checksum_is_a_wrong_result() {
        let mut work = OperationSlots::new(Opcode::CrcGeneration, 64, 1, &BufferMemory::small()).unwrap();
        work.slots[0].src.as_mut().unwrap()[0] ^= 1;
        assert!(!work.on_cpu(0, Hint::Cache));
        assert!(!work.give_back(0, Buffers::default(), Outcome::Crc(0)));
    }

    #[test]
    fn unsupported_sizes_are_refused() {
        assert!(refuses(Opcode::CreateDelta, 1 << 20).is_some());
        assert!(refuses(Opcode::DifInsert, 64).is_some());
        assert!(refuses(Opcode::DifInsert, 4096).is_none() && refuses(Opcode::MemoryMove, 7).is_none());
    }
}
