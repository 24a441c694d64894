//! Packets in this process: buffers of one size in one block of memory, passed around in bursts.
//!
//! A [`Packets`] is a list of packets that share one reference to their pool's memory. A packet moving through a switch
//! therefore needs no reference count, no lock and no allocation: it is a buffer index, a start offset and a length. A
//! buffer is in one list at a time, or held by a virtqueue for copies in flight, or free. Dropped packets become free.
#![allow(unsafe_code, reason = "makes slices of buffers that devices also write")]

mod detached;

pub use detached::{DetachedPacket, MAX_DETACHED};

use detached::Generations;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use telpher_mem::{MapError, PageSize, Region, StableBufMut};

/// Bytes before a packet that are kept free for headers. Source: DPDK's `RTE_PKTMBUF_HEADROOM`, which switches expect.
pub const HEADROOM: u32 = 128;

/// The size of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolOptions {
    /// The number of buffers.
    pub buffers: u32,
    /// The longest packet, in bytes.
    pub longest: u32,
}

impl Default for PoolOptions {
    /// 32 768 buffers for packets of up to 2048 bytes: 68 MiB. Source: what DPDK's testpmd takes by default, per port.
    fn default() -> Self {
        PoolOptions { buffers: 32_768, longest: 2048 }
    }
}

impl PoolOptions {
    /// Bytes from one buffer to the next.
    fn stride(self) -> u32 {
        // One more cache line, so that buffers do not all start in the same cache sets.
        (HEADROOM.saturating_add(self.longest)).next_multiple_of(LINE_BYTES).saturating_add(LINE_BYTES)
    }
}

/// Memory for packets.
#[derive(Clone, Debug)]
pub struct PacketPool {
    memory: Arc<PoolMemory>,
}

/// The pool's buffers.
#[derive(Debug)]
pub(crate) struct PoolMemory {
    base: u64,
    /// Bytes from one buffer to the next.
    stride: u32,
    options: PoolOptions,
    free: Mutex<Vec<u32>>,
    generations: Generations,
    /// Owns the bytes, unless the caller does; never borrowed again.
    _region: Option<Region>,
}

/// Ownership of one packet: buffer index, start offset, length. There is exactly one per buffer, and only its owner may
/// access the buffer's bytes.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct OwnedBuffer {
    index: u32,
    start: u32,
    len: u32,
}

/// A list of packets of one pool, in order. Dropping it returns its buffers.
#[derive(Debug)]
pub struct Packets {
    memory: Arc<PoolMemory>,
    held: VecDeque<OwnedBuffer>,
}

/// Bytes of a cache line. Source: every x86-64 processor with CLFLUSH reports 64 in CPUID leaf 1.
const LINE_BYTES: u32 = 64;

impl PacketPool {
    /// Creates a pool with its memory already populated, on huge pages if the system has them.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(options: PoolOptions) -> Result<PacketPool, MapError> {
        let mut region = Region::new(options.bytes(), PageSize::Huge)?;
        region.populate()?;
        Ok(PacketPool::at(region.address_mut(), options, Some(region)))
    }

    /// Creates a pool over the caller's memory: [`PoolOptions::bytes`] from `start` on. A start aligned to 64 bytes is
    /// fastest.
    ///
    /// # Safety
    /// That many bytes are mapped there for reading and writing. No other code touches them until the pool [is
    /// whole](PacketPool::is_whole) for the last time before it is dropped, or the process ends.
    #[must_use]
    pub unsafe fn over(start: *mut u8, options: PoolOptions) -> PacketPool {
        PacketPool::at(start.expose_provenance() as u64, options, None)
    }

    fn at(base: u64, options: PoolOptions, region: Option<Region>) -> PacketPool {
        // The buffer returned last is lent first: it is most likely in the cache.
        let free = Mutex::new((0..options.buffers).rev().collect());
        let (stride, generations) = (options.stride(), Generations::of(options.buffers));
        PacketPool { memory: Arc::new(PoolMemory { base, stride, options, free, generations, _region: region }) }
    }

    /// Returns whether all buffers are free and nothing else refers to the pool: no packet list, no port, no DMA queue,
    /// and no detached packet.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        // In this order: the last action of another owner may be to return buffers.
        Arc::strong_count(&self.memory) == 1 && self.free() == self.memory.options.buffers as usize
    }

    /// Returns up to `count` empty packets, as many as are free. Takes one lock.
    #[must_use]
    pub fn allocate(&self, count: usize) -> Packets {
        let mut packets = self.empty(count);
        packets.fetch(count);
        packets
    }

    /// Returns an empty list with capacity for `room` packets.
    #[must_use]
    pub fn empty(&self, room: usize) -> Packets {
        Packets { memory: Arc::clone(&self.memory), held: VecDeque::with_capacity(room) }
    }

    /// The number of free buffers.
    #[must_use]
    pub fn free(&self) -> usize {
        self.memory.free.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The options it was created with.
    #[must_use]
    pub fn options(&self) -> PoolOptions {
        self.memory.options
    }

    pub(crate) fn memory(&self) -> &Arc<PoolMemory> {
        &self.memory
    }
}

