//! The inflight record: a file that the frontend keeps while backends come and go. A new backend reads from it which
//! chains its predecessor took from a ring and did not return.
//!
//! ```text
//! take    ─► an entry is marked "in flight", with the time it was taken
//! return  ─► the batch is linked ─► put and published ─► entries are cleared ─► the record's used index is updated
//! crash   ─► linked and published: cleared by the successor; all others are taken again, oldest first
//! ```
//!
//! This backend returns chains in the order in which it took them. So the chains in flight are always those from the
//! ring's used index on. The record of a split ring may come from a backend that does not: then the record's heads come
//! first, in the record's order.
//!
//! The frontend can write anything into the record: every word is read once and checked before it is used.
//!
//! Source: vhost-user, "Inflight I/O tracking".

use crate::layout::{DescriptorFlags, Features};
use crate::message::RecordPlace;
use crate::ring::{Area, Base, Burst, Ring, Used};
use crate::{GuestMemory, Region, RegionError};
use rustix::fs::MemfdFlags;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Words (of eight bytes) of a split ring's part before its entries, and of one entry. Source: vhost-user,
/// `QueueRegionSplit`, `DescStateSplit`.
const SPLIT_HEAD: usize = 2;
const SPLIT_ENTRY: usize = 2;
/// The same for a packed ring. Source: vhost-user, `QueueRegionPacked` (29 bytes, aligned to 8), `DescStatePacked`.
const PACKED_HEAD: usize = 4;
const PACKED_ENTRY: usize = 4;
/// Alignment of each ring's part, in words: a cache line. Source: DPDK and libvhost-user do the same; the frontend does
/// not care.
const ALIGN: usize = 8;
/// The version that this backend writes. Source: vhost-user, "Inflight I/O tracking"; 0 marks an unused record.
const VERSION: u64 = 1;

/// Why an inflight record cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InflightRecordError {
    /// The system has no room for it.
    #[error("no room for a record of {len} bytes")]
    Make {
        /// Its length in bytes.
        len: u64,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Its file cannot be mapped.
    #[error("the record cannot be mapped")]
    Map(#[source] RegionError),
    /// It is not aligned.
    #[error("the record starts at byte {offset} of its file, which is not a multiple of 8")]
    Unaligned {
        /// The offset in bytes.
        offset: u64,
    },
    /// It is too short for the rings it describes.
    #[error("a record of {len} bytes for {rings} rings with {size} descriptors, which take {needed}")]
    Short {
        /// Its length in bytes.
        len: u64,
        /// Number of rings.
        rings: u16,
        /// Descriptors of each ring.
        size: u16,
        /// The bytes needed.
        needed: u64,
    },
    /// It is not a record of this ring, or its contents were changed: it contradicts itself or the ring.
    #[error("the record of ring {ring} is invalid: {what}")]
    Damaged {
        /// The ring's index.
        ring: usize,
        /// What is wrong.
        what: &'static str,
    },
}

/// The record of all rings.
#[derive(Debug)]
pub(crate) struct Record {
    words: Area<u64>,
    place: RecordPlace,
    packed: bool,
}

/// Words of one ring's part.
fn stride(size: u16, packed: bool) -> usize {
    let (head, entry) = if packed { (PACKED_HEAD, PACKED_ENTRY) } else { (SPLIT_HEAD, SPLIT_ENTRY) };
    (head + entry * usize::from(size)).next_multiple_of(ALIGN)
}

/// Bytes of all parts.
fn bytes(place: RecordPlace, packed: bool) -> u64 {
    // Cannot overflow: at most 2⁸ rings of 2¹⁵ descriptors, checked by the session.
    (stride(place.size, packed) * size_of::<u64>()) as u64 * u64::from(place.rings)
}

impl Record {
    /// Creates a record, whose file is sent to the frontend.
    pub(crate) fn make(asked: RecordPlace, features: Features) -> Result<(RecordPlace, OwnedFd), InflightRecordError> {
        let len = bytes(asked, features.contains(Features::RING_PACKED));
        let file = rustix::fs::memfd_create("vhost-inflight", MemfdFlags::CLOEXEC)
            .and_then(|file| rustix::fs::ftruncate(&file, len).map(|()| file))
            .map_err(|error| InflightRecordError::Make { len, source: error.into() })?;
        Ok((RecordPlace { len, offset: 0, ..asked }, file))
    }

    /// Opens the record in the frontend's file.
    pub(crate) fn open(place: RecordPlace, file: &OwnedFd, features: Features) -> Result<Record, InflightRecordError> {
        let packed = features.contains(Features::RING_PACKED);
        let RecordPlace { len, offset, rings, size } = place;
        let needed = bytes(place, packed);
        if len < needed {
            return Err(InflightRecordError::Short { len, rings, size, needed });
        }
        let region = Region { guest: 0, len, user: 0, offset };
        let file = GuestMemory::new().with(region, file.as_fd()).map_err(InflightRecordError::Map)?;
        let count = stride(size, packed) * usize::from(rings);
        let words = Area::of_user(Arc::new(file), 0, count).ok_or(InflightRecordError::Unaligned { offset })?;
        Ok(Record { words, place, packed })
    }
}

/// The record of one ring, written by the ring's owner.
#[derive(Debug)]
pub(crate) struct RingRecord {
    record: Arc<Record>,
    /// Its first word.
    start: usize,
    size: u16,
    /// The counter value for the next chain that is taken.
    counter: u64,
    /// Split: the last head of the batch. Packed: the first entry of the free list.
    head: u16,
    /// Packed: entries of chains in flight, oldest first.
    entries: VecDeque<u16>,
    /// Packed: how many of the chains taken next already have entries, because a previous backend took them.
    again: usize,
}

/// The wrap counter's bit beside a ring position. Source: VirtIO 1.2 §2.8.14.
const WRAP: u16 = 1 << 15;

/// Returns whether a packed ring's descriptor, given its second word, is available at a position with this wrap
/// counter. Source: VirtIO 1.2 §2.8.1.
fn is_available(tail: u64, wrap: bool) -> bool {
    let [.., flags] = halves(tail);
    let flags = DescriptorFlags::from_bits_retain(flags);
    flags.contains(DescriptorFlags::AVAIL) == wrap && flags.contains(DescriptorFlags::USED) != wrap
}

/// Advances a position of a packed ring (with its wrap counter) by `by`, at most once around.
fn beyond(from: u16, by: u16, size: u16) -> u16 {
    // Cannot overflow: both are less than 2¹⁶.
    let place = u32::from(from & !WRAP) + u32::from(by);
    let around = place >= u32::from(size);
    let place = if around { place - u32::from(size) } else { place };
    u16::try_from(place).unwrap_or(0) & !WRAP | if around { !from & WRAP } else { from & WRAP }
}

/// The number of positions from one to another in a packed ring, each with its wrap counter.
fn distance(from: u16, to: u16, size: u16) -> u16 {
    let (place, end) = (from & !WRAP, to & !WRAP);
    // Cannot overflow: both are less than the size, which is at most 2¹⁵.
    if (from ^ to) & WRAP == 0 { end.saturating_sub(place) } else { (size - place) + end }.min(size)
}

/// What a record says about a ring that starts.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Resumed {
    /// Where the ring resumes.
    pub(crate) base: Base,
    /// The heads from there on, if they differ from the ring's.
    pub(crate) heads: Vec<u16>,
}

