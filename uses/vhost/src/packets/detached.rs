//! Detached packets: plain data, for programs in languages without ownership types.
//!
//! The type system guarantees that a buffer is in one [`Packets`] list at a time. A [`DetachedPacket`] packet is a number and an
//! address that any program can copy or invent. So the pool records for each buffer whether it is detached, and under
//! which id; a packet with any other id is refused. The buffer's generation changes each time it is detached or
//! returned, and is odd while it is detached. So a handle can be returned only once.

use super::{OwnedBuffer, PacketPool, Packets, PoolMemory};
use crate::error::DetachedPacketError;
use crate::sync::{AtomicU8, Ordering};
use crate::{HEADROOM, PoolOptions};
use std::mem::MaybeUninit;
use std::sync::PoisonError;

/// A detached packet. Its owner may access its bytes, and move its start and end within its buffer.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DetachedPacket {
    /// The address of its first byte.
    pub data: *mut u8,
    /// Its length in bytes.
    pub len: u32,
    /// The buffer's index and its generation; never 0.
    pub id: u32,
}

/// The most buffers of a pool whose packets can all be detached: an [id](DetachedPacket::id) has 24 bits for the buffer.
pub const MAX_DETACHED: u32 = 1 << 24;

/// The id's bits for the buffer's index.
const INDEX: u32 = MAX_DETACHED - 1;
/// The position of the buffer's generation in an id.
const GENERATION_SHIFT: u32 = 24;

/// The generation of each buffer of a pool: odd while it is detached.
#[derive(Debug)]
pub(super) struct Generations(Box<[AtomicU8]>);

impl Generations {
    pub(super) fn of(buffers: u32) -> Generations {
        Generations((0..buffers.min(MAX_DETACHED)).map(|_| AtomicU8::new(0)).collect())
    }
}

impl PoolOptions {
    /// The number of bytes that [`PacketPool::over`] needs for these options.
    #[must_use]
    pub fn bytes(&self) -> usize {
        usize::try_from(self.stride()).unwrap_or(usize::MAX).saturating_mul(self.buffers as usize).max(1)
    }
}

impl PacketPool {
    /// Detaches empty packets: as many as are free and fit `into`. Returns how many. Takes one lock.
    #[inline]
    pub fn lend_out(&self, into: &mut [MaybeUninit<DetachedPacket>]) -> usize {
        let mut free = self.memory.free.lock().unwrap_or_else(PoisonError::into_inner);
        let from = free.len() - into.len().min(free.len());
        let sure = self.memory.nameable(free[from..].iter().rev().copied());
        let from = free.len() - sure;
        for (index, place) in free[from..].iter().rev().zip(into) {
            place.write(self.memory.let_out(&OwnedBuffer::empty(*index)));
        }
        free.truncate(from);
        sure
    }

    /// Frees detached packets, from the first on, up to the first that is not a detached packet of this pool;
    /// [`objection`](PacketPool::objection) says what is wrong with that one. Returns how many. Takes one lock.
    ///
    /// # Safety
    /// As for [`Packets::take_in`].
    #[inline]
    pub unsafe fn free_from(&self, loose: &[DetachedPacket]) -> usize {
        let mut free = self.memory.free.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = self.memory.take_in(loose);
        free.extend(loose[..taken].iter().map(|packet| packet.id & INDEX));
        taken
    }

    /// Says why [`Packets::take_in`] refuses a packet; `None` if it does not.
    #[must_use]
    pub fn objection(&self, packet: &DetachedPacket) -> Option<DetachedPacketError> {
        let PoolMemory { generations, options, stride, base, .. } = &*self.memory;
        let (id, index, generation) = (packet.id, packet.id & INDEX, packet.id >> GENERATION_SHIFT);
        let (Some(word), true) = (generations.0.get(index as usize), generation % 2 == 1) else {
            return Some(DetachedPacketError::Unknown { id });
        };
        if u32::from(word.load(Ordering::Relaxed)) != generation {
            return Some(DetachedPacketError::Returned { index });
        }
        let from = base + u64::from(*stride) * u64::from(index);
        let end = from + u64::from(HEADROOM) + u64::from(options.longest);
        let at = packet.data.expose_provenance() as u64;
        let misplaced = self.memory.recognise(packet).is_none();
        misplaced.then_some(DetachedPacketError::Place { index, at, len: packet.len, from, end })
    }
}

