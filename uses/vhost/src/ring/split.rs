//! The split layout: a table of descriptors, a ring of available heads from the driver, and a ring of used heads back.
//! Source: VirtIO 1.2 §2.7.

use super::area::{Area, Words};
use super::burst::{Burst, Step, Steps};
use super::chain::{Dropped, Gather, Link, PLAIN, Rules};
use super::{Base, Broken, RingError, RingSetup, Used};
use crate::layout::{DescriptorFlags, Features, NO_INTERRUPT, NO_NOTIFY, SplitDescriptor, USED_ELEMENT_BYTES};
use crate::memory::Window;
use crate::{GuestMemory, Piece};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use zerocopy::{FromBytes, IntoBytes};

/// Words of the available ring before its heads: flags and index.
const AVAILABLE_HEADS: usize = 2;
/// The position of the index in the available ring, in words; the same in the used ring.
const INDEX: usize = 1;

/// How many heads are read, and their descriptors prefetched, before the first is followed. Source: the usual burst.
const AHEAD: usize = 32;

/// Plain chains that start at these heads.
struct SplitSteps<'a> {
    descriptors: Words<'a, SplitDescriptor>,
    memory: &'a GuestMemory,
    window: Window,
    rules: Rules,
    heads: std::slice::Iter<'a, u16>,
    head: u16,
    /// The descriptor after the last one.
    next: u16,
}

impl Steps for SplitSteps<'_> {
    #[inline(always)]
    fn step(&mut self, begins: bool) -> Option<Step> {
        if begins {
            self.head = *self.heads.next()?;
            self.next = self.head;
        }
        if self.next >= self.rules.size {
            return None;
        }
        let descriptor = self.descriptors.read(self.next.into());
        let link = link(descriptor);
        if link.flags.intersection(PLAIN) != self.rules.plain() || link.len == 0 {
            return None;
        }
        let host = self.window.host_or_look(self.memory, link.address, link.len)?;
        self.next = descriptor.next;
        let more = link.flags.contains(DescriptorFlags::NEXT);
        Some(Step { id: self.head, piece: Piece { host, guest: link.address, len: link.len }, more })
    }

    #[inline]
    fn places(_: u16) -> u16 {
        1
    }
}

#[derive(Debug)]
pub(super) struct SplitRing {
    rules: Rules,
    events: bool,
    descriptors: Area<SplitDescriptor>,
    /// Flags, index, heads, and the used event index.
    available: Area<u16>,
    /// Flags, index.
    used: Area<u16>,
    /// The used elements: identifier and length in one word.
    elements: Area<[u32; 2]>,
    /// The available index from which on the driver shall kick.
    available_event: Area<u16>,
    /// The next head to take, free-running.
    next: u16,
    /// The driver's index when it was last read.
    seen: u16,
    /// The used index that the driver sees, free-running.
    shown: u16,
    /// The number of chains put, free-running.
    put: u16,
    /// For the dirty log: the first used element of the `put`s before the last `publish`.
    logged_from: u16,
    /// Nothing was published yet: the driver is called for the first chain.
    first: bool,
    /// The heads that a previous backend took and did not return, and the available index of the first one. They
    /// replace the available ring's heads.
    lent: (u16, Vec<u16>),
}

impl SplitRing {
    pub(super) fn new(memory: &Arc<GuestMemory>, setup: &RingSetup) -> Result<SplitRing, RingError> {
        let RingSetup { size, features, direction, addresses, base } = *setup;
        if !size.is_power_of_two() {
            return Err(RingError::Size { size });
        }
        let count = usize::from(size);
        let part = |part, address| move || RingError::Part { part, address };
        let [descriptors, driver, device] = [addresses.descriptors, addresses.driver, addresses.device];
        let elements = u64::from(USED_ELEMENT_BYTES) * u64::from(size);
        let used_part = part("used elements", device);
        let table = area(memory, descriptors, count).ok_or_else(part("descriptors", descriptors))?;
        let available =
            area(memory, driver, AVAILABLE_HEADS + count + 1).ok_or_else(part("available heads", driver))?;
        let used: Area<u16> = area(memory, device, 2).ok_or_else(used_part)?;
        let at = |offset: u64| device.checked_add(offset);
        let all = at(4).and_then(|at| area(memory, at, count)).ok_or_else(used_part)?;
        let available_event = at(4 + elements).and_then(|at| area(memory, at, 1)).ok_or_else(used_part)?;
        // The used index is in memory, and the driver counts on from it.
        let shown = used.acquire(INDEX);
        // A frontend without a valid base (virtio-user after the backend was killed) names an impossible one: then no
        // chain is outstanding.
        let next = if base.available.wrapping_sub(shown) <= size { base.available } else { shown };
        Ok(SplitRing {
            rules: Rules::of(size, features, direction),
            events: features.contains(Features::EVENT_IDX),
            descriptors: table,
            available,
            used,
            elements: all,
            available_event,
            next,
            seen: next,
            shown,
            put: shown,
            logged_from: shown,
            first: true,
            lent: (0, Vec::new()),
        })
    }