fn halves(word: u64) -> [u16; 4] {
    [0, 16, 32, 48].map(|shift| {
        let [low, high, ..] = (word >> shift).to_le_bytes();
        u16::from_le_bytes([low, high])
    })
}

fn word(halves: [u16; 4]) -> u64 {
    halves.iter().rev().fold(0, |word, half| word << 16 | u64::from(*half))
}

impl RingRecord {
    /// Opens the part of ring number `ring`, and returns what was in flight. A split ring's used index is in its base;
    /// a packed ring's is in the record.
    pub(crate) fn begin(
        record: &Arc<Record>,
        number: usize,
        ring: &Ring,
    ) -> Result<(RingRecord, Resumed), InflightRecordError> {
        let (size, base) = (ring.setup().size, ring.base());
        let damaged = |what| InflightRecordError::Damaged { ring: number, what };
        if number >= usize::from(record.place.rings) || size > record.place.size {
            return Err(damaged("it has fewer rings or descriptors"));
        }
        let start = number * stride(record.place.size, record.packed);
        let (record, entries) = (Arc::clone(record), VecDeque::new());
        let mut this = RingRecord { record, start, size, counter: 1, head: 0, entries, again: 0 };
        let [version, count, h0, h1] = halves(this.read(1));
        if version == 0 {
            this.make_new(base);
            return Ok((this, Resumed { base, heads: Vec::new() }));
        }
        if u64::from(version) != VERSION || count != size {
            return Err(damaged("its version or number of descriptors differs"));
        }
        let resumed = if this.record.packed {
            this.resume_packed(h0, h1, ring).map_err(damaged)?
        } else {
            this.resume_split(h0, h1, base).map_err(damaged)?
        };
        Ok((this, resumed))
    }

    fn read(&self, index: usize) -> u64 {
        self.record.words.read(self.start + index)
    }

