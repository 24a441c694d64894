//! Packets on their way into or out of guest memory: begun in the ring's order, copied by whoever is quicker, landed in the same order.
#![allow(unsafe_code, reason = "hands out copies of packets that it has")]

use crate::board::{Board, MOST_COPIES};
use crate::lane::{Copy, LINGER, Lane, TenantId, Wards, copy_now};
use crate::packets::{Held, Packets, PoolMemory};
use crate::ring::{Burst, Chain};
use crate::stats::Clocked;
use crate::words::{HEADER_BYTES, NUM_BUFFERS_OFFSET};
use crate::{GuestMemory, Piece};
use std::arch::asm;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;
use telpher_mem::Local;

/// Which way a packet goes. A header of so many bytes is before it in the chains, and nowhere else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// From the packet into the chains, behind the header.
    Out {
        /// Bytes of the header.
        header: u32,
        /// What the header says: over how many chains the packet goes.
        buffers: u16,
    },
    /// From the chains, behind the header, into the packet.
    In {
        /// Bytes of the header.
        header: u32,
    },
}

/// Who copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    /// This thread, at once.
    Cpu,
    /// A lane, if one has room; else this thread.
    Lane,
}

/// A virtqueue's packets in flight, each with a note of type `T`.
#[derive(Debug)]
pub(crate) struct Flights<T> {
    board: Arc<Board>,
    /// The packet and note of each slot in flight; it is ours alone until the board says that it has landed.
    slots: Box<[Option<(Held, T)>]>,
    /// The oldest packet in flight.
    first: u64,
    /// The next packet.
    next: u64,
    pool: Arc<PoolMemory>,
    /// Takes over what is in flight when this goes.
    wards: Arc<Wards>,
    lanes: Box<[Arc<Lane>]>,
    /// The lane that is asked first.
    favourite: usize,
    /// The memory that we are tenants with, and as which.
    tenancy: Option<(Arc<GuestMemory>, Box<[TenantId]>)>,
    /// Copies for a lane, of packets that were opened and not handed over.
    waiting: Vec<Copy>,
    local: Local,
    clock: CopyClock,
}

/// What copies cost the polling thread, by the time stamp counter.
#[derive(Debug, Default)]
struct CopyClock {
    /// Occasions until the next one that is clocked.
    left: Cell<u32>,
    clocked: Cell<Clocked>,
}

/// One occasion of so many on which the polling thread copies is clocked: a burst of plain packets, or one other packet. Source: chosen; two looks at the
/// counter, some 15 ns, come to a quarter of a nanosecond a packet at most, and bursts are of other lengths, so that each place in one has its turn.
const CLOCKED: u32 = 61;

impl CopyClock {
    /// When copies begin, if they are clocked.
    #[inline]
    fn begins(&self) -> Option<u64> {
        let left = self.left.get();
        self.left.set(left.checked_sub(1).unwrap_or(CLOCKED - 1));
        (left == 0).then(ticks)
    }

    #[inline]
    fn ends(&self, begun: Option<u64>, packets: usize) {
        if let Some(begun) = begun {
            let mut clocked = self.clocked.get();
            clocked.packets += packets as u64;
            clocked.times += 1;
            clocked.ticks += ticks().wrapping_sub(begun);
            self.clocked.set(clocked);
        }
    }

    /// Lanes were handed copies, or asked for them.
    #[inline]
    fn lanes(&self, begun: u64) {
        let mut clocked = self.clocked.get();
        clocked.lane_ticks += ticks().wrapping_sub(begun);
        self.clocked.set(clocked);
    }
}

/// The time stamp counter.
#[inline]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { std::arch::x86_64::_rdtsc() }
}

impl<T> Flights<T> {
    /// For so many packets in flight at most.
    pub(crate) fn new(packets: usize, pool: &Arc<PoolMemory>, lanes: &[Arc<Lane>]) -> Flights<T> {
        let board = Arc::new(Board::new(packets));
        let slots = (0..board.slots()).map(|_| None).collect();
        // SAFETY: it copies only what `begin` vouches for, between guest memory and packets that are in flight here.
        let local = unsafe { Local::new() };
        let lanes: Box<[Arc<Lane>]> = lanes.into();
        let (pool, wards, waiting) = (Arc::clone(pool), Arc::new(Wards::new(pool)), Vec::with_capacity(packets));
        Flights {
            board,
            slots,
            first: 0,
            next: 0,
            pool,
            wards,
            lanes,
            favourite: 0,
            tenancy: None,
            waiting,
            local,
            clock: CopyClock::default(),
        }
    }