    /// Takes over the state of the same ring in other memory; what the guest wrote there meanwhile is ignored.
    pub(super) fn go_on_from(&mut self, old: &SplitRing) {
        (self.shown, self.put, self.logged_from, self.first) = (old.shown, old.put, old.logged_from, old.first);
        (self.next, self.seen) = (old.next, old.next);
        self.lent.clone_from(&old.lent);
    }

    /// Takes these heads first, whatever the available ring contains.
    pub(super) fn resume(&mut self, heads: Vec<u16>) {
        self.lent = (self.next, heads);
    }

    /// Replaces the available ring's heads by the resumed ones where they apply.
    #[cold]
    fn put_lent(&self, heads: &mut [u16]) {
        let (from, lent) = &self.lent;
        let mut index = self.next;
        for head in heads {
            *head = lent.get(usize::from(index.wrapping_sub(*from))).copied().unwrap_or(*head);
            index = index.wrapping_add(1);
        }
    }

    fn place(&self, index: u16) -> usize {
        usize::from(index & (self.rules.size - 1))
    }

    pub(super) fn available(&self) -> bool {
        self.seen != self.next || self.available.acquire(INDEX) != self.next
    }

    #[inline]
    pub(super) fn take(&mut self, memory: &GuestMemory, burst: &mut Burst, most: usize) -> Result<(), Broken> {
        let size = self.rules.size;
        if usize::from(self.seen.wrapping_sub(self.next)) < most {
            let seen = self.available.acquire(INDEX);
            // Both indices are free-running, so their distance is the number of chains that the device has.
            let ahead = seen.wrapping_sub(self.shown);
            if ahead > size || seen.wrapping_sub(self.next) > size {
                return Err(Broken::Ahead { ahead: ahead.max(seen.wrapping_sub(self.next)), size });
            }
            self.seen = seen;
        }
        let count = usize::from(self.seen.wrapping_sub(self.next)).min(most);
        let mut left = count;
        while left > 0 {
            let mut heads = [0; AHEAD];
            let mut heads = &mut heads[..left.min(AHEAD)];
            left -= heads.len();
            self.fetch(heads);
            while !heads.is_empty() {
                let short = self.take_short(memory, burst, heads);
                heads = &mut heads[short..];
                let long = if heads.is_empty() { 0 } else { self.take_long(memory, burst, heads) };
                heads = &mut heads[long..];
                if let Some((head, after)) = std::mem::take(&mut heads).split_first_mut() {
                    self.take_any(*head, memory, burst)?;
                    heads = after;
                }
            }
        }
        Ok(())
    }

    /// Reads the next heads. The driver wrote their descriptors on another core: prefetching brings the lines in
    /// parallel, not one after the other.
    #[inline]
    fn fetch(&self, heads: &mut [u16]) {
        let (available, descriptors, mask) = (self.available.words(), self.descriptors.words(), self.rules.size - 1);
        let mut index = self.next;
        for head in &mut *heads {
            *head = available.read(AVAILABLE_HEADS + usize::from(index & mask));
            descriptors.prefetch((*head).into());
            index = index.wrapping_add(1);
        }
        if !self.lent.1.is_empty() {
            self.put_lent(heads);
        }
    }