    fn write(&self, index: usize, word: u64) {
        self.record.words.write(self.start + index, word);
    }

    /// The index of an entry's first word.
    fn entry(&self, entry: u16) -> usize {
        let (head, words) = if self.record.packed { (PACKED_HEAD, PACKED_ENTRY) } else { (SPLIT_HEAD, SPLIT_ENTRY) };
        head + words * usize::from(entry)
    }

    fn make_new(&mut self, base: Base) {
        self.write(0, 0);
        for entry in 0..self.size {
            let at = self.entry(entry);
            // At first a packed ring's entries form a free list that ends beyond the last entry.
            let next = if self.record.packed { entry + 1 } else { 0 };
            self.write(at, if self.record.packed { word([0, next, 0, 0]) } else { 0 });
            self.write(at + 1, 0);
        }
        if self.record.packed {
            self.write_packed_used(base.used, base.used);
        }
        self.head = 0;
        // Written last: a reader that finds the version finds the rest.
        self.write_head(0, if self.record.packed { 0 } else { base.used });
    }

    /// Writes the word with version and size, and either the last batch and the used index (split), or the current and
    /// previous free list (packed).
    fn write_head(&self, first: u16, second: u16) {
        self.write(1, word([1, self.size, first, second]));
    }

    /// Packed: writes the new and the old used index, with wrap counters.
    fn write_packed_used(&self, new: u16, old: u16) {
        let wraps = (new >> 15) | (old >> 15) << 8;
        self.write(2, word([new & 0x7fff, old & 0x7fff, wraps, 0]));
    }