    /// Packets in flight.
    pub(crate) fn len(&self) -> usize {
        // No more than slots, which are a `usize`.
        usize::try_from(self.next - self.first).unwrap_or(usize::MAX)
    }

    /// The number of the next packet that begins.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The number of the first packet whose copies have not all landed.
    pub(crate) fn landed(&self) -> u64 {
        (self.first..self.next).find(|&packet| !self.board.has_landed(packet)).unwrap_or(self.next)
    }

    /// Packets that may begin.
    pub(crate) fn room(&self) -> usize {
        self.slots.len() - self.len()
    }

    /// The longest packet there can be.
    pub(crate) fn longest(&self) -> u32 {
        self.pool.longest()
    }

    /// A packet of so many bytes, at most [`longest`](Flights::longest).
    #[inline]
    pub(crate) fn resize(&self, held: &mut Held, len: u32) {
        held.resize(&self.pool, len);
    }

    /// The row is of the pool that packets in flight are of.
    #[inline]
    pub(crate) fn expect_pool(&self, packets: &Packets) {
        assert!(Arc::ptr_eq(&self.pool, packets.memory()), "packets of another pool than the virtqueue's; copy them");
    }

    /// Copies a packet to, or from, these chains of the burst, by this thread, now: with nothing in flight before it, it has landed.
    ///
    /// # Panics
    /// If the chains (without the header) and the packet are not of one length.
    #[inline]
    pub(crate) fn copy(&self, held: &Held, way: Way, burst: &Burst, chains: &[Chain]) {
        let local = self.local;
        let begun = self.clock.begins();
        // SAFETY: what `pieces_of` gives lies in a piece of the burst, whose memory is mapped as long as the burst is, and in the packet's
        // buffer, whose `Held` the caller has: no reference to either exists.
        self.pieces_of(held, way, burst, chains, 0, |copy| unsafe { copy_now(&local, copy) });
        self.clock.ends(begun, 1);
    }

    /// A burst of [`copy_plain`](Flights::copy_plain) begins; when that is, if it is clocked.
    #[inline]
    pub(crate) fn begin_plain(&self) -> Option<u64> {
        self.clock.begins()
    }

    /// It was of so many packets.
    #[inline]
    pub(crate) fn end_plain(&self, begun: Option<u64>, packets: usize) {
        self.clock.ends(begun, packets);
    }

    /// Copies a packet to, or from, one piece, behind its header, by this thread, now: with nothing in flight before it, it has landed.
    ///
    /// # Panics
    /// If the piece is shorter than the packet and the header.
    #[inline]
    pub(crate) fn copy_plain(&self, held: &Held, way: Way, piece: &Piece) {
        let (Way::Out { header, .. } | Way::In { header }) = way;
        let len = held.len();
        assert!(u64::from(piece.len()) >= u64::from(len) + u64::from(header), "the piece is as long as the packet");
        let (ours, guest) = (self.pool.address(held), piece.host() + u64::from(header));
        let (src, dst) = match way {
            Way::Out { buffers, .. } => {
                // SAFETY: the piece is as long as the header.
                unsafe { write_header(piece.host(), header, buffers) };
                (ours, guest)
            }
            Way::In { .. } => (guest, ours),
        };
        // SAFETY: as in `copy`; the packet lies in its buffer, and the piece has room for it behind the header.
        unsafe { copy_now(&self.local, Copy { src, dst, len, packet: 0, only: true }) };
    }