impl PoolMemory {
    /// Address of a packet's first byte.
    #[inline]
    pub(crate) fn address(&self, held: &OwnedBuffer) -> u64 {
        // Cannot overflow: within the region.
        self.base + u64::from(self.stride) * u64::from(held.index) + u64::from(held.start)
    }

    /// The longest packet that fits a buffer.
    pub(crate) fn longest(&self) -> u32 {
        self.options.longest
    }

    /// Returns an empty packet, if a buffer is free.
    pub(crate) fn allocate_one(&self) -> Option<OwnedBuffer> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).pop().map(OwnedBuffer::empty)
    }

    pub(crate) fn give_back(&self, held: impl ExactSizeIterator<Item = OwnedBuffer>) {
        if held.len() > 0 {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            free.extend(held.map(|held| held.index));
        }
    }
}

impl OwnedBuffer {
    fn empty(index: u32) -> OwnedBuffer {
        OwnedBuffer { index, start: HEADROOM, len: 0 }
    }

    /// Its length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Gives the packet `len` bytes, at the default start offset.
    ///
    /// # Panics
    /// If the buffer is too small.
    #[inline]
    pub(crate) fn resize(&mut self, pool: &PoolMemory, len: u32) {
        assert!(len <= pool.longest(), "{len} bytes in a buffer of {}", pool.longest());
        (self.start, self.len) = (HEADROOM, len);
    }
}

impl Packets {
    /// The number of packets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns whether there are no packets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The total length of all packets in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let sum = |held: &[OwnedBuffer]| held.iter().map(|held| u64::from(held.len)).sum::<u64>();
        let (front, back) = self.held.as_slices();
        sum(front) + sum(back)
    }

    /// The bytes of packet `index`.
    #[inline]
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let held = self.held.get(index)?;
        // SAFETY: the buffer lies in the region, which lives. No code writes it while the list is borrowed: its only
        // `OwnedBuffer` lies in this list, and devices write only buffers whose `OwnedBuffer` is in flight.
        Some(unsafe { std::slice::from_raw_parts(pointer(self.memory.address(held)), held.len as usize) })
    }

    /// The bytes of packet `index`, mutable.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        let held = self.held.get(index)?;
        // SAFETY: as in `get`; the list is borrowed mutably, so this is the only slice of the buffer.
        Some(unsafe { std::slice::from_raw_parts_mut(pointer(self.memory.address(held)), held.len as usize) })
    }

    /// The bytes of each packet.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index).expect("an index of the list"))
    }

    /// Calls `each` with the bytes of each packet, mutable.
    #[inline]
    pub fn for_each_mut(&mut self, mut each: impl FnMut(&mut [u8])) {
        for index in 0..self.len() {
            each(self.get_mut(index).expect("an index of the list"));
        }
    }

    /// Sets the length of packet `index`; its bytes are whatever the buffer contains.
    ///
    /// # Panics
    /// If there is no such packet, or its buffer is too small.
    pub fn resize(&mut self, index: usize, len: u32) {
        let held = &mut self.held[index];
        held.resize(&self.memory, len);
    }

    /// Moves the first `count` packets, or all if there are fewer, to the end of another list of the same pool.
    ///
    /// # Panics
    /// If the lists are of different pools.
    pub fn move_to(&mut self, count: usize, to: &mut Packets) {
        assert!(Arc::ptr_eq(&self.memory, &to.memory), "packets stay in their pool; copy them to the other pool");
        if count < self.held.len() {
            to.held.extend(self.held.drain(..count));
        } else if to.held.is_empty() {
            // A burst usually moves completely into an empty list: then no packet needs to be touched.
            std::mem::swap(&mut self.held, &mut to.held);
        } else {
            to.held.append(&mut self.held);
        }
    }

    /// Returns all but the first `keep` packets to the pool. Takes one lock.
    pub fn truncate(&mut self, keep: usize) {
        if keep < self.held.len() {
            self.memory.give_back(self.held.drain(keep..));
        }
    }

    /// Takes empty packets from the pool until the list has `count`, as many as are free. Takes one lock, or none if
    /// the list already has them.
    pub fn fetch(&mut self, count: usize) {
        if self.held.len() < count {
            let mut free = self.memory.free.lock().unwrap_or_else(PoisonError::into_inner);
            let from = free.len() - (count - self.held.len()).min(free.len());
            self.held.extend(free.drain(from..).rev().map(OwnedBuffer::empty));
        }
    }

    /// Returns an empty list of the same pool.
    pub(crate) fn like(&self) -> Packets {
        Packets { memory: Arc::clone(&self.memory), held: VecDeque::new() }
    }

    /// The pool's memory.
    pub(crate) fn memory(&self) -> &Arc<PoolMemory> {
        &self.memory
    }

    /// The length of packet `index`.
    #[inline]
    pub(crate) fn len_of(&self, index: usize) -> Option<u32> {
        self.held.get(index).map(OwnedBuffer::len)
    }

    /// The packets' buffers, in order, contiguous.
    #[inline]
    pub(crate) fn held(&mut self) -> &[OwnedBuffer] {
        self.held.make_contiguous()
    }

    /// Removes and returns the first packet.
    #[inline]
    pub(crate) fn take_first(&mut self) -> Option<OwnedBuffer> {
        self.held.pop_front()
    }

    /// Returns the first packet to the pool.
    pub(crate) fn drop_first(&mut self) {
        self.memory.give_back(self.held.drain(..1));
    }

    /// Removes and returns the last packet.
    #[inline]
    pub(crate) fn take_last(&mut self) -> Option<OwnedBuffer> {
        self.held.pop_back()
    }

    /// Appends a packet of this pool.
    #[inline]
    pub(crate) fn put_in(&mut self, held: OwnedBuffer) {
        self.held.push_back(held);
    }
}