    /// The plain chains that start at these heads.
    #[inline]
    fn steps<'a>(&'a self, memory: &'a GuestMemory, heads: &'a [u16]) -> SplitSteps<'a> {
        let (descriptors, window, heads) = (self.descriptors.words(), Window::default(), heads.iter());
        SplitSteps { descriptors, memory, window, rules: self.rules, heads, head: 0, next: 0 }
    }

    /// Appends chains as long as each is one descriptor and one piece (nearly all are). Returns how many.
    #[inline(never)]
    fn take_short(&mut self, memory: &GuestMemory, burst: &mut Burst, heads: &[u16]) -> usize {
        let taken = burst.extend_short(heads.len(), self.steps(memory, heads));
        self.took(taken)
    }

    /// Appends chains as long as each is a few descriptors of one piece each. Returns how many.
    #[inline(never)]
    fn take_long(&mut self, memory: &GuestMemory, burst: &mut Burst, heads: &[u16]) -> usize {
        let (taken, _) = burst.extend_long(heads.len(), usize::MAX, self.steps(memory, heads));
        self.took(taken)
    }

    #[inline]
    fn took(&mut self, chains: usize) -> usize {
        // No more than the heads passed in.
        self.next = self.next.wrapping_add(u16::try_from(chains).unwrap_or(0));
        chains
    }

    /// Appends the chain that starts at `head`, of any kind.
    #[inline(never)]
    fn take_any(&mut self, head: u16, memory: &GuestMemory, burst: &mut Burst) -> Result<(), Broken> {
        let size = self.rules.size;
        if head >= size {
            return Err(Broken::Head { head, size });
        }
        self.next = self.next.wrapping_add(1);
        let start = burst.pieces.len();
        let mut gather = Gather { rules: self.rules, memory, pieces: &mut burst.pieces, start, len: 0 };
        let followed = follow(&self.descriptors, head, &mut gather).map(|()| gather.len);
        burst.push(head, 1, start, followed);
        Ok(())
    }

    pub(super) fn untake(&mut self, count: usize) {
        let count = u16::try_from(count).ok().filter(|&count| count <= self.outstanding());
        self.next = self.next.wrapping_sub(count.expect("no more chains are untaken than were taken"));
    }

    #[inline]
    pub(super) fn put(&mut self, used: &[Used]) {
        if self.put == self.shown {
            self.logged_from = self.shown;
        }
        let (elements, mask, mut put) = (self.elements.words(), self.rules.size - 1, self.put);
        for used in used {
            elements.write((put & mask).into(), [used.id.into(), used.written]);
            put = put.wrapping_add(1);
        }
        self.put = put;
        if !self.lent.1.is_empty() {
            self.forget_lent();
        }
    }

    /// Forgets the resumed heads when all are returned: their indices are reused then.
    #[cold]
    fn forget_lent(&mut self) {
        // The index advances by at most one ring size between two checks, so it cannot wrap around unnoticed.
        if usize::from(self.put.wrapping_sub(self.lent.0)) >= self.lent.1.len() {
            self.lent.1 = Vec::new();
        }
    }

    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        let (old, new) = (self.shown, self.put);
        if old == new {
            return false;
        }
        self.used.release(INDEX, new);
        self.shown = new;
        // SeqCst: we write our index before we read the driver's flags or event; the driver does the reverse (VirtIO
        // 1.2 §2.7.7.2).
        fence(Ordering::SeqCst);
        if std::mem::take(&mut self.first) && self.events {
            return true;
        }
        if self.events {
            let event = self.available.read(AVAILABLE_HEADS + usize::from(self.rules.size));
            need_event(event, old, new)
        } else {
            self.available.read(0) & NO_INTERRUPT == 0
        }
    }

    pub(super) fn written(&self, device: u64, mut each: impl FnMut(u64, u64)) {
        let bytes = u64::from(USED_ELEMENT_BYTES);
        let count = u64::from(self.shown.wrapping_sub(self.logged_from));
        let first = self.place(self.logged_from) as u64;
        let upto_end = count.min(u64::from(self.rules.size) - first);
        each(device + 4 + first * bytes, upto_end * bytes);
        if upto_end < count {
            each(device + 4, (count - upto_end) * bytes);
        }
        each(device + 2, 2);
    }

    pub(super) fn want_kicks(&mut self, wanted: bool) {
        if self.events {
            // To disable kicks: an index half the number range away, which is not reached.
            let event = if wanted { self.next } else { self.next.wrapping_sub(1 << 15) };
            self.available_event.write(0, event);
        } else {
            self.used.write(0, if wanted { 0 } else { NO_NOTIFY });
        }
        // SeqCst: this write before the next read of the available index (VirtIO 1.2 §2.7.9.3).
        fence(Ordering::SeqCst);
    }

    pub(super) fn outstanding(&self) -> u16 {
        self.next.wrapping_sub(self.put)
    }

    pub(super) fn base(&self) -> Base {
        Base { available: self.next, used: self.put }
    }
}

fn area<T: FromBytes + IntoBytes + Copy>(memory: &Arc<GuestMemory>, user: u64, count: usize) -> Option<Area<T>> {
    Area::of_user(Arc::clone(memory), user, count)
}

/// Collects the chain that starts at `head`.
fn follow(descriptors: &Area<SplitDescriptor>, head: u16, gather: &mut Gather<'_>) -> Result<(), Dropped> {
    let descriptors = descriptors.words();
    let mut index = head;
    for _ in 0..gather.rules.links {
        let descriptor = descriptors.read(index.into());
        let link = link(descriptor);
        if link.flags.contains(DescriptorFlags::INDIRECT) {
            return gather.table(link, |descriptor: SplitDescriptor, _, _| {
                let link = self::link(descriptor);
                (link, link.flags.contains(DescriptorFlags::NEXT).then_some(descriptor.next.into()))
            });
        }
        gather.buffer(link)?;
        if !link.flags.contains(DescriptorFlags::NEXT) {
            return Ok(());
        }
        index = descriptor.next;
        if index >= gather.rules.size {
            return Err(Dropped::Next);
        }
    }
    Err(Dropped::Loop)
}

#[inline]
fn link(descriptor: SplitDescriptor) -> Link {
    Link {
        address: descriptor.address,
        len: descriptor.len,
        flags: DescriptorFlags::from_bits_retain(descriptor.flags),
    }
}

/// Returns whether the step from `old` to `new` passes `event`. Source: VirtIO 1.2 §2.7.7.1, `vring_need_event`.
pub(super) fn need_event(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