    /// Begins a packet's way over these chains of the burst, in the order of its turn. With [`Who::Lane`] its copies go with the next
    /// [`send`](Flights::send).
    ///
    /// # Panics
    /// If there is no [`room`](Flights::room), or the chains (without the header) and the packet are not of one length.
    #[inline]
    pub(crate) fn begin(&mut self, held: Held, way: Way, burst: &Burst, chains: &[Chain], who: Who, note: T) {
        assert!(self.room() > 0, "callers ask for room first");
        let Some(memory) = burst.memory() else { unreachable!("chains come with their memory") };
        let packet = self.next;
        if who == Who::Lane && !self.lanes.is_empty() {
            self.be_tenant(memory);
            let mut waiting = std::mem::take(&mut self.waiting);
            let before = waiting.len();
            self.pieces_of(&held, way, burst, chains, packet, |copy| waiting.push(copy));
            let copies = waiting.len() - before;
            if copies == 1 {
                waiting[before].only = true;
            }
            if copies > MOST_COPIES {
                // More pieces than a word counts: nobody sends such a packet for anything but trouble.
                self.board.open(packet, 0);
                for copy in waiting.split_off(before) {
                    // SAFETY: as in `copy`.
                    unsafe { copy_now(&self.local, copy) };
                }
            } else {
                self.board.open(packet, u16::try_from(copies).expect("just compared"));
            }
            self.waiting = waiting;
        } else {
            self.copy(&held, way, burst, chains);
            self.board.open(packet, 0);
        }
        let slot = self.board.slot(packet);
        self.slots[slot] = Some((held, note));
        self.next += 1;
    }

    /// Writes the header, if the packet goes out, and says what is to be copied.
    #[inline]
    fn pieces_of(
        &self,
        held: &Held,
        way: Way,
        burst: &Burst,
        chains: &[Chain],
        packet: u64,
        mut each: impl FnMut(Copy),
    ) {
        let mut ours = self.pool.address(held);
        let mut left = held.len();
        let (Way::Out { header, .. } | Way::In { header }) = way;
        let mut skip = header;
        let mut copy = |guest: u64, len: u32| {
            let (src, dst) = if matches!(way, Way::Out { .. }) { (ours, guest) } else { (guest, ours) };
            each(Copy { src, dst, len, packet, only: false });
            ours += u64::from(len);
        };
        // One piece is what nearly all packets have.
        if let [chain] = chains
            && let [piece] = burst.pieces(chain)
            && let Some(room) = piece.len().checked_sub(header)
            && room >= left
            && left > 0
        {
            if let Way::Out { buffers, .. } = way {
                // SAFETY: the piece is as long as the header.
                unsafe { write_header(piece.host(), header, buffers) };
            }
            return copy(piece.host() + u64::from(header), left);
        }
        if let Way::Out { buffers, .. } = way {
            write_header_in_pieces(chains.iter().flat_map(|chain| burst.pieces(chain)), header, buffers);
        }
        for piece in chains.iter().flat_map(|chain| burst.pieces(chain)) {
            let skipped = skip.min(piece.len());
            skip -= skipped;
            let len = (piece.len() - skipped).min(left);
            if len > 0 {
                copy(piece.host() + u64::from(skipped), len);
                left -= len;
            }
            if left == 0 {
                break;
            }
        }
        assert_eq!(left, 0, "the chains are as long as the packet");
    }

    /// Hands what waits to a lane: to the favourite, or to another that no thread has just now. What no lane has room for, this thread
    /// copies.
    pub(crate) fn send(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let Some((_, tenants)) = &self.tenancy else { unreachable!("whoever waits is a tenant") };
        let begun = ticks();
        let count = self.lanes.len();
        let mut sent = 0;
        // Once around without waiting for a lock, then, if nobody took any, the favourite with.
        for attempt in 0..=count {
            let lane = (self.favourite + attempt) % count;
            let wait = attempt == count && sent == 0;
            // SAFETY: we were admitted with the memory that the pieces of what waits lie in (`be_tenant`), and have the packets' `Held` until
            // they have landed.
            let taken = unsafe { self.lanes[lane].take(tenants[lane], &self.waiting[sent..], wait) };
            if sent == 0 && taken > 0 {
                self.favourite = lane;
            }
            sent += taken;
            if sent == self.waiting.len() {
                break;
            }
        }
        for copy in self.waiting.drain(..).skip(sent) {
            // SAFETY: as in `begin`; the tenancy keeps the memory.
            unsafe { copy_now(&self.local, copy) };
            self.board.mark(copy.packet, copy.only);
        }
        self.clock.lanes(begun);
    }