    fn resume_split(&mut self, last: u16, recorded: u16, base: Base) -> Result<Resumed, &'static str> {
        // Published, but not yet noted in the record: clear the batch.
        let late = base.used.wrapping_sub(recorded);
        if late > self.size {
            return Err("its used index is beyond the ring's");
        }
        let mut head = last;
        for _ in 0..late {
            if head >= self.size {
                return Err("its last batch names a descriptor beyond the ring");
            }
            let at = self.entry(head);
            let [_, _, _, next] = halves(self.read(at));
            self.write(at, word([0, 0, 0, next]));
            head = next;
        }
        let lent = self.lent();
        self.counter = lent.last().map_or(0, |(counter, _)| *counter).wrapping_add(1);
        self.head = if last < self.size { last } else { 0 };
        self.write_head(self.head, base.used);
        let heads = lent.into_iter().map(|(_, entry)| entry).collect();
        Ok(Resumed { base: Base { available: base.used, used: base.used }, heads })
    }

    fn resume_packed(&mut self, free: u16, old_free: u16, ring: &Ring) -> Result<Resumed, &'static str> {
        let size = self.size;
        let [new, old, wraps, _] = halves(self.read(2));
        if new >= size || old >= size || free > size || old_free > size {
            return Err("one of its indices is beyond the ring");
        }
        let [new, old] = [new | (wraps & 1) << 15, old | (wraps >> 8 & 1) << 15];
        // Published but not yet noted in the record; otherwise not published, and taken back.
        let is_shown = new != old && !is_available(ring.descriptor_words(old & !WRAP)[1], old & WRAP != 0);
        let used = if is_shown { new } else { old };
        if is_shown {
            // The batch is the part by which the free list has grown.
            let mut entry = free;
            for _ in 0..size {
                if entry == old_free || entry >= size {
                    break;
                }
                let at = self.entry(entry);
                let [_, next, last, count] = halves(self.read(at));
                self.write(at, word([0, next, last, count]));
                entry = next;
            }
        }
        let lent = self.lent();
        // The chains in flight lie in the ring, in order, from there on. Chains put but not published overwrote the
        // first descriptors, which the driver has not read: restore them. Anything else comes from another backend that
        // did not keep the order.
        let (mut place, mut unshown) = (used & !WRAP, if is_shown { 0 } else { distance(old, new, size) });
        for &(_, first) in &lent {
            let [_, _, _, count] = halves(self.read(self.entry(first)));
            let mut entry = first;
            for at in 0..count.min(size) {
                // Cannot overflow: both are less than 2¹⁵.
                let place = (place + at) % size;
                let index = self.entry(entry);
                let words = [self.read(index + 3), self.read(index + 2).rotate_left(32)];
                if at < unshown {
                    ring.restore_descriptor(place, words);
                } else if ring.descriptor_words(place) != words {
                    return Err(
                        "chains in flight are no longer in the ring: another backend returned chains out of order",
                    );
                }
                let [_, next, _, _] = halves(self.read(index));
                entry = next % size;
            }
            place = (place + count.min(size) % size) % size;
            unshown = unshown.saturating_sub(count);
        }
        self.counter = lent.last().map_or(0, |(counter, _)| *counter).wrapping_add(1);
        self.again = lent.len();
        self.entries = lent.into_iter().map(|(_, first)| first).collect();
        // The used index is written last: until then the next backend would find the same state and do the same.
        self.head = if is_shown { free } else { old_free };
        self.write_head(self.head, self.head);
        self.write_packed_used(used, used);
        Ok(Resumed { base: Base { available: used, used }, heads: Vec::new() })
    }

    /// Entries marked "in flight", with their counters, oldest first.
    fn lent(&self) -> Vec<(u64, u16)> {
        let mut lent: Vec<_> = (0..self.size)
            .map(|entry| (self.entry(entry), entry))
            .filter(|(at, _)| self.read(*at) & 0xff != 0)
            .map(|(at, entry)| (self.read(at + 1), entry))
            .collect();
        lent.sort_unstable();
        lent
    }

    /// Records that the chains of a burst were taken for good; the ring is already behind them.
    pub(crate) fn taken(&mut self, ring: &Ring, burst: &Burst) {
        let chains = burst.chains();
        if self.record.packed {
            let descriptors: u16 = chains.iter().map(|chain| chain.descriptors).sum();
            let mut place = ring.place_before(descriptors);
            for chain in chains {
                match self.again.checked_sub(1) {
                    Some(less) => self.again = less,
                    None => self.take_packed(ring, place, chain.descriptors),
                }
                place = (place + chain.descriptors) % self.size;
            }
        } else {
            for chain in chains {
                let at = self.entry(chain.id);
                let [flight, _, _, next] = halves(self.read(at));
                // A chain retaken after a crash keeps its turn, in case of another crash before the others are retaken.
                if flight & 0xff == 0 {
                    self.write(at + 1, self.counter);
                    self.counter = self.counter.wrapping_add(1);
                    self.write(at, word([1, 0, 0, next]));
                }
            }
        }
    }

    /// Fills an entry for each descriptor, linked as in the free list.
    fn take_packed(&mut self, ring: &Ring, place: u16, descriptors: u16) {
        // There are as many entries as descriptors. A frontend that writes into the list gets its own values back.
        let first = self.head % self.size;
        let (mut entry, mut last) = (first, first);
        for offset in 0..descriptors {
            last = entry % self.size;
            let at = self.entry(last);
            let [address, tail] = ring.descriptor_words((place + offset) % self.size);
            // In the ring: length, identifier, flags. In the record: identifier, flags, length.
            self.write(at + 2, tail.rotate_left(32));
            self.write(at + 3, address);
            [_, entry, _, _] = halves(self.read(at));
        }
        let at = self.entry(first);
        let [_, next, _, _] = halves(self.read(at));
        self.write(at + 1, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.write(at, word([1, next, last, descriptors]));
        self.head = entry.min(self.size);
        self.entries.push_back(first);
        self.write_head(self.head, self.head);
    }

    /// Records that these chains are put and then published next, by a ring that has put up to `base`.
    pub(crate) fn goes_back(&mut self, used: &[Used], base: Base) {
        if self.record.packed {
            let old = self.head;
            for &first in self.entries.iter().take(used.len()) {
                let [_, _, last, _] = halves(self.read(self.entry(first)));
                let at = self.entry(last % self.size);
                let [flight, _, end, count] = halves(self.read(at));
                self.write(at, word([flight, self.head, end, count]));
                self.head = first;
            }
            self.write_head(self.head, old);
            let descriptors = used.iter().fold(0, |all: u16, used| all.saturating_add(used.descriptors));
            self.write_packed_used(beyond(base.used, descriptors, self.size), base.used);
        } else {
            for used in used {
                let at = self.entry(used.id);
                let [flight, ..] = halves(self.read(at));
                self.write(at, word([flight, 0, 0, self.head]));
                self.head = used.id;
            }
            self.write_head(self.head, base.used);
        }
    }

    /// Records that they are published; the ring has put up to `base`.
    pub(crate) fn went_back(&mut self, used: &[Used], base: Base) {
        if self.record.packed {
            for _ in used {
                let Some(first) = self.entries.pop_front() else { break };
                let at = self.entry(first);
                let [_, next, last, count] = halves(self.read(at));
                self.write(at, word([0, next, last, count]));
            }
            self.write_head(self.head, self.head);
            self.write_packed_used(base.used, base.used);
        } else {
            for used in used {
                let at = self.entry(used.id);
                let [.., next] = halves(self.read(at));
                self.write(at, word([0, 0, 0, next]));
            }
            self.write_head(self.head, base.used);
        }
    }
}

#[cfg(test)]
mod tests;