impl PoolMemory {
    /// Detaches the packet.
    #[inline]
    fn let_out(&self, held: &OwnedBuffer) -> DetachedPacket {
        // Relaxed, and no exchange: the owner of the `OwnedBuffer` owns this word, and handing packets from thread to
        // thread orders both.
        let generation = &self.generations.0[held.index as usize];
        let now = generation.load(Ordering::Relaxed).wrapping_add(1);
        generation.store(now, Ordering::Relaxed);
        let data = super::pointer(self.address(held));
        DetachedPacket { data, len: held.len, id: u32::from(now) << GENERATION_SHIFT | held.index }
    }

    /// Takes back detached packets, from the first on, up to the first that is not detached. Returns how many.
    #[inline]
    fn take_in(&self, loose: &[DetachedPacket]) -> usize {
        for (taken, packet) in loose.iter().enumerate() {
            let Some((word, now)) = self.recognise(packet) else { return taken };
            // No other thread writes it: the packet was detached, and only our caller takes it back.
            word.store(now.wrapping_add(1), Ordering::Relaxed);
        }
        loose.len()
    }

    /// The generation of a detached packet, and the word that holds it.
    #[inline]
    fn recognise(&self, packet: &DetachedPacket) -> Option<(&AtomicU8, u8)> {
        let word = self.generations.0.get((packet.id & INDEX) as usize)?;
        let now = word.load(Ordering::Relaxed);
        // A packet before its buffer has a huge offset; no more than 33 bits are added.
        let start = self.start_of(packet).min(1 << 40);
        let fits = start + u64::from(packet.len) <= u64::from(HEADROOM) + u64::from(self.options.longest);
        (now % 2 == 1 && u32::from(now) == packet.id >> GENERATION_SHIFT && fits).then_some((word, now))
    }

    /// A packet's offset in its buffer, modulo 2⁶⁴.
    #[inline]
    fn start_of(&self, packet: &DetachedPacket) -> u64 {
        let buffer = self.base + u64::from(self.stride) * u64::from(packet.id & INDEX);
        (packet.data.expose_provenance() as u64).wrapping_sub(buffer)
    }

    /// How many of these buffers fit an id, before the first that does not.
    #[inline]
    fn nameable(&self, mut buffers: impl ExactSizeIterator<Item = u32>) -> usize {
        let count = buffers.len();
        let all = self.options.buffers <= MAX_DETACHED;
        if all { count } else { buffers.position(|index| index >= MAX_DETACHED).unwrap_or(count) }
    }
}

impl Packets {
    /// Moves detached packets to the end of this list, from the first on, up to the first that is not a detached packet
    /// of this pool; [`PacketPool::objection`] says what is wrong with that one. Returns how many.
    ///
    /// # Safety
    /// No other thread takes in one of these packets at the same time. (If one does so afterwards, it is refused.)
    #[inline]
    pub unsafe fn take_in(&mut self, loose: &[DetachedPacket]) -> usize {
        let memory = &*self.memory;
        let taken = memory.take_in(loose);
        self.held.extend(loose[..taken].iter().map(|packet| {
            // Checked: within its buffer, whose size is a `u32`.
            let start = u32::try_from(memory.start_of(packet)).unwrap_or(HEADROOM);
            OwnedBuffer { index: packet.id & INDEX, start, len: packet.len }
        }));
        taken
    }

