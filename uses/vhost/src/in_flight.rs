//! Packets being copied into or out of guest memory: started in the ring's order, copied by the CPU or a DMA queue,
//! completed in the same order.
#![allow(unsafe_code, reason = "makes copies between packets that it owns and guest memory")]

use crate::dma_queue::{Copy, DeferredFree, DmaQueue, TenantId, copy_now};
use crate::idle_time::IdleTime;
use crate::layout::{HEADER_BYTES, NUM_BUFFERS_OFFSET};
use crate::packets::{OwnedBuffer, Packets, PoolMemory};
use crate::reorder_array::{MOST_COPIES, ReorderArray};
use crate::ring::{Burst, Chain};
use crate::stats::{CopyTiming, Fallbacks};
use crate::{GuestMemory, Piece};
use std::arch::asm;
use std::cell::Cell;
use std::sync::Arc;
use telpher_mem::Local;
use telpher_os::ticks;

/// The direction of a packet's copies. In the chains, and only there, a header precedes the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyDirection {
    /// From the packet into the chains, after the header.
    ToGuest {
        /// Length of the header in bytes.
        header: u32,
        /// The header's `num_buffers`: how many chains the packet spans.
        buffers: u16,
    },
    /// From the chains, after the header, into the packet.
    FromGuest {
        /// Length of the header in bytes.
        header: u32,
    },
}

/// What makes the copies of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CopyBy {
    /// This thread, at once.
    Cpu,
    /// A DMA queue if one has room, otherwise this thread.
    DmaQueue,
}

/// A virtqueue's packets in flight, each with a note of type `T`.
#[derive(Debug)]
pub(crate) struct InFlight<T> {
    order: Arc<ReorderArray>,
    /// The packet and note of each slot in flight. They belong to this struct alone until the order array reports
    /// completion.
    slots: Box<[Option<(OwnedBuffer, T)>]>,
    /// Number of the oldest packet in flight.
    first: u64,
    /// Number of the next packet.
    next: u64,
    pool: Arc<PoolMemory>,
    /// Takes over the packets in flight when this is dropped.
    deferred: Arc<DeferredFree>,
    dma_queues: Box<[Arc<DmaQueue>]>,
    /// Index of the DMA queue that is tried first.
    preferred: usize,
    /// The memory registered with the DMA queues, and our tenant id at each.
    tenancy: Option<(Arc<GuestMemory>, Box<[TenantId]>)>,
    /// Copies for a DMA queue: their packets are opened in the order array, but not handed over yet.
    waiting: Vec<Copy>,
    local: Local,
    clock: CopyClock,
    fallbacks: Fallbacks,
}

/// The polling thread's time spent on copies, measured with the time stamp counter.
#[derive(Debug, Default)]
struct CopyClock {
    /// Occasions until the next measured one.
    left: Cell<u32>,
    clocked: Cell<CopyTiming>,
}

/// One in this many occasions on which the polling thread copies is measured. An occasion is a burst of plain packets,
/// or one other packet. Source: chosen. Two reads of the counter take about 15 ns, at most a quarter of a nanosecond
/// per packet. Burst lengths differ from it, so every position in a burst gets measured.
const CLOCKED: u32 = 61;

impl CopyClock {
    /// Starts a measurement, if this occasion is measured; returns the start time.
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

    /// Adds the time for handing copies to DMA queues or polling them.
    #[inline]
    fn dma_queues(&self, begun: u64) {
        let mut clocked = self.clocked.get();
        clocked.device_ticks += ticks().wrapping_sub(begun);
        self.clocked.set(clocked);
    }
}

impl<T> InFlight<T> {
    /// Creates it for at most `packets` packets in flight.
    pub(crate) fn new(packets: usize, pool: &Arc<PoolMemory>, dma_queues: &[Arc<DmaQueue>]) -> InFlight<T> {
        let order = Arc::new(ReorderArray::new(packets));
        let slots = (0..order.slots()).map(|_| None).collect();
        // SAFETY: it copies only what `begin` guarantees, between guest memory and packets that are in flight here.
        let local = unsafe { Local::new() };
        let dma_queues: Box<[Arc<DmaQueue>]> = dma_queues.into();
        let (pool, deferred, waiting) =
            (Arc::clone(pool), Arc::new(DeferredFree::new(pool)), Vec::with_capacity(packets));
        InFlight {
            order,
            slots,
            first: 0,
            next: 0,
            pool,
            deferred,
            dma_queues,
            preferred: 0,
            tenancy: None,
            waiting,
            local,
            clock: CopyClock::default(),
            fallbacks: Fallbacks::default(),
        }
    }

