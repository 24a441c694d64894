//! The packed layout: one ring of descriptors written by both sides; wrap counters show which side owns a descriptor.
//! Source: VirtIO 1.2 §2.8.

use super::area::{Area, Words};
use super::burst::{Burst, Chain, Step, Steps};
use super::chain::{Dropped, Gather, Link, PLAIN, Rules};
use super::split::need_event;
use super::{Base, Broken, RingError, RingSetup, Used};
use crate::layout::{
    DESCRIPTOR_BYTES, DescriptorFlags, EVENT_DESCRIPTOR, EVENT_DISABLE, EVENT_ENABLE, Features, PackedDescriptor,
};
use crate::memory::Window;
use crate::{GuestMemory, Piece};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The wrap counter's bit beside a position. Source: VirtIO 1.2 §2.8.14, `desc_event_wrap`; vhost-user, vring state.
const WRAP: u16 = 1 << 15;
/// Words (of eight bytes) of a descriptor: its address, and its length, identifier and flags, which are accessed
/// together.
pub(super) const WORDS: usize = 2;
/// Words of an event suppression structure: the position (`desc`) and the mode (`flags`).
const EVENT_WHERE: usize = 0;
const EVENT_HOW: usize = 1;

/// The flags that show which side owns a descriptor.
const AVAIL_USED: DescriptorFlags = DescriptorFlags::AVAIL.union(DescriptorFlags::USED);
const PLAIN_AND_AVAIL_USED: DescriptorFlags = PLAIN.union(AVAIL_USED);

/// A position in the ring and its wrap counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cursor {
    pub(super) place: u16,
    pub(super) wrap: bool,
}

impl Cursor {
    pub(super) fn from_word(word: u16, size: u16) -> Result<Cursor, RingError> {
        let place = word & !WRAP;
        if place < size {
            Ok(Cursor { place, wrap: word & WRAP != 0 })
        } else {
            Err(RingError::Base { base: word, size })
        }
    }

    pub(super) fn word(self) -> u16 {
        self.place | if self.wrap { WRAP } else { 0 }
    }

    /// Advances by `by` positions, at most once around.
    #[inline]
    pub(super) fn on(self, by: u16, size: u16) -> Cursor {
        // Cannot overflow: the place is less than 2¹⁵, and the step at most that.
        let place = self.place.wrapping_add(by);
        if place >= size { Cursor { place: place - size, wrap: !self.wrap } } else { Cursor { place, ..self } }
    }

    /// Goes back by `by` positions, at most once around.
    fn back(self, by: u16, size: u16) -> Cursor {
        // Forward by the rest of the ring; the wrap counter flips with every time around.
        let forward = self.on(size - by, size);
        Cursor { wrap: !forward.wrap, ..forward }
    }

    /// The ownership flags of a descriptor that is available at this position.
    #[inline]
    fn lent(self) -> DescriptorFlags {
        if self.wrap { DescriptorFlags::AVAIL } else { DescriptorFlags::USED }
    }

    /// Returns whether a descriptor with these flags is available at this position.
    #[inline]
    fn available(self, flags: DescriptorFlags) -> bool {
        flags.intersection(AVAIL_USED) == self.lent()
    }

    /// The flags that mark a descriptor as used at this position.
    #[inline]
    fn used(self) -> DescriptorFlags {
        if self.wrap { AVAIL_USED } else { DescriptorFlags::empty() }
    }
}

/// A descriptor's second word. Source: VirtIO 1.2 §2.8.13.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    pub(super) len: u32,
    pub(super) id: u16,
    pub(super) flags: DescriptorFlags,
}

impl Tail {
    #[inline]
    pub(super) fn from_word(word: u64) -> Tail {
        let [l0, l1, l2, l3, i0, i1, f0, f1] = word.to_le_bytes();
        Tail {
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            id: u16::from_le_bytes([i0, i1]),
            flags: DescriptorFlags::from_bits_retain(u16::from_le_bytes([f0, f1])),
        }
    }

    #[inline]
    pub(super) fn word(self) -> u64 {
        u64::from(self.len) | u64::from(self.id) << 32 | u64::from(self.flags.bits()) << 48
    }
}

/// Plain chains in the ring.
struct PackedSteps<'a> {
    descriptors: Words<'a, u64>,
    memory: &'a GuestMemory,
    window: Window,
    size: u16,
    cursor: Cursor,
    plain: DescriptorFlags,
    /// The flags of a plain descriptor that is available at the cursor.
    expected: DescriptorFlags,
}