    /// Where the polling thread's time went.
    #[inline]
    pub(crate) fn clocked(&self) -> Clocked {
        self.clock.clocked.get()
    }

    /// Looks which copies have landed, of all lanes.
    pub(crate) fn poll(&mut self) {
        if self.next > self.first && !self.lanes.is_empty() {
            let begun = ticks();
            self.lanes.iter().for_each(|lane| lane.poll());
            self.clock.lanes(begun);
        }
    }

    /// The oldest packet in flight, if all its copies have landed.
    #[inline]
    pub(crate) fn land(&mut self) -> Option<(Held, T)> {
        if self.first == self.next || !self.board.has_landed(self.first) {
            return None;
        }
        let slot = self.board.slot(self.first);
        self.first += 1;
        let landed = self.slots[slot].take();
        debug_assert!(landed.is_some(), "a packet in flight has its slot");
        landed
    }

    /// A lane is silent, and the oldest packet may wait for it.
    #[inline]
    pub(crate) fn may_wait_in_vain(&self) -> bool {
        self.lanes.iter().any(|lane| lane.is_silent()) && self.first < self.next && !self.board.has_landed(self.first)
    }

    /// The oldest packet waits for a lane that is silent.
    #[cold]
    pub(crate) fn waits_in_vain(&self) -> bool {
        self.out(false).iter().any(|copy| copy.packet == self.first) && !self.board.has_landed(self.first)
    }

    /// Silent lanes, or all, and us as their tenant.
    fn late(&self, all: bool) -> impl Iterator<Item = (&Lane, TenantId)> {
        let tenants = self.tenancy.iter().flat_map(|(_, tenants)| tenants).copied();
        self.lanes.iter().map(|lane| &**lane).zip(tenants).filter(move |(lane, _)| all || lane.is_silent())
    }

    /// What is out at them.
    fn out(&self, all: bool) -> Vec<Copy> {
        self.late(all).flat_map(|(lane, tenant)| lane.out(tenant)).collect()
    }

    /// A packet's copies there, which are ours from now on.
    fn withdraw(&self, all: bool, packet: u64) -> Vec<Copy> {
        self.late(all).flat_map(|(lane, tenant)| lane.withdraw(tenant, packet)).collect()
    }

    /// Redoes what silent lanes, or `all`, have of packets that come [in](Way::In): this thread copies them into other buffers, as many as the
    /// pool has. A queue that answers late writes into buffers that are nobody's any more, and reads what it likes.
    #[cold]
    pub(crate) fn redo(&mut self, all: bool) {
        let out = self.out(all);
        for packet in self.first..self.next {
            let copies = out.iter().filter(|copy| copy.packet == packet).count();
            // Those of which another lane has a part wait for that first.
            if copies == 0 || copies != self.board.out(packet) {
                continue;
            }
            let Some(mut held) = self.pool.lend_one() else { return };
            // What has landed meanwhile is marked, and in the late buffer; the other marks are ours from here on.
            let copies = self.withdraw(all, packet);
            let slot = self.board.slot(packet);
            let Some((late, _)) = &mut self.slots[slot] else { unreachable!("a packet in flight has its slot") };
            held.resize(&self.pool, late.len());
            let (from, to) = (self.pool.address(late), self.pool.address(&held));
            let landed = Copy { src: from, dst: to, len: late.len(), packet, only: false };
            let copies = copies.iter().map(|copy| Copy { dst: copy.dst - from + to, ..*copy });
            for copy in std::iter::once(landed).chain(copies) {
                // SAFETY: the packets' `Held`s are ours, and of one length; the guest's side is kept by the tenancy. Nobody but the late queue touches
                // them.
                unsafe { copy_now(&self.local, copy) };
            }
            self.wards.keep(std::iter::once(std::mem::replace(late, held)));
            self.board.open(packet, 0);
        }
    }

    /// Packets were redone, so that copies may be out though none is in flight.
    pub(crate) fn has_redone(&self) -> bool {
        self.wards.has_any()
    }

    /// Is a tenant of every lane with this memory.
    #[inline]
    fn be_tenant(&mut self, memory: &Arc<GuestMemory>) {
        if !self.tenancy.as_ref().is_some_and(|(known, _)| Arc::ptr_eq(known, memory)) {
            self.move_to(memory);
        }
    }