    /// Detaches the first packets of this list, as many as fit `into`. Returns how many.
    ///
    /// No list or queue has their buffers until they are [taken in](Packets::take_in) again. In a pool of more than
    /// [`MAX_DETACHED`] buffers, some cannot be detached; they stay, with all packets after them.
    #[inline]
    pub fn let_out(&mut self, into: &mut [MaybeUninit<DetachedPacket>]) -> usize {
        let sure = self.memory.nameable(self.held.iter().take(into.len()).map(|held| held.index));
        let (first, second) = self.held.as_slices();
        for (held, place) in first.iter().chain(second).zip(&mut into[..sure]) {
            place.write(self.memory.let_out(held));
        }
        self.held.drain(..sure);
        sure
    }

    /// Detaches all packets again under the handles that they were [taken in](Packets::take_in) with, which become
    /// valid again: for packets that were not accepted. The list must contain no other packets.
    pub fn refuse(&mut self) {
        for held in self.held.drain(..) {
            if let Some(generation) = self.memory.generations.0.get(held.index as usize) {
                generation.store(generation.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: PoolOptions = PoolOptions { buffers: 4, longest: 100 };

    fn pool() -> PacketPool {
        PacketPool::new(OPTIONS).unwrap()
    }

    fn out(row: &mut Packets) -> Vec<DetachedPacket> {
        let mut into = [MaybeUninit::uninit(); 8];
        let count = row.let_out(&mut into);
        // SAFETY: `count` elements were written.
        into[..count].iter().map(|place| unsafe { place.assume_init() }).collect()
    }

    fn take(row: &mut Packets, loose: &[DetachedPacket]) -> usize {
        // SAFETY: one thread.
        unsafe { row.take_in(loose) }
    }

    #[test]
    fn a_handle_can_be_returned_once() {
        let pool = pool();
        let mut row = pool.allocate(3);
        row.resize(1, 7);
        row.get_mut(1).unwrap().fill(5);
        let loose = out(&mut row);
        assert_eq!((loose.len(), row.len(), pool.free()), (3, 0, 1));
        assert_eq!(loose.iter().map(|packet| packet.len).collect::<Vec<_>>(), [0, 7, 0]);
        // The same packet twice in one call, then again in a second call.
        assert_eq!(take(&mut row, &[loose[1], loose[1]]), 1);
        assert_eq!(row.get(0).unwrap(), [5; 7]);
        assert_eq!(take(&mut row, &loose[1..]), 0);
        let index = loose[1].id & INDEX;
        assert_eq!(pool.objection(&loose[1]), Some(DetachedPacketError::Returned { index }));
        row.truncate(0);
        // The generation of a free buffer is not a valid handle.
        assert_eq!(take(&mut row, &[DetachedPacket { id: loose[1].id + (1 << GENERATION_SHIFT), ..loose[1] }]), 0);
        // The same buffer, detached again, is another packet.
        let again = out(&mut pool.allocate(1));
        assert_eq!((again[0].data, again[0].id == loose[1].id), (loose[1].data, false));
        assert_eq!((take(&mut row, &loose[1..2]), take(&mut row, &again)), (0, 1));
    }

    #[test]
    fn packets_are_detached_and_freed_in_bulk() {
        let pool = pool();
        let mut into = [MaybeUninit::uninit(); 3];
        assert_eq!((pool.lend_out(&mut into), pool.free()), (3, 1));
        // SAFETY: three were written.
        let loose = into.map(|place| unsafe { place.assume_init() });
        assert!(loose.iter().all(|packet| packet.len == 0 && pool.objection(packet).is_none()));
        assert_eq!((pool.lend_out(&mut into), pool.lend_out(&mut into), pool.free()), (1, 0, 0));
        // SAFETY: one thread.
        let free_from = |loose: &[DetachedPacket]| unsafe { pool.free_from(loose) };
        assert_eq!((free_from(&[loose[0], loose[0], loose[1]]), pool.free()), (1, 1));
        assert_eq!((free_from(&loose), free_from(&loose[1..]), pool.free()), (0, 2, 3));
    }

    #[test]
    fn a_generation_wraps_without_a_zero_handle() {
        let pool = pool();
        let mut row = pool.allocate(1);
        for _ in 0..1000 {
            let loose = out(&mut row);
            assert!(loose[0].id != 0 && pool.objection(&loose[0]).is_none());
            assert_eq!(take(&mut row, &loose), 1);
        }
    }

    #[test]
    fn handles_of_no_detached_packet_are_refused() {
        let (pool, other) = (pool(), pool());
        let (mut row, loose, strange) = (pool.empty(4), out(&mut pool.allocate(2)), out(&mut other.allocate(4)));
        let null = DetachedPacket { data: std::ptr::null_mut(), len: 0, id: 0 };
        assert_eq!(pool.objection(&null), Some(DetachedPacketError::Unknown { id: 0 }));
        assert_eq!(
            pool.objection(&DetachedPacket { id: 1 << 24 | 4, ..loose[0] }),
            Some(DetachedPacketError::Unknown { id: 1 << 24 | 4 })
        );
        for packet in [
            null,
            DetachedPacket { id: loose[1].id, ..loose[0] },
            DetachedPacket { data: null.data, ..loose[0] },
            strange[0],
            strange[3],
        ] {
            assert!(take(&mut row, &[packet, loose[0]]) == 0 && pool.objection(&packet).is_some(), "{packet:?}");
        }
        assert_eq!((take(&mut row, &loose), row.len()), (2, 2));
    }

    #[test]
    fn a_packet_may_move_only_within_its_buffer() {
        let pool = pool();
        let (mut row, loose) = (pool.empty(1), out(&mut pool.allocate(1)));
        let moved = |by: isize, len: u32| DetachedPacket { data: loose[0].data.wrapping_offset(by), len, ..loose[0] };
        let first = -isize::try_from(HEADROOM).unwrap();
        for wrong in [moved(first - 1, 0), moved(0, 101), moved(101, 0), moved(100, 1), moved(1, u32::MAX)] {
            assert!(matches!(pool.objection(&wrong), Some(DetachedPacketError::Place { .. })), "{wrong:?}");
        }
        for right in [moved(0, 100), moved(100, 0), moved(60, 40)] {
            assert_eq!(pool.objection(&right), None);
        }
        let whole = moved(first, 100 + HEADROOM);
        // SAFETY: the packet is ours, and its buffer has that many bytes.
        unsafe { whole.data.write_bytes(9, whole.len as usize) };
        assert_eq!(take(&mut row, &[whole]), 1);
        assert_eq!(row.get(0).unwrap(), [9; 100 + HEADROOM as usize]);
    }

    #[test]
    fn refused_packets_keep_their_handles() {
        let pool = pool();
        let (mut row, loose) = (pool.empty(4), out(&mut pool.allocate(4)));
        assert_eq!(take(&mut row, &loose), 4);
        row.drop_first();
        row.refuse();
        assert_eq!((row.len(), pool.free()), (0, 1));
        assert_eq!((take(&mut row, &loose), take(&mut row, &loose[1..])), (0, 3));
        drop(row);
        assert_eq!(pool.free(), 4);
    }

    #[test]
    fn a_pool_over_the_callers_memory_touches_nothing_else() {
        let mut memory = vec![0x55_u8; OPTIONS.bytes() + 64];
        let start = memory.as_mut_ptr().wrapping_add(3);
        // SAFETY: the memory has that many bytes and outlives the pool and its packets; it is not touched until then.
        let pool = unsafe { PacketPool::over(start, OPTIONS) };
        assert!(pool.is_whole());
        let mut row = pool.allocate(4);
        (0..4).for_each(|index| row.resize(index, 100));
        row.for_each_mut(|packet| packet.fill(1));
        assert!(!pool.is_whole());
        let another = pool.clone();
        drop(row);
        assert!(pool.free() == 4 && !pool.is_whole());
        drop(another);
        assert!(pool.is_whole());
        drop(pool);
        assert_eq!(memory.iter().filter(|byte| **byte == 1).count(), 400);
        assert!(memory[..3].iter().chain(&memory[3 + OPTIONS.bytes()..]).all(|byte| *byte == 0x55));
    }
}