impl Steps for PackedSteps<'_> {
    #[inline(always)]
    fn step(&mut self, _: bool) -> Option<Step> {
        let place = usize::from(self.cursor.place) * WORDS;
        let tail = Tail::from_word(self.descriptors.acquire(place + 1));
        // Checked also for descriptors after the first, where it is not required: any other flags make a descriptor not
        // plain.
        if tail.flags.intersection(PLAIN_AND_AVAIL_USED) != self.expected || tail.len == 0 {
            return None;
        }
        let guest = self.descriptors.read(place);
        let host = self.window.host_or_look(self.memory, guest, tail.len)?;
        self.cursor.place += 1;
        if self.cursor.place == self.size {
            self.cursor = Cursor { place: 0, wrap: !self.cursor.wrap };
            self.expected = self.plain | self.cursor.lent();
        }
        let more = tail.flags.contains(DescriptorFlags::NEXT);
        Some(Step { id: tail.id, piece: Piece { host, guest, len: tail.len }, more })
    }

    #[inline]
    fn places(descriptors: u16) -> u16 {
        descriptors
    }
}

#[derive(Debug)]
pub(super) struct PackedRing {
    rules: Rules,
    events: bool,
    descriptors: Area<u64>,
    driver_event: Area<u16>,
    device_event: Area<u16>,
    /// The position of the next available chain.
    next: Cursor,
    /// The position of the next used descriptor.
    put: Cursor,
    /// The first used descriptor that was put and not published: its position and second word.
    first: Option<(Cursor, u64)>,
    /// Descriptors taken and not returned.
    lent: u16,
    /// Chains taken and not returned.
    outstanding: u16,
    /// The position of the first used descriptor of the last `publish`.
    shown: Cursor,
    /// Nothing was published yet: the driver is called for the first chain.
    fresh: bool,
}

impl PackedRing {
    pub(super) fn new(memory: &Arc<GuestMemory>, setup: &RingSetup) -> Result<PackedRing, RingError> {
        let RingSetup { size, features, direction, addresses, base } = *setup;
        let count = usize::from(size);
        let part = |part, address| move || RingError::Part { part, address };
        let descriptors = || part("descriptors", addresses.descriptors);
        // A descriptor is aligned to 16 bytes (VirtIO 1.2 §2.8.10.1); `Area` requires only eight.
        if !addresses.descriptors.is_multiple_of(DESCRIPTOR_BYTES.into()) {
            return Err(descriptors()());
        }
        let put = Cursor::from_word(base.used, size)?;
        Ok(PackedRing {
            rules: Rules::of(size, features, direction),
            events: features.contains(Features::EVENT_IDX),
            descriptors: Area::of_user(Arc::clone(memory), addresses.descriptors, count * WORDS)
                .ok_or_else(descriptors())?,
            driver_event: Area::of_user(Arc::clone(memory), addresses.driver, 2)
                .ok_or_else(part("driver's events", addresses.driver))?,
            device_event: Area::of_user(Arc::clone(memory), addresses.device, 2)
                .ok_or_else(part("device's events", addresses.device))?,
            next: Cursor::from_word(base.available, size)?,
            put,
            first: None,
            lent: 0,
            outstanding: 0,
            shown: put,
            fresh: true,
        })
    }

    /// Takes over the state of the same ring in other memory.
    pub(super) fn go_on_from(&mut self, old: &PackedRing) {
        (self.first, self.lent, self.outstanding) = (old.first, old.lent, old.outstanding);
        (self.shown, self.fresh) = (old.shown, old.fresh);
    }

    /// The position at which the last `descriptors` descriptors were taken.
    pub(super) fn place_before(&self, descriptors: u16) -> u16 {
        self.next.back(descriptors, self.rules.size).place
    }

    /// Both words of a descriptor.
    pub(super) fn words(&self, place: u16) -> [u64; 2] {
        [0, 1].map(|word| self.descriptors.read(usize::from(place) * WORDS + word))
    }

    /// Writes both words of a descriptor.
    pub(super) fn restore(&self, place: u16, words: [u64; 2]) {
        self.descriptors.write(usize::from(place) * WORDS, words[0]);
        self.descriptors.release(usize::from(place) * WORDS + 1, words[1]);
    }

    /// Reads a descriptor's second word with acquire ordering.
    #[inline]
    fn tail(&self, place: u16) -> Tail {
        Tail::from_word(self.descriptors.acquire(usize::from(place) * WORDS + 1))
    }

    pub(super) fn available(&self) -> bool {
        self.next.available(self.tail(self.next.place).flags)
    }

