//! A mock guest and driver in this process: the other side of a ring, for tests and benches. It follows the rules;
//! hostile tests write into its memory.

use super::area::Area;
use super::packed::{Cursor, Tail, WORDS};
use super::{Base, Direction, RingAddresses, RingSetup};
use crate::layout::{DESCRIPTOR_BYTES, DescriptorFlags, Features, SplitDescriptor};
use crate::{GuestMemory, Region};
use rustix::fs::MemfdFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The difference between the frontend's address and the guest address of a byte: large, so that tests detect a mix-up.
const USER_OFFSET: u64 = 0x7f00_0000_0000;
/// Guest address of a mock guest's first byte.
const FIRST: u64 = 0x10_0000;

/// A guest's memory: one region of a file, allocated from its start.
#[derive(Debug)]
pub struct MockGuest {
    file: OwnedFd,
    memory: Arc<GuestMemory>,
    region: Region,
    lent: u64,
}

impl MockGuest {
    /// Creates a guest with `len` bytes, all zero.
    ///
    /// # Panics
    /// If the system has not enough memory.
    #[must_use]
    pub fn new(len: u64) -> MockGuest {
        let file = rustix::fs::memfd_create("telpher-guest", MemfdFlags::CLOEXEC).expect("a file in memory");
        rustix::fs::ftruncate(&file, len).expect("room for the guest");
        let region = Region { guest: FIRST, len, user: FIRST + USER_OFFSET, offset: 0 };
        let memory = GuestMemory::new().with(region, file.as_fd()).expect("the file is as long as its region");
        MockGuest { file, memory: Arc::new(memory), region, lent: 0 }
    }

    /// The guest's memory as a backend sees it.
    #[must_use]
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// The guest's memory file.
    #[must_use]
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// The guest's only region.
    #[must_use]
    pub fn region(&self) -> Region {
        self.region
    }

    /// Allocates `len` bytes of guest memory and returns their guest address, aligned to a page if they fill one,
    /// otherwise to 16 bytes.
    ///
    /// # Panics
    /// If the memory is used up.
    pub fn lend(&mut self, len: u64) -> u64 {
        let align = if len >= 4096 { 4096 } else { 16 };
        let at = self.lent.next_multiple_of(align);
        self.lent = at + len;
        assert!(self.lent <= self.region.len, "{len} bytes more of a guest of {}", self.region.len);
        self.region.guest + at
    }

    /// Reads guest memory.
    ///
    /// # Panics
    /// If the address is not the guest's.
    #[must_use]
    pub fn read(&self, guest: u64, len: usize) -> Vec<u8> {
        let area = Area::<u8, &GuestMemory>::of_guest(&self.memory, guest, len).expect("memory of the guest");
        (0..len).map(|at| area.read(at)).collect()
    }

    /// Writes guest memory.
    ///
    /// # Panics
    /// If the address is not the guest's.
    pub fn write(&self, guest: u64, bytes: &[u8]) {
        let area = Area::<u8, &GuestMemory>::of_guest(&self.memory, guest, bytes.len()).expect("memory of the guest");
        bytes.iter().enumerate().for_each(|(at, byte)| area.write(at, *byte));
    }
}

/// The driver's side of one ring.
#[derive(Debug)]
pub struct MockDriver {
    setup: RingSetup,
    /// Guest addresses of the ring's parts.
    parts: RingAddresses,
    side: DriverSide,
    /// The number of descriptors of each identifier that the device has; 0 if it has none.
    out: Vec<u16>,
    lent: usize,
}

#[derive(Debug)]
enum DriverSide {
    Split(SplitDriver),
    Packed(PackedDriver),
}

#[derive(Debug)]
struct SplitDriver {
    descriptors: Area<SplitDescriptor>,
    available: Area<u16>,
    used: Area<u16>,
    elements: Area<[u32; 2]>,
    free: Vec<u16>,
    /// The descriptor after each one in its chain, as the driver wrote it: the guest's memory is not reliable.
    next: Vec<u16>,
    index: u16,
    seen: u16,
}

#[derive(Debug)]
struct PackedDriver {
    descriptors: Area<u64>,
    driver_event: Area<u16>,
    device_event: Area<u16>,
    ids: Vec<u16>,
    free: u16,
    next: Cursor,
    used: Cursor,
}