impl Drop for Packets {
    fn drop(&mut self) {
        self.memory.give_back(self.held.drain(..));
    }
}

#[inline]
fn pointer(address: u64) -> *mut u8 {
    #[allow(clippy::cast_possible_truncation, reason = "an address of this process, 64 bits on x86-64")]
    std::ptr::with_exposed_provenance_mut(address as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(buffers: u32, longest: u32) -> PacketPool {
        PacketPool::new(PoolOptions { buffers, longest }).unwrap()
    }

    #[test]
    fn dropped_packets_return_to_the_pool() {
        let pool = pool(10, 2048);
        let mut some = pool.allocate(7);
        let more = pool.allocate(7);
        assert_eq!((some.len(), more.len(), pool.free()), (7, 3, 0));
        drop(more);
        some.truncate(2);
        assert_eq!((some.len(), pool.free()), (2, 8));
        some.fetch(6);
        some.fetch(3);
        assert_eq!((some.len(), pool.free()), (6, 4));
        drop(some);
        assert_eq!(pool.free(), 10);
    }

    #[test]
    fn packets_keep_their_bytes_when_they_move() {
        let pool = pool(4, 100);
        let (mut row, mut other) = (pool.allocate(4), pool.empty(4));
        for index in 0..4 {
            row.resize(index, 100 - u32::try_from(index).unwrap());
            row.get_mut(index).unwrap().fill(u8::try_from(index).unwrap() + 1);
        }
        row.move_to(3, &mut other);
        row.move_to(100, &mut other);
        assert!(row.is_empty() && row.get(0).is_none() && row.get_mut(0).is_none());
        let bytes: Vec<Vec<u8>> = other.iter().map(<[u8]>::to_vec).collect();
        assert_eq!(bytes, (1..=4).map(|n| vec![n; 101 - usize::from(n)]).collect::<Vec<_>>());
        assert_eq!((row.bytes(), other.bytes()), (0, 100 + 99 + 98 + 97));
        other.for_each_mut(|packet| packet[0] = 9);
        assert!(other.iter().all(|packet| packet[0] == 9));
    }

    #[test]
    #[should_panic(expected = "101 bytes in a buffer of 100")]
    fn a_packet_is_never_longer_than_its_buffer() {
        pool(1, 100).allocate(1).resize(0, 101);
    }

    #[test]
    #[should_panic(expected = "packets stay in their pool")]
    fn packets_stay_in_their_pool() {
        let (one, other) = (pool(1, 100), pool(1, 100));
        one.allocate(1).move_to(1, &mut other.empty(1));
    }

    #[test]
    fn the_memory_lives_as_long_as_its_packets() {
        let mut row = pool(1, 4000).allocate(1);
        row.resize(0, 4000);
        row.get_mut(0).unwrap().fill(1);
        assert_eq!(row.get(0).unwrap(), [1; 4000]);
        assert_eq!(pool(0, 0).allocate(5).len(), 0);
    }
}