    #[inline]
    pub(super) fn take(&mut self, memory: &GuestMemory, burst: &mut Burst, most: usize) -> Result<(), Broken> {
        let mut taken = 0;
        loop {
            taken += self.take_short(memory, burst, most - taken);
            if taken < most {
                taken += self.take_long(memory, burst, most - taken);
            }
            // The run ended: nothing is available, the next chain is not plain, or the ring is full.
            if taken == most || !self.take_any(memory, burst)? {
                return Ok(());
            }
            taken += 1;
        }
    }

    /// The plain chains from the next position on.
    #[inline]
    fn steps<'a>(&'a self, memory: &'a GuestMemory) -> PackedSteps<'a> {
        let (cursor, plain, window) = (self.next, self.rules.plain(), Window::default());
        let expected = plain | cursor.lent();
        PackedSteps {
            descriptors: self.descriptors.words(),
            memory,
            window,
            size: self.rules.size,
            cursor,
            plain,
            expected,
        }
    }

    /// How many descriptors may be taken: at most the ring's size in all.
    #[inline]
    fn room(&self) -> u16 {
        self.rules.size.saturating_sub(self.lent)
    }

    /// Appends chains as long as each is one descriptor and one piece (nearly all are). Returns how many.
    #[inline(never)]
    fn take_short(&mut self, memory: &GuestMemory, burst: &mut Burst, most: usize) -> usize {
        let taken = burst.extend_short(most.min(self.room().into()), self.steps(memory));
        self.took(taken, taken);
        taken
    }

    /// Appends chains as long as each is a few descriptors of one piece each. Returns how many.
    #[inline(never)]
    fn take_long(&mut self, memory: &GuestMemory, burst: &mut Burst, most: usize) -> usize {
        let (taken, descriptors) = burst.extend_long(most, self.room().into(), self.steps(memory));
        self.took(taken, descriptors);
        taken
    }

    /// Records that chains were taken, with this many descriptors, no more than there was room for.
    #[inline]
    fn took(&mut self, chains: usize, descriptors: usize) {
        let [chains, descriptors] = [chains, descriptors].map(|count| u16::try_from(count).unwrap_or(0));
        self.next = self.next.on(descriptors, self.rules.size);
        self.lent += descriptors;
        self.outstanding += chains;
    }

    /// Appends the next chain, of any kind; returns false if there is none.
    #[inline(never)]
    fn take_any(&mut self, memory: &GuestMemory, burst: &mut Burst) -> Result<bool, Broken> {
        let size = self.rules.size;
        let tail = self.tail(self.next.place);
        if !self.next.available(tail.flags) {
            return Ok(false);
        }
        let start = burst.pieces.len();
        let mut gather = Gather { rules: self.rules, memory, pieces: &mut burst.pieces, start, len: 0 };
        let (id, descriptors, followed) = self.follow(tail, &mut gather);
        let len = gather.len;
        // A descriptor that we have not returned cannot become available again.
        let lent = self.lent.saturating_add(descriptors);
        if lent > size {
            burst.pieces.truncate(start);
            return Err(Broken::Ahead { ahead: lent, size });
        }
        burst.push(id, descriptors, start, followed.map(|()| len));
        self.lent = lent;
        self.outstanding += 1;
        self.next = self.next.on(descriptors, size);
        Ok(true)
    }

    /// Collects the chain at `next`, whose first descriptor's second word was read. Returns its identifier, which is in
    /// its last descriptor, and its number of descriptors. For an invalid chain the descriptors are only counted.
    #[inline]
    fn follow(&self, first: Tail, gather: &mut Gather<'_>) -> (u16, u16, Result<(), Dropped>) {
        let size = gather.rules.size;
        let (mut cursor, mut tail) = (self.next, first);
        let mut followed = Ok(());
        for count in 1..=size {
            let address = self.descriptors.read(usize::from(cursor.place) * WORDS);
            let link = Link { address, len: tail.len, flags: tail.flags };
            if followed.is_ok() {
                followed = if !tail.flags.contains(DescriptorFlags::INDIRECT) {
                    gather.buffer(link)
                } else if count > 1 {
                    // A chain in the ring and a table are mutually exclusive (VirtIO 1.2 §2.8.19).
                    Err(Dropped::Indirect)
                } else {
                    // In a table only WRITE counts, and all its descriptors are used (VirtIO 1.2 §2.8.7). WRITE is only
                    // checked if the device writes: DPDK's driver (22.11) leaves the flag set in readable buffers. A
                    // device should not read such buffers, but may (§2.7.5.1).
                    let mut counts = DescriptorFlags::INDIRECT;
                    counts.set(DescriptorFlags::WRITE, gather.rules.writes);
                    gather.table(link, |descriptor: PackedDescriptor, index, count| {
                        let flags = DescriptorFlags::from_bits_retain(descriptor.flags) & counts;
                        let link = Link { address: descriptor.address, len: descriptor.len, flags };
                        (link, (index + 1 < count).then_some(index + 1))
                    })
                };
            }
            if !tail.flags.contains(DescriptorFlags::NEXT) {
                return (tail.id, count, followed);
            }
            // The driver makes the first descriptor available last, so the others are complete (VirtIO 1.2 §2.8.21).
            cursor = cursor.on(1, size);
            tail = self.tail(cursor.place);
        }
        // As many descriptors as the ring has, and the last one still has a next.
        (first.id, size, Err(Dropped::Loop))
    }