impl MockDriver {
    /// Creates a ring in the guest's memory.
    ///
    /// # Panics
    /// If the guest's memory is used up.
    #[must_use]
    pub fn new(guest: &mut MockGuest, size: u16, features: Features, direction: Direction) -> MockDriver {
        let count = u64::from(size);
        let descriptors = guest.lend((count * u64::from(DESCRIPTOR_BYTES)).max(4096));
        let (driver, device) = (guest.lend((6 + 2 * count).max(64)), guest.lend((6 + 8 * count).max(64)));
        let parts = RingAddresses { descriptors, driver, device };
        let packed = features.contains(Features::RING_PACKED);
        let base = if packed { Base { available: 1 << 15, used: 1 << 15 } } else { Base::default() };
        let user = |address: u64| address + USER_OFFSET;
        let addresses = RingAddresses { descriptors: user(descriptors), driver: user(driver), device: user(device) };
        let setup = RingSetup { size, features, direction, addresses, base };
        let memory = guest.memory();
        let words = |at, count| Area::<u16>::of_guest(Arc::clone(memory), at, count).expect("memory of the guest");
        let count = usize::from(size);
        let side = if packed {
            let start = Cursor::from_word(1 << 15, size).expect("the first place");
            DriverSide::Packed(PackedDriver {
                descriptors: Area::of_guest(Arc::clone(memory), descriptors, WORDS * count)
                    .expect("memory of the guest"),
                driver_event: words(driver, 2),
                device_event: words(device, 2),
                ids: (0..size).rev().collect(),
                free: size,
                next: start,
                used: start,
            })
        } else {
            DriverSide::Split(SplitDriver {
                descriptors: Area::of_guest(Arc::clone(memory), descriptors, count).expect("memory of the guest"),
                available: words(driver, 3 + count),
                used: words(device, 2),
                elements: Area::of_guest(Arc::clone(memory), device + 4, count).expect("memory of the guest"),
                free: (0..size).rev().collect(),
                next: vec![0; count],
                index: 0,
                seen: 0,
            })
        };
        MockDriver { setup, parts, side, out: vec![0; count], lent: 0 }
    }

    /// The setup for the backend's ring.
    #[must_use]
    pub fn setup(&self) -> RingSetup {
        self.setup
    }

    /// Guest addresses of the ring's parts.
    #[must_use]
    pub fn parts(&self) -> RingAddresses {
        self.parts
    }

    /// Makes a chain of buffers (guest address, bytes) available, all in the ring's direction. Returns its identifier,
    /// or `None` if the ring has not enough free descriptors.
    #[inline]
    pub fn offer(&mut self, buffers: &[(u64, u32)]) -> Option<u16> {
        let write = match self.setup.direction {
            Direction::Receive => DescriptorFlags::WRITE,
            Direction::Transmit => DescriptorFlags::empty(),
        };
        self.offer_any(buffers.iter().map(|&(address, len)| (address, len, write)))
    }

    /// Like [`offer`](MockDriver::offer), through an indirect table at `table`, which must have room for it.
    pub fn offer_indirect(&mut self, guest: &MockGuest, table: u64, buffers: &[(u64, u32)]) -> Option<u16> {
        let write = u16::from(self.setup.direction == Direction::Receive) * DescriptorFlags::WRITE.bits();
        let packed = matches!(self.side, DriverSide::Packed(_));
        for (index, &(address, len)) in (0_u16..).zip(buffers) {
            let more = usize::from(index) + 1 < buffers.len();
            let next = u16::from(more) * DescriptorFlags::NEXT.bits();
            let words = if packed { [0, write] } else { [write | next, u16::from(more) * (index + 1)] };
            let mut bytes = address.to_le_bytes().to_vec();
            bytes.extend(len.to_le_bytes());
            words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
            guest.write(table + u64::from(index) * u64::from(DESCRIPTOR_BYTES), &bytes);
        }
        let len = u32::try_from(buffers.len()).ok()? * DESCRIPTOR_BYTES;
        self.offer_links(&[(table, len, DescriptorFlags::INDIRECT)])
    }

    /// Makes a chain of any descriptors available (guest address, bytes, flags without those that chain them).
    pub fn offer_links(&mut self, links: &[(u64, u32, DescriptorFlags)]) -> Option<u16> {
        self.offer_any(links.iter().copied())
    }

    #[inline]
    fn offer_any(&mut self, links: impl ExactSizeIterator<Item = (u64, u32, DescriptorFlags)>) -> Option<u16> {
        let id = match &mut self.side {
            DriverSide::Split(side) => side.offer(links, self.setup.size, &mut self.out)?,
            DriverSide::Packed(side) => side.offer(links, self.setup.size, &mut self.out)?,
        };
        self.lent += 1;
        Some(id)
    }

    /// The chains returned since the last call: identifiers and bytes written, in the device's order.
    ///
    /// # Panics
    /// If the device returns a chain that it does not have.
    pub fn collect(&mut self) -> Vec<(u16, u32)> {
        let mut back = Vec::new();
        self.collect_into(&mut back);
        back
    }

    /// Like [`collect`](MockDriver::collect), appended to `back`.
    ///
    /// # Panics
    /// As [`collect`](MockDriver::collect).
    #[inline]
    pub fn collect_into(&mut self, back: &mut Vec<(u16, u32)>) {
        loop {
            let used = match &mut self.side {
                DriverSide::Split(side) => side.used(self.setup.size),
                DriverSide::Packed(side) => side.used(&self.out, self.setup.size),
            };
            let Some((id, written)) = used else { return };
            let count = std::mem::take(&mut self.out[usize::from(id)]);
            assert!(count > 0, "the device returned {id}, which it does not have");
            match &mut self.side {
                DriverSide::Split(side) => {
                    let mut place = id;
                    for _ in 0..count {
                        side.free.push(place);
                        place = side.next[usize::from(place)];
                    }
                }
                DriverSide::Packed(side) => side.ids.push(id),
            }
            self.lent -= 1;
            back.push((id, written));
        }
    }