    /// Packets in flight.
    pub(crate) fn len(&self) -> usize {
        // At most the number of slots, which is a `usize`.
        usize::try_from(self.next - self.first).unwrap_or(usize::MAX)
    }

    /// The number of the next packet that starts.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The number of the first packet whose copies are not all complete.
    pub(crate) fn first_incomplete(&self) -> u64 {
        (self.first..self.next).find(|&packet| !self.order.is_complete(packet)).unwrap_or(self.next)
    }

    /// How many more packets may start.
    pub(crate) fn room(&self) -> usize {
        self.slots.len() - self.len()
    }

    /// The longest packet allowed.
    pub(crate) fn longest(&self) -> u32 {
        self.pool.longest()
    }

    /// Gives the packet `len` bytes, at most [`longest`](InFlight::longest).
    #[inline]
    pub(crate) fn resize(&self, held: &mut OwnedBuffer, len: u32) {
        held.resize(&self.pool, len);
    }

    /// Asserts that `packets` is of the same pool as the packets in flight.
    #[inline]
    pub(crate) fn expect_pool(&self, packets: &Packets) {
        assert!(Arc::ptr_eq(&self.pool, packets.memory()), "packets of another pool than the virtqueue's; copy them");
    }

    /// Copies a packet to or from these chains of the burst on this thread. If nothing is in flight before it, it is
    /// complete.
    ///
    /// # Panics
    /// If the chains (without the header) and the packet differ in length.
    #[inline]
    pub(crate) fn copy(&self, held: &OwnedBuffer, direction: CopyDirection, burst: &Burst, chains: &[Chain]) {
        let local = self.local;
        let begun = self.clock.begins();
        // SAFETY: what `pieces_of` yields lies in a piece of the burst, whose memory is mapped as long as the burst is,
        // and in the packet's buffer, whose `OwnedBuffer` the caller has. No reference to either exists.
        self.pieces_of(held, direction, burst, chains, 0, |copy| unsafe { copy_now(&local, copy) });
        self.clock.ends(begun, 1);
    }

    /// Starts a burst of [`copy_plain`](InFlight::copy_plain); returns the start time if it is measured.
    #[inline]
    pub(crate) fn begin_plain(&self) -> Option<u64> {
        self.clock.begins()
    }

    /// Ends the burst, which had `packets` packets.
    #[inline]
    pub(crate) fn end_plain(&self, begun: Option<u64>, packets: usize) {
        self.clock.ends(begun, packets);
    }

    /// Copies a packet to or from one piece, after its header, on this thread. If nothing is in flight before it, it is
    /// complete.
    ///
    /// # Panics
    /// If the piece is shorter than the packet and the header together.
    #[inline]
    pub(crate) fn copy_plain(&self, held: &OwnedBuffer, direction: CopyDirection, piece: &Piece) {
        let (CopyDirection::ToGuest { header, .. } | CopyDirection::FromGuest { header }) = direction;
        let len = held.len();
        assert!(u64::from(piece.len()) >= u64::from(len) + u64::from(header), "the piece is as long as the packet");
        let (ours, guest) = (self.pool.address(held), piece.host() + u64::from(header));
        let (src, dst) = match direction {
            CopyDirection::ToGuest { buffers, .. } => {
                // SAFETY: the piece is as long as the header.
                unsafe { write_header(piece.host(), header, buffers) };
                (ours, guest)
            }
            CopyDirection::FromGuest { .. } => (guest, ours),
        };
        // SAFETY: as in `copy`; the packet lies in its buffer, and the piece has room for it behind the header.
        unsafe { copy_now(&self.local, Copy { src, dst, len, packet: 0, only: true }) };
    }