    pub(super) fn untake(&mut self, chains: &[Chain]) {
        let descriptors: u16 = chains.iter().map(|chain| chain.descriptors).sum();
        assert!(descriptors <= self.lent, "no more chains are untaken than were taken");
        self.lent -= descriptors;
        self.outstanding -= u16::try_from(chains.len()).expect("no more chains than descriptors");
        self.next = self.next.back(descriptors, self.rules.size);
    }

    #[inline]
    pub(super) fn put(&mut self, used: &[Used]) {
        let (words, size) = (self.descriptors.words(), self.rules.size);
        let (mut cursor, mut descriptors) = (self.put, 0_u16);
        for used in used {
            let mut flags = cursor.used();
            if used.written > 0 {
                flags |= DescriptorFlags::WRITE;
            }
            let word = Tail { len: used.written, id: used.id, flags }.word();
            // The driver reads used descriptors in order, so the first makes all visible (VirtIO 1.2 §2.8.22).
            if self.first.is_none() {
                self.first = Some((cursor, word));
                self.shown = cursor;
            } else {
                words.release(usize::from(cursor.place) * WORDS + 1, word);
            }
            descriptors = descriptors.saturating_add(used.descriptors);
            cursor = cursor.on(used.descriptors, size);
        }
        self.put = cursor;
        self.lent = self.lent.saturating_sub(descriptors);
        self.outstanding = self.outstanding.saturating_sub(u16::try_from(used.len()).unwrap_or(u16::MAX));
    }

    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        let Some((cursor, word)) = self.first.take() else { return false };
        self.descriptors.release(usize::from(cursor.place) * WORDS + 1, word);
        // SeqCst: we write our flags before we read the driver's event structure; the driver does the reverse (VirtIO
        // 1.2 §2.8.21.3).
        fence(Ordering::SeqCst);
        let how = self.driver_event.read(EVENT_HOW);
        let fresh = std::mem::take(&mut self.fresh);
        match how & 3 {
            EVENT_DISABLE => false,
            EVENT_DESCRIPTOR if self.events && !fresh => {
                let event = self.driver_event.read(EVENT_WHERE);
                let size = self.rules.size;
                // Relative to the current wrap: a position before the last wrap is one ring size lower.
                let at = |cursor: Cursor| {
                    if cursor.wrap == self.put.wrap { cursor.place } else { cursor.place.wrapping_sub(size) }
                };
                let event = at(Cursor { place: event & !WRAP, wrap: event & WRAP != 0 });
                need_event(event, at(cursor), self.put.place)
            }
            _ => true,
        }
    }

    pub(super) fn written(&self, descriptors: u64, mut each: impl FnMut(u64, u64)) {
        let bytes = u64::from(DESCRIPTOR_BYTES);
        let (from, to) = (u64::from(self.shown.place), u64::from(self.put.place));
        if from < to || (from == to && self.shown.wrap == self.put.wrap) {
            each(descriptors + from * bytes, (to - from) * bytes);
        } else {
            each(descriptors + from * bytes, (u64::from(self.rules.size) - from) * bytes);
            each(descriptors, to * bytes);
        }
    }

    pub(super) fn want_kicks(&mut self, wanted: bool) {
        if wanted && self.events {
            self.device_event.write(EVENT_WHERE, self.next.word());
        }
        let how = match wanted {
            false => EVENT_DISABLE,
            true if self.events => EVENT_DESCRIPTOR,
            true => EVENT_ENABLE,
        };
        self.device_event.release(EVENT_HOW, how);
        // SeqCst: this write before the next read of a descriptor's flags (VirtIO 1.2 §2.8.21.3).
        fence(Ordering::SeqCst);
    }

    pub(super) fn outstanding(&self) -> u16 {
        self.outstanding
    }

    pub(super) fn base(&self) -> Base {
        Base { available: self.next.word(), used: self.put.word() }
    }
}