    #[cold]
    fn move_to(&mut self, memory: &Arc<GuestMemory>) {
        // What waits lies in the memory before.
        self.send();
        self.leave();
        let tenants = self.lanes.iter().map(|lane| lane.admit(&self.board, memory, &self.wards)).collect();
        self.tenancy = Some((Arc::clone(memory), tenants));
    }

    /// Lets the memory go as far as no copy is out there.
    pub(crate) fn leave(&mut self) {
        if let Some((_, tenants)) = self.tenancy.take() {
            self.lanes.iter().zip(&tenants).for_each(|(lane, tenant)| lane.close(*tenant));
        }
    }
}

/// The header before a packet that goes out: zero but for the number of buffers, which a legacy header has not.
fn header_bytes(buffers: u16) -> [u8; HEADER_BYTES as usize] {
    let mut bytes = [0; HEADER_BYTES as usize];
    bytes[NUM_BUFFERS_OFFSET as usize..].copy_from_slice(&buffers.to_le_bytes());
    bytes
}

/// Writes a packet's header into guest memory, by registers: nothing reads it back here, so that no load waits for stores that are on their
/// way to another core, as a header does that is put before the packet and copied with it.
///
/// # Safety
/// `header` bytes of guest memory are mapped at `guest`.
#[inline]
unsafe fn write_header(guest: u64, header: u32, buffers: u16) {
    const {
        assert!(
            HEADER_BYTES == 12 && NUM_BUFFERS_OFFSET == 10,
            "the number lies in the upper half of the last four bytes"
        )
    };
    let (low, high) = (0_u64, u32::from(buffers) << 16);
    let to = pointer(guest);
    // SAFETY: as the caller vouches; a page that is gone is replaced (see `telpher_mem::Shared`). By instructions, as in the kernels: others
    // write guest memory at any time, and its addresses have no alignment.
    unsafe {
        if header == HEADER_BYTES {
            asm!("mov qword ptr [{to}], {low}", "mov dword ptr [{to} + 8], {high:e}", to = in(reg) to, low = in(reg) low,
                high = in(reg) high, options(nostack, preserves_flags));
        } else {
            asm!("mov qword ptr [{to}], {low}", "mov word ptr [{to} + 8], {high:x}", to = in(reg) to, low = in(reg) low,
                high = in(reg) high, options(nostack, preserves_flags));
        }
    }
}

/// The same over pieces that are shorter than it.
#[cold]
fn write_header_in_pieces<'a>(pieces: impl Iterator<Item = &'a Piece>, header: u32, buffers: u16) {
    let places = pieces.flat_map(|piece| (0..piece.len()).map(|at| piece.host() + u64::from(at)));
    for (place, byte) in places.zip(header_bytes(buffers)).take(header as usize) {
        // SAFETY: a byte of a piece, which is mapped as long as its burst is; volatile, for others write it, too.
        unsafe { pointer(place).write_volatile(byte) };
    }
}

#[inline]
fn pointer(address: u64) -> *mut u8 {
    #[allow(clippy::cast_possible_truncation, reason = "an address of this process, 64 bits on x86-64")]
    std::ptr::with_exposed_provenance_mut(address as usize)
}

impl<T> Drop for Flights<T> {
    fn drop(&mut self) {
        self.send();
        self.leave();
        // Until the last has landed, or nothing has for long: then the lanes, which keep the memory, keep the packets, too, until they
        // have heard of them. A queue that stops is noticed by its channel, which then ends what it has.
        // Packets that were redone wait there for their first copies already.
        let mut end = Instant::now() + LINGER;
        while self.first < self.next || Arc::strong_count(&self.wards) > 1 {
            self.lanes.iter().for_each(|lane| lane.poll_now());
            if let Some((held, _)) = self.land() {
                self.pool.give_back(std::iter::once(held));
                end = Instant::now() + LINGER;
            } else if Instant::now() < end {
                std::thread::yield_now();
            } else {
                break;
            }
        }
        self.wards.keep(self.slots.iter_mut().filter_map(Option::take).map(|(held, _)| held));
    }
}