    /// Sets whether the device should call for every used chain, or never.
    pub fn want_calls(&mut self, wanted: bool) {
        match &mut self.side {
            DriverSide::Split(side) => side.available.write(0, u16::from(!wanted)),
            DriverSide::Packed(side) => side.driver_event.write(1, u16::from(!wanted)),
        }
    }

    /// With `EVENT_IDX`: asks for a call when the device has used `more` chains beyond the collected ones.
    pub fn want_call_after(&mut self, more: u16) {
        match &mut self.side {
            DriverSide::Split(side) => {
                side.available.write(2 + usize::from(self.setup.size), side.seen.wrapping_add(more).wrapping_sub(1));
            }
            DriverSide::Packed(side) => {
                side.driver_event.write(0, side.used.on(more - 1, self.setup.size).word());
                side.driver_event.write(1, 2);
            }
        }
    }

    /// Returns whether the device wants kicks, without `EVENT_IDX`.
    #[must_use]
    pub fn kicks_are_wanted(&self) -> bool {
        match &self.side {
            DriverSide::Split(side) => side.used.read(0) & 1 == 0,
            DriverSide::Packed(side) => side.device_event.read(1) != 1,
        }
    }

    /// The number of chains that the device has.
    #[must_use]
    pub fn lent(&self) -> usize {
        self.lent
    }
}

impl SplitDriver {
    #[inline]
    fn offer(
        &mut self,
        links: impl ExactSizeIterator<Item = (u64, u32, DescriptorFlags)>,
        size: u16,
        out: &mut [u16],
    ) -> Option<u16> {
        let from = self.free.len().checked_sub(links.len())?;
        let head = *self.free.get(from)?;
        out[usize::from(head)] = u16::try_from(links.len()).ok()?;
        for (at, (address, len, flags)) in (from..).zip(links) {
            let (place, next) = (self.free[at], self.free.get(at + 1));
            let chained = if next.is_some() { DescriptorFlags::NEXT } else { DescriptorFlags::empty() };
            let flags = (flags | chained).bits();
            let next = next.copied().unwrap_or_default();
            self.next[usize::from(place)] = next;
            self.descriptors.write(place.into(), SplitDescriptor { address, len, flags, next });
        }
        self.free.truncate(from);
        self.available.write(2 + usize::from(self.index & (size - 1)), head);
        self.index = self.index.wrapping_add(1);
        self.available.release(1, self.index);
        Some(head)
    }

    fn used(&mut self, size: u16) -> Option<(u16, u32)> {
        if self.used.acquire(1) == self.seen {
            return None;
        }
        let [id, len] = self.elements.read(usize::from(self.seen & (size - 1)));
        self.seen = self.seen.wrapping_add(1);
        Some((u16::try_from(id).expect("a head"), len))
    }
}

impl PackedDriver {
    #[inline]
    fn offer(
        &mut self,
        links: impl ExactSizeIterator<Item = (u64, u32, DescriptorFlags)>,
        size: u16,
        out: &mut [u16],
    ) -> Option<u16> {
        let count = u16::try_from(links.len()).ok().filter(|&count| count > 0)?;
        self.free = self.free.checked_sub(count)?;
        let id = self.ids.pop()?;
        out[usize::from(id)] = count;
        let first = self.next;
        let mut shown = None;
        let mut cursor = first;
        for (at, (address, len, flags)) in links.enumerate() {
            let chained = if at + 1 < count.into() { DescriptorFlags::NEXT } else { DescriptorFlags::empty() };
            let turn = if cursor.wrap { DescriptorFlags::AVAIL } else { DescriptorFlags::USED };
            let word = Tail { len, id, flags: flags | chained | turn }.word();
            let place = usize::from(cursor.place) * WORDS;
            self.descriptors.write(place, address);
            match at {
                0 => shown = Some((place + 1, word)),
                _ => self.descriptors.release(place + 1, word),
            }
            cursor = cursor.on(1, size);
        }
        let (place, word) = shown?;
        self.descriptors.release(place, word);
        self.next = cursor;
        Some(id)
    }

    fn used(&mut self, out: &[u16], size: u16) -> Option<(u16, u32)> {
        let tail = Tail::from_word(self.descriptors.acquire(usize::from(self.used.place) * WORDS + 1));
        let bits = [DescriptorFlags::AVAIL, DescriptorFlags::USED].map(|flag| tail.flags.contains(flag));
        if bits != [self.used.wrap; 2] {
            return None;
        }
        let count = out.get(usize::from(tail.id)).copied().unwrap_or(0);
        assert!(count > 0, "the device returned {}, which it does not have", tail.id);
        self.free += count;
        self.used = self.used.on(count, size);
        Some((tail.id, tail.len))
    }
}
