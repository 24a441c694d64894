//! The record of what is in flight: a file that the frontend keeps while backends come and go, so that the next one knows what the last took from
//! a ring and did not put back.
//!
//! ```text
//! take ─► an entry says "in flight", and when it was taken
//! show ─► the batch is linked ─► put and published ─► entries are cleared ─► the record's used index moves
//! crash anywhere ─► linked and published: cleared now; the rest is taken again, oldest first
//! ```
//!
//! This backend puts back in the order in which it took, so that what is in flight is always what the ring has from its used index on. A record
//! of a split ring may be by one that does not: then its heads come first, in the record's order.
//!
//! The frontend can write the record as it likes: every word is read once and compared before it is followed.
//!
//! Source: vhost-user, "Inflight I/O tracking".

use crate::message::RecordPlace;
use crate::ring::{Area, Base, Burst, Ring, Used};
use crate::words::{DescriptorFlags, Features};
use crate::{GuestMemory, Region, RegionError};
use rustix::fs::MemfdFlags;
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Words (of eight bytes) of a split ring's part before its entries, and of an entry. Source: vhost-user, `QueueRegionSplit`, `DescStateSplit`.
const SPLIT_HEAD: usize = 2;
const SPLIT_ENTRY: usize = 2;
/// The same of a packed ring. Source: vhost-user, `QueueRegionPacked` (29 bytes, aligned to 8), `DescStatePacked`.
const PACKED_HEAD: usize = 4;
const PACKED_ENTRY: usize = 4;
/// Words that parts begin at a multiple of: a cache line. Source: what DPDK and libvhost-user do; the frontend does not look.
const ALIGN: usize = 8;
/// The version that is written here. Source: vhost-user, "Inflight I/O tracking"; 0 is a record that nobody has used.
const VERSION: u64 = 1;

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The system has no room for it.
    #[error("no room for a record of {len} bytes")]
    Make {
        /// Its bytes.
        len: u64,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Its file cannot be mapped.
    #[error("the record cannot be mapped")]
    Map(#[source] RegionError),
    /// It is not aligned.
    #[error("the record begins at byte {offset} of its file, which is no multiple of 8")]
    Unaligned {
        /// Where.
        offset: u64,
    },
    /// It is shorter than what it is for.
    #[error("a record of {len} bytes for {rings} rings with {size} descriptors, which take {needed}")]
    Short {
        /// Its bytes.
        len: u64,
        /// Rings.
        rings: u16,
        /// Descriptors of each.
        size: u16,
        /// What they take.
        needed: u64,
    },
    /// It is not a record of this ring, or somebody wrote into it: what it says cannot be.
    #[error("the record of ring {ring} says what cannot be: {what}")]
    Damaged {
        /// Which.
        ring: usize,
        /// What cannot be.
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

/// Words that one ring takes.
fn stride(size: u16, packed: bool) -> usize {
    let (head, entry) = if packed { (PACKED_HEAD, PACKED_ENTRY) } else { (SPLIT_HEAD, SPLIT_ENTRY) };
    (head + entry * usize::from(size)).next_multiple_of(ALIGN)
}

/// Bytes that all take.
fn bytes(place: RecordPlace, packed: bool) -> u64 {
    // Cannot overflow: 2⁸ rings of 2¹⁵ descriptors at most, as the session has compared.
    (stride(place.size, packed) * size_of::<u64>()) as u64 * u64::from(place.rings)
}

impl Record {
    /// A new one, whose file goes to the frontend.
    pub(crate) fn make(asked: RecordPlace, features: Features) -> Result<(RecordPlace, OwnedFd), RecordError> {
        let len = bytes(asked, features.contains(Features::RING_PACKED));
        let file = rustix::fs::memfd_create("vhost-inflight", MemfdFlags::CLOEXEC)
            .and_then(|file| rustix::fs::ftruncate(&file, len).map(|()| file))
            .map_err(|error| RecordError::Make { len, source: error.into() })?;
        Ok((RecordPlace { len, offset: 0, ..asked }, file))
    }

    /// The record in the frontend's file.
    pub(crate) fn open(place: RecordPlace, file: &OwnedFd, features: Features) -> Result<Record, RecordError> {
        let packed = features.contains(Features::RING_PACKED);
        let RecordPlace { len, offset, rings, size } = place;
        let needed = bytes(place, packed);
        if len < needed {
            return Err(RecordError::Short { len, rings, size, needed });
        }
        let region = Region { guest: 0, len, user: 0, offset };
        let file = GuestMemory::new().with(region, file.as_fd()).map_err(RecordError::Map)?;
        let count = stride(size, packed) * usize::from(rings);
        let words = Area::of_user(Arc::new(file), 0, count).ok_or(RecordError::Unaligned { offset })?;
        Ok(Record { words, place, packed })
    }
}

/// The record of one ring, as it is written by who has the ring.
#[derive(Debug)]
pub(crate) struct RingRecord {
    record: Arc<Record>,
    /// Its first word.
    start: usize,
    size: u16,
    /// When the next chain is taken.
    counter: u64,
    /// Split: the batch's last head. Packed: the free list's first entry.
    head: u16,
    /// Packed: entries of chains in flight, oldest first.
    entries: VecDeque<u16>,
    /// Packed: how many of the chains that are taken next have their entries already, since a backend before this one took them.
    again: usize,
}

/// The wrap counter's bit beside a place. Source: VirtIO 1.2 §2.8.14.
const WRAP: u16 = 1 << 15;

/// Whether a packed ring's descriptor, by its second word, is available at a place with this wrap counter. Source: VirtIO 1.2 §2.8.1.
fn is_available(tail: u64, wrap: bool) -> bool {
    let [.., flags] = halves(tail);
    let flags = DescriptorFlags::from_bits_retain(flags);
    flags.contains(DescriptorFlags::AVAIL) == wrap && flags.contains(DescriptorFlags::USED) != wrap
}

/// A place of a packed ring with its wrap counter, so many places on, at most once around.
fn beyond(from: u16, by: u16, size: u16) -> u16 {
    // Cannot overflow: both are less than 2¹⁶.
    let place = u32::from(from & !WRAP) + u32::from(by);
    let around = place >= u32::from(size);
    let place = if around { place - u32::from(size) } else { place };
    u16::try_from(place).unwrap_or(0) & !WRAP | if around { !from & WRAP } else { from & WRAP }
}

/// Places from one to another of a packed ring, each with its wrap counter.
fn distance(from: u16, to: u16, size: u16) -> u16 {
    let (place, end) = (from & !WRAP, to & !WRAP);
    // Cannot overflow: both are less than the size, which is at most 2¹⁵.
    if (from ^ to) & WRAP == 0 { end.saturating_sub(place) } else { (size - place) + end }.min(size)
}

/// What a record says of a ring that begins.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Resumed {
    /// Where it goes on.
    pub(crate) base: Base,
    /// The heads from there on, if they are others than the ring's.
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
    /// The part of ring number `ring`, and what it says of what was in flight. The ring's base says where it was used up to if it is split; a packed
    /// one's is in the record.
    pub(crate) fn begin(
        record: &Arc<Record>,
        number: usize,
        ring: &Ring,
    ) -> Result<(RingRecord, Resumed), RecordError> {
        let (size, base) = (ring.setup().size, ring.base());
        let damaged = |what| RecordError::Damaged { ring: number, what };
        if number >= usize::from(record.place.rings) || size > record.place.size {
            return Err(damaged("it has not so many rings, or descriptors"));
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
            return Err(damaged("its version, or its number of descriptors, is another"));
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

    /// The first word of an entry.
    fn entry(&self, entry: u16) -> usize {
        let (head, words) = if self.record.packed { (PACKED_HEAD, PACKED_ENTRY) } else { (SPLIT_HEAD, SPLIT_ENTRY) };
        head + words * usize::from(entry)
    }

    fn make_new(&mut self, base: Base) {
        self.write(0, 0);
        for entry in 0..self.size {
            let at = self.entry(entry);
            // A packed ring's entries are a list of free ones at first, whose end is beyond them.
            let next = if self.record.packed { entry + 1 } else { 0 };
            self.write(at, if self.record.packed { word([0, next, 0, 0]) } else { 0 });
            self.write(at + 1, 0);
        }
        if self.record.packed {
            self.write_packed_used(base.used, base.used);
        }
        self.head = 0;
        // Last: whoever finds the version finds the rest.
        self.write_head(0, if self.record.packed { 0 } else { base.used });
    }

    /// The word with version and size, and beside them: the last batch and the used index (split), or the free list as it is and was (packed).
    fn write_head(&self, first: u16, second: u16) {
        self.write(1, word([1, self.size, first, second]));
    }

    /// Packed: where the used index was and is, with wrap counters.
    fn write_packed_used(&self, new: u16, old: u16) {
        let wraps = (new >> 15) | (old >> 15) << 8;
        self.write(2, word([new & 0x7fff, old & 0x7fff, wraps, 0]));
    }

    fn resume_split(&mut self, last: u16, recorded: u16, base: Base) -> Result<Resumed, &'static str> {
        // Used, and the record did not hear of it: its batch is cleared.
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
            return Err("an index of it is beyond the ring");
        }
        let [new, old] = [new | (wraps & 1) << 15, old | (wraps >> 8 & 1) << 15];
        // Shown, and the record did not hear of it; else not shown, and it is taken back.
        let is_shown = new != old && !is_available(ring.descriptor_words(old & !WRAP)[1], old & WRAP != 0);
        let used = if is_shown { new } else { old };
        if is_shown {
            // The batch is what the free list has grown by.
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
        // In the ring, in order, from there on. What was put and not shown is written over the first descriptors of its chains, which nobody has
        // looked at: they are put right. Anything else is another backend's, which did not keep the order.
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
                    return Err("what is in flight is not in the ring any more: another backend used it out of order");
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
        // The used index last: until then the next backend would find, and do, the same.
        self.head = if is_shown { free } else { old_free };
        self.write_head(self.head, self.head);
        self.write_packed_used(used, used);
        Ok(Resumed { base: Base { available: used, used }, heads: Vec::new() })
    }

    /// Entries that say "in flight", with their counters, oldest first.
    fn lent(&self) -> Vec<(u64, u16)> {
        let mut lent: Vec<_> = (0..self.size)
            .map(|entry| (self.entry(entry), entry))
            .filter(|(at, _)| self.read(*at) & 0xff != 0)
            .map(|(at, entry)| (self.read(at + 1), entry))
            .collect();
        lent.sort_unstable();
        lent
    }

    /// Chains of a burst were taken for good; the ring is behind them.
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
                // Taken again after a crash, it keeps its turn, should there be another crash before the others are.
                if flight & 0xff == 0 {
                    self.write(at + 1, self.counter);
                    self.counter = self.counter.wrapping_add(1);
                    self.write(at, word([1, 0, 0, next]));
                }
            }
        }
    }

    /// An entry for each descriptor, linked as the free list has them.
    fn take_packed(&mut self, ring: &Ring, place: u16, descriptors: u16) {
        // There are as many entries as descriptors; a frontend that writes into the list gets back what it wrote.
        let first = self.head % self.size;
        let (mut entry, mut last) = (first, first);
        for offset in 0..descriptors {
            last = entry % self.size;
            let at = self.entry(last);
            let [address, tail] = ring.descriptor_words((place + offset) % self.size);
            // Length, identifier and flags here; identifier, flags and length there.
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

    /// These are put next, and then published, by a ring that has put up to `base`.
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

    /// They are published; the ring has put up to `base`.
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