    /// Starts to copy a packet over these chains of the burst, next in order. With [`CopyBy::DmaQueue`] its copies are
    /// handed over by the next [`send`](InFlight::send).
    ///
    /// # Panics
    /// If there is no [`room`](InFlight::room), or the chains (without the header) and the packet differ in length.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        held: OwnedBuffer,
        direction: CopyDirection,
        burst: &Burst,
        chains: &[Chain],
        copy_by: CopyBy,
        note: T,
    ) {
        assert!(self.room() > 0, "callers check for room first");
        let Some(memory) = burst.memory() else { unreachable!("chains come with their memory") };
        let packet = self.next;
        if copy_by == CopyBy::DmaQueue && !self.dma_queues.is_empty() {
            self.ensure_tenant(memory);
            let mut waiting = std::mem::take(&mut self.waiting);
            let before = waiting.len();
            self.pieces_of(&held, direction, burst, chains, packet, |copy| waiting.push(copy));
            let copies = waiting.len() - before;
            if copies == 1 {
                waiting[before].only = true;
            }
            if copies > MOST_COPIES {
                // More pieces than the word can count: only a hostile guest sends such a packet.
                self.order.open(packet, 0);
                self.fallbacks.many_pieces += copies as u64;
                for copy in waiting.split_off(before) {
                    // SAFETY: as in `copy`.
                    unsafe { copy_now(&self.local, copy) };
                }
            } else {
                self.order.open(packet, u16::try_from(copies).expect("just compared"));
            }
            self.waiting = waiting;
        } else {
            self.copy(&held, direction, burst, chains);
            self.order.open(packet, 0);
        }
        let slot = self.order.slot(packet);
        self.slots[slot] = Some((held, note));
        self.next += 1;
    }

    /// Writes the header if the packet goes to the guest, and calls `each` with every copy to be made.
    #[inline]
    fn pieces_of(
        &self,
        held: &OwnedBuffer,
        direction: CopyDirection,
        burst: &Burst,
        chains: &[Chain],
        packet: u64,
        mut each: impl FnMut(Copy),
    ) {
        let mut ours = self.pool.address(held);
        let mut left = held.len();
        let (CopyDirection::ToGuest { header, .. } | CopyDirection::FromGuest { header }) = direction;
        let mut skip = header;
        let mut copy = |guest: u64, len: u32| {
            let (src, dst) =
                if matches!(direction, CopyDirection::ToGuest { .. }) { (ours, guest) } else { (guest, ours) };
            each(Copy { src, dst, len, packet, only: false });
            ours += u64::from(len);
        };
        // Nearly all packets have one piece.
        if let [chain] = chains
            && let [piece] = burst.pieces(chain)
            && let Some(room) = piece.len().checked_sub(header)
            && room >= left
            && left > 0
        {
            if let CopyDirection::ToGuest { buffers, .. } = direction {
                // SAFETY: the piece is as long as the header.
                unsafe { write_header(piece.host(), header, buffers) };
            }
            return copy(piece.host() + u64::from(header), left);
        }
        if let CopyDirection::ToGuest { buffers, .. } = direction {
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

    /// Hands the waiting copies to a DMA queue: to the preferred one, or to another that no thread holds. This thread
    /// makes the copies for which no queue has room.
    pub(crate) fn send(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let Some((_, tenants)) = &self.tenancy else { unreachable!("waiting copies have a tenancy") };
        let start = ticks();
        let count = self.dma_queues.len();
        let mut sent = 0;
        // First tries every queue without waiting for its lock. If none took any copy, waits for the preferred one.
        for attempt in 0..=count {
            let dma_queue = (self.preferred + attempt) % count;
            let wait = attempt == count && sent == 0;
            // SAFETY: we were admitted with the memory that contains the pieces of the waiting copies
            // (`ensure_tenant`), and keep the packets' `OwnedBuffer` until they are complete.
            let taken = unsafe { self.dma_queues[dma_queue].take(tenants[dma_queue], &self.waiting[sent..], wait) };
            if sent == 0 && taken > 0 {
                self.preferred = dma_queue;
            }
            sent += taken;
            if sent == self.waiting.len() {
                break;
            }
        }
        self.fallbacks.no_room += (self.waiting.len() - sent) as u64;
        for copy in self.waiting.drain(..).skip(sent) {
            // SAFETY: as in `begin`; the tenancy keeps the memory.
            unsafe { copy_now(&self.local, copy) };
            self.order.mark(copy.packet, copy.only);
        }
        self.clock.dma_queues(start);
    }

    /// Where the polling thread's time went.
    #[inline]
    pub(crate) fn fallbacks(&self) -> Fallbacks {
        self.fallbacks
    }

    pub(crate) fn clocked(&self) -> CopyTiming {
        self.clock.clocked.get()
    }

    /// Polls all DMA queues for completed copies.
    pub(crate) fn poll(&mut self) {
        if self.next > self.first && !self.dma_queues.is_empty() {
            let start = ticks();
            self.dma_queues.iter().for_each(|dma_queue| dma_queue.poll());
            self.clock.dma_queues(start);
        }
    }

    /// Asks all DMA queues whether they still work. The next poll ends the copies of those that have stopped.
    #[cold]
    pub(crate) fn check_health(&self) {
        self.dma_queues.iter().for_each(|dma_queue| dma_queue.check_health());
    }

    /// Removes and returns the oldest packet in flight, if all its copies are complete.
    #[inline]
    pub(crate) fn pop_completed(&mut self) -> Option<(OwnedBuffer, T)> {
        if self.first == self.next || !self.order.is_complete(self.first) {
            return None;
        }
        let slot = self.order.slot(self.first);
        self.first += 1;
        let completed = self.slots[slot].take();
        debug_assert!(completed.is_some(), "a packet in flight has its slot");
        completed
    }

    /// Returns whether a DMA queue is stalled and the oldest packet may wait for it.
    #[inline]
    pub(crate) fn may_be_stalled(&self) -> bool {
        self.dma_queues.iter().any(|dma_queue| dma_queue.is_silent())
            && self.first < self.next
            && !self.order.is_complete(self.first)
    }

    /// Returns whether the oldest packet waits for a DMA queue that is stalled.
    #[cold]
    pub(crate) fn is_stalled(&self) -> bool {
        self.copies_at(false).iter().any(|copy| copy.packet == self.first) && !self.order.is_complete(self.first)
    }

    /// The stalled DMA queues, or all of them, with our tenant id at each.
    fn slow_queues(&self, all: bool) -> impl Iterator<Item = (&DmaQueue, TenantId)> {
        let tenants = self.tenancy.iter().flat_map(|(_, tenants)| tenants).copied();
        self.dma_queues
            .iter()
            .map(|dma_queue| &**dma_queue)
            .zip(tenants)
            .filter(move |(dma_queue, _)| all || dma_queue.is_silent())
    }

    /// Our copies in flight at these queues.
    fn copies_at(&self, all: bool) -> Vec<Copy> {
        self.slow_queues(all).flat_map(|(dma_queue, tenant)| dma_queue.copies_of(tenant)).collect()
    }

    /// Withdraws a packet's copies from these queues; we must mark them from now on.
    fn withdraw(&self, all: bool, packet: u64) -> Vec<Copy> {
        self.slow_queues(all).flat_map(|(dma_queue, tenant)| dma_queue.withdraw(tenant, packet)).collect()
    }

    /// Redoes the packets from the guest ([`FromGuest`](CopyDirection::FromGuest)) that stalled queues (or `all`
    /// queues) hold. This thread copies them into other buffers, as many as the pool has. A queue that completes late
    /// writes into buffers that are no longer used, and only reads guest memory.
    #[cold]
    pub(crate) fn redo(&mut self, all: bool) {
        let out = self.copies_at(all);
        for packet in self.first..self.next {
            let copies = out.iter().filter(|copy| copy.packet == packet).count();
            // If another queue also holds a part of the packet, wait for that part first.
            if copies == 0 || copies != self.order.copies_left(packet) {
                continue;
            }
            let Some(mut held) = self.pool.allocate_one() else { return };
            // Copies completed meanwhile are marked and lie in the old buffer; the other marks are ours from here on.
            let copies = self.withdraw(all, packet);
            let slot = self.order.slot(packet);
            let Some((late, _)) = &mut self.slots[slot] else { unreachable!("a packet in flight has its slot") };
            held.resize(&self.pool, late.len());
            let (from, to) = (self.pool.address(late), self.pool.address(&held));
            let completed = Copy { src: from, dst: to, len: late.len(), packet, only: false };
            let copies = copies.iter().map(|copy| Copy { dst: copy.dst - from + to, ..*copy });
            for copy in std::iter::once(completed).chain(copies) {
                // SAFETY: we own both packets' `OwnedBuffer`s, which have the same length; the tenancy keeps the
                // guest's side mapped. Only the stalled queue may still touch these buffers.
                unsafe { copy_now(&self.local, copy) };
            }
            self.deferred.keep(std::iter::once(std::mem::replace(late, held)));
            self.order.open(packet, 0);
        }
    }

    /// Returns whether packets were redone: then copies may be in flight although no packet is.
    pub(crate) fn has_redone(&self) -> bool {
        self.deferred.has_any()
    }

    /// Registers with every DMA queue for this memory.
    #[inline]
    fn ensure_tenant(&mut self, memory: &Arc<GuestMemory>) {
        if !self.tenancy.as_ref().is_some_and(|(known, _)| Arc::ptr_eq(known, memory)) {
            self.move_to(memory);
        }
    }

    #[cold]
    fn move_to(&mut self, memory: &Arc<GuestMemory>) {
        // The waiting copies lie in the previous memory.
        self.send();
        self.close_tenancy();
        let tenants =
            self.dma_queues.iter().map(|dma_queue| dma_queue.admit(&self.order, memory, &self.deferred)).collect();
        self.tenancy = Some((Arc::clone(memory), tenants));
    }

    /// Closes the tenancy. Each DMA queue releases the memory after its last copy.
    pub(crate) fn close_tenancy(&mut self) {
        if let Some((_, tenants)) = self.tenancy.take() {
            self.dma_queues.iter().zip(&tenants).for_each(|(dma_queue, tenant)| dma_queue.close(*tenant));
        }
    }
}

/// The header before a packet to the guest: zero except for the number of buffers, which a legacy header does not have.
fn header_bytes(buffers: u16) -> [u8; HEADER_BYTES as usize] {
    let mut bytes = [0; HEADER_BYTES as usize];
    bytes[NUM_BUFFERS_OFFSET as usize..].copy_from_slice(&buffers.to_le_bytes());
    bytes
}

/// Writes a packet's header into guest memory from registers. Nothing reads it back here, so no load waits for stores
/// on their way to another core. Such a wait would happen if the header were put before the packet and copied with it.
///
/// # Safety
/// `header` bytes of guest memory are mapped at `guest`.
#[inline]
unsafe fn write_header(guest: u64, header: u32, buffers: u16) {
    const { assert!(HEADER_BYTES == 12 && NUM_BUFFERS_OFFSET == 10, "num_buffers is the upper half of the last four bytes") };
    let (low, high) = (0_u64, u32::from(buffers) << 16);
    let to = pointer(guest);
    // SAFETY: guaranteed by the caller; a page that is gone is replaced (see `telpher_mem::SharedMapping`). Assembly
    // instructions, as in the copy kernels: the guest writes its memory at any time, and the addresses have no
    // alignment.
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

/// Like `write_header`, over pieces shorter than the header.
#[cold]
fn write_header_in_pieces<'a>(pieces: impl Iterator<Item = &'a Piece>, header: u32, buffers: u16) {
    let places = pieces.flat_map(|piece| (0..piece.len()).map(|at| piece.host() + u64::from(at)));
    for (place, byte) in places.zip(header_bytes(buffers)).take(header as usize) {
        // SAFETY: a byte of a piece, which is mapped as long as its burst is; volatile, because the guest may write it
        // too.
        unsafe { pointer(place).write_volatile(byte) };
    }
}

#[inline]
fn pointer(address: u64) -> *mut u8 {
    #[allow(clippy::cast_possible_truncation, reason = "an address of this process, 64 bits on x86-64")]
    std::ptr::with_exposed_provenance_mut(address as usize)
}

impl<T> Drop for InFlight<T> {
    fn drop(&mut self) {
        self.send();
        self.close_tenancy();
        // Wait until the last copy is complete, or none has completed for a while. A queue that has stopped ends its
        // copies then. The DMA queues keep the memory mapped; those that report that they work also keep the packets
        // until their copies end. Redone packets already wait there for their original copies.
        let mut idle_time = self.dma_queues.first().map(|dma_queue| dma_queue.idle_time());
        let mut asked = false;
        while self.first < self.next || Arc::strong_count(&self.deferred) > 1 {
            self.dma_queues.iter().for_each(|dma_queue| dma_queue.poll_now());
            if let Some((held, _)) = self.pop_completed() {
                self.pool.give_back(std::iter::once(held));
                idle_time.iter_mut().for_each(IdleTime::reset);
            } else if !idle_time.as_mut().is_some_and(IdleTime::linger) {
                if asked {
                    break;
                }
                self.check_health();
                asked = true;
            }
        }
        self.deferred.keep(self.slots.iter_mut().filter_map(Option::take).map(|(held, _)| held));
    }
}
