//! Packets outside of rows: plain words, for programs that have no types to keep them by.
//!
//! A row knows by its type that each buffer is in one place. A [`Loose`] packet is a number and an address that anybody can copy, or make up,
//! so the pool notes for each buffer whether it is outside, and under which number: what comes back under another is refused. Each time
//! that a buffer goes out or comes in its number changes, and odd ones are outside, so that a handle is good for one way back.

use super::{Held, PacketPool, Packets, PoolMemory};
use crate::error::LooseError;
use crate::sync::{AtomicU8, Ordering};
use crate::{HEADROOM, PoolOptions};
use std::mem::MaybeUninit;
use std::sync::PoisonError;

/// A packet outside of rows. Whoever has it has its bytes, and may move its begin and end within its buffer.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loose {
    /// Its first byte.
    pub data: *mut u8,
    /// How many bytes it has.
    pub len: u32,
    /// Which buffer, and which time that it is outside; never 0.
    pub id: u32,
}

/// The most buffers of a pool whose packets can all be outside: an [id](Loose::id) has 24 bits for the buffer.
pub const MOST_LOOSE: u32 = 1 << 24;

/// The buffer in an id.
const INDEX: u32 = MOST_LOOSE - 1;
/// Which times that its buffer was outside or not, in the upper bits of an id.
const TURN_SHIFT: u32 = 24;

/// For each buffer of a pool, the turn that it is in: odd while it is outside.
#[derive(Debug)]
pub(super) struct Turns(Box<[AtomicU8]>);

impl Turns {
    pub(super) fn of(buffers: u32) -> Turns {
        Turns((0..buffers.min(MOST_LOOSE)).map(|_| AtomicU8::new(0)).collect())
    }
}

impl PoolOptions {
    /// Bytes that [`PacketPool::over`] needs for this.
    #[must_use]
    pub fn bytes(&self) -> usize {
        usize::try_from(self.stride()).unwrap_or(usize::MAX).saturating_mul(self.buffers as usize).max(1)
    }
}

impl PacketPool {
    /// Lends packets without bytes to outside, as many as are free and as have room in `into`. Returns how many. One lock.
    #[inline]
    pub fn lend_out(&self, into: &mut [MaybeUninit<Loose>]) -> usize {
        let mut free = self.memory.free.lock().unwrap_or_else(PoisonError::into_inner);
        let from = free.len() - into.len().min(free.len());
        let sure = self.memory.nameable(free[from..].iter().rev().copied());
        let from = free.len() - sure;
        for (index, place) in free[from..].iter().rev().zip(into) {
            place.write(self.memory.let_out(&Held::empty(*index)));
        }
        free.truncate(from);
        sure
    }

    /// Takes packets from outside that are to be free again, from the first on, up to the first that is none of this pool's that are outside;
    /// [`objection`](PacketPool::objection) tells what is wrong with that. Returns how many. One lock.
    ///
    /// # Safety
    /// As for [`Packets::take_in`].
    #[inline]
    pub unsafe fn free_from(&self, loose: &[Loose]) -> usize {
        let mut free = self.memory.free.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = self.memory.take_in(loose);
        free.extend(loose[..taken].iter().map(|packet| packet.id & INDEX));
        taken
    }

    /// What is wrong with a packet that [`Packets::take_in`] refuses; nothing if it does not.
    #[must_use]
    pub fn objection(&self, packet: &Loose) -> Option<LooseError> {
        let PoolMemory { turns, options, stride, base, .. } = &*self.memory;
        let (id, index, turn) = (packet.id, packet.id & INDEX, packet.id >> TURN_SHIFT);
        let (Some(word), true) = (turns.0.get(index as usize), turn % 2 == 1) else {
            return Some(LooseError::Unknown { id });
        };
        if u32::from(word.load(Ordering::Relaxed)) != turn {
            return Some(LooseError::Returned { index });
        }
        let from = base + u64::from(*stride) * u64::from(index);
        let end = from + u64::from(HEADROOM) + u64::from(options.longest);
        let at = packet.data.expose_provenance() as u64;
        let misplaced = self.memory.recognise(packet).is_none();
        misplaced.then_some(LooseError::Place { index, at, len: packet.len, from, end })
    }
}

impl PoolMemory {
    /// The packet is outside from now on.
    #[inline]
    fn let_out(&self, held: &Held) -> Loose {
        // Relaxed, and no exchange: who has the `Held` has this word, and whoever hands packets from thread to thread orders both.
        let turn = &self.turns.0[held.index as usize];
        let now = turn.load(Ordering::Relaxed).wrapping_add(1);
        turn.store(now, Ordering::Relaxed);
        let data = super::pointer(self.address(held));
        Loose { data, len: held.len, id: u32::from(now) << TURN_SHIFT | held.index }
    }

    /// The packets are outside no more, from the first on, up to the first that was not. How many.
    #[inline]
    fn take_in(&self, loose: &[Loose]) -> usize {
        for (taken, packet) in loose.iter().enumerate() {
            let Some((word, now)) = self.recognise(packet) else { return taken };
            // Nobody else writes it: the packet was outside, and our caller is the one who takes it in.
            word.store(now.wrapping_add(1), Ordering::Relaxed);
        }
        loose.len()
    }

    /// The turn of a packet that is outside, and where that is kept.
    #[inline]
    fn recognise(&self, packet: &Loose) -> Option<(&AtomicU8, u8)> {
        let word = self.turns.0.get((packet.id & INDEX) as usize)?;
        let now = word.load(Ordering::Relaxed);
        // A packet before its buffer is far behind it; no more than 33 bits are added.
        let start = self.start_of(packet).min(1 << 40);
        let fits = start + u64::from(packet.len) <= u64::from(HEADROOM) + u64::from(self.options.longest);
        (now % 2 == 1 && u32::from(now) == packet.id >> TURN_SHIFT && fits).then_some((word, now))
    }

    /// Where a packet begins in its buffer, modulo 2⁶⁴.
    #[inline]
    fn start_of(&self, packet: &Loose) -> u64 {
        let buffer = self.base + u64::from(self.stride) * u64::from(packet.id & INDEX);
        (packet.data.expose_provenance() as u64).wrapping_sub(buffer)
    }

    /// How many of these buffers have a number to be outside under, before the first that has none.
    #[inline]
    fn nameable(&self, mut buffers: impl ExactSizeIterator<Item = u32>) -> usize {
        let count = buffers.len();
        let all = self.options.buffers <= MOST_LOOSE;
        if all { count } else { buffers.position(|index| index >= MOST_LOOSE).unwrap_or(count) }
    }
}

impl Packets {
    /// Moves packets from outside to the end of this row, from the first on, up to the first that is none of this pool's that are outside;
    /// [`PacketPool::objection`] tells what is wrong with that. Returns how many.
    ///
    /// # Safety
    /// No other thread moves one of these packets in at the same time. (One after the other, the second is refused.)
    #[inline]
    pub unsafe fn take_in(&mut self, loose: &[Loose]) -> usize {
        let memory = &*self.memory;
        let taken = memory.take_in(loose);
        self.held.extend(loose[..taken].iter().map(|packet| {
            // Recognised: within its buffer, whose size is a `u32`.
            let start = u32::try_from(memory.start_of(packet)).unwrap_or(HEADROOM);
            Held { index: packet.id & INDEX, start, len: packet.len }
        }));
        taken
    }

    /// Moves the first packets of this row outside, as many as there are and as have room in `into`. Returns how many.
    ///
    /// Their buffers are nobody's until they are [taken in](Packets::take_in) again. Of a pool of more than [`MOST_LOOSE`] buffers some
    /// have no number to be outside under; they stay, and what is behind them.
    #[inline]
    pub fn let_out(&mut self, into: &mut [MaybeUninit<Loose>]) -> usize {
        let sure = self.memory.nameable(self.held.iter().take(into.len()).map(|held| held.index));
        let (first, second) = self.held.as_slices();
        for (held, place) in first.iter().chain(second).zip(&mut into[..sure]) {
            place.write(self.memory.let_out(held));
        }
        self.held.drain(..sure);
        sure
    }

    /// Moves all packets outside again under the handles that they were [taken in](Packets::take_in) with, which are good again: for those
    /// that nobody wanted. The row has no others.
    pub fn refuse(&mut self) {
        for held in self.held.drain(..) {
            if let Some(turn) = self.memory.turns.0.get(held.index as usize) {
                turn.store(turn.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
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

    fn out(row: &mut Packets) -> Vec<Loose> {
        let mut into = [MaybeUninit::uninit(); 8];
        let count = row.let_out(&mut into);
        // SAFETY: so many were written.
        into[..count].iter().map(|place| unsafe { place.assume_init() }).collect()
    }

    fn take(row: &mut Packets, loose: &[Loose]) -> usize {
        // SAFETY: one thread.
        unsafe { row.take_in(loose) }
    }

    #[test]
    fn a_handle_is_good_for_one_way_back() {
        let pool = pool();
        let mut row = pool.lend(3);
        row.resize(1, 7);
        row.get_mut(1).unwrap().fill(5);
        let loose = out(&mut row);
        assert_eq!((loose.len(), row.len(), pool.free()), (3, 0, 1));
        assert_eq!(loose.iter().map(|packet| packet.len).collect::<Vec<_>>(), [0, 7, 0]);
        // Twice in one burst, then twice one after the other.
        assert_eq!(take(&mut row, &[loose[1], loose[1]]), 1);
        assert_eq!(row.get(0).unwrap(), [5; 7]);
        assert_eq!(take(&mut row, &loose[1..]), 0);
        let index = loose[1].id & INDEX;
        assert_eq!(pool.objection(&loose[1]), Some(LooseError::Returned { index }));
        row.truncate(0);
        // The turn that it is in while it is free is nobody's.
        assert_eq!(take(&mut row, &[Loose { id: loose[1].id + (1 << TURN_SHIFT), ..loose[1] }]), 0);
        // The same buffer, outside again, is another packet.
        let again = out(&mut pool.lend(1));
        assert_eq!((again[0].data, again[0].id == loose[1].id), (loose[1].data, false));
        assert_eq!((take(&mut row, &loose[1..2]), take(&mut row, &again)), (0, 1));
    }

    #[test]
    fn what_is_lent_to_outside_at_once_comes_back_at_once() {
        let pool = pool();
        let mut into = [MaybeUninit::uninit(); 3];
        assert_eq!((pool.lend_out(&mut into), pool.free()), (3, 1));
        // SAFETY: three were written.
        let loose = into.map(|place| unsafe { place.assume_init() });
        assert!(loose.iter().all(|packet| packet.len == 0 && pool.objection(packet).is_none()));
        assert_eq!((pool.lend_out(&mut into), pool.lend_out(&mut into), pool.free()), (1, 0, 0));
        // SAFETY: one thread.
        let free_from = |loose: &[Loose]| unsafe { pool.free_from(loose) };
        assert_eq!((free_from(&[loose[0], loose[0], loose[1]]), pool.free()), (1, 1));
        assert_eq!((free_from(&loose), free_from(&loose[1..]), pool.free()), (0, 2, 3));
    }

    #[test]
    fn a_turn_ends_and_begins_again_without_a_handle_of_no_turn() {
        let pool = pool();
        let mut row = pool.lend(1);
        for _ in 0..1000 {
            let loose = out(&mut row);
            assert!(loose[0].id != 0 && pool.objection(&loose[0]).is_none());
            assert_eq!(take(&mut row, &loose), 1);
        }
    }

    #[test]
    fn what_is_no_packet_of_this_pool_that_is_outside_is_refused() {
        let (pool, other) = (pool(), pool());
        let (mut row, loose, strange) = (pool.row(4), out(&mut pool.lend(2)), out(&mut other.lend(4)));
        let null = Loose { data: std::ptr::null_mut(), len: 0, id: 0 };
        assert_eq!(pool.objection(&null), Some(LooseError::Unknown { id: 0 }));
        assert_eq!(
            pool.objection(&Loose { id: 1 << 24 | 4, ..loose[0] }),
            Some(LooseError::Unknown { id: 1 << 24 | 4 })
        );
        for packet in
            [null, Loose { id: loose[1].id, ..loose[0] }, Loose { data: null.data, ..loose[0] }, strange[0], strange[3]]
        {
            assert!(take(&mut row, &[packet, loose[0]]) == 0 && pool.objection(&packet).is_some(), "{packet:?}");
        }
        assert_eq!((take(&mut row, &loose), row.len()), (2, 2));
    }

    #[test]
    fn a_packet_may_move_within_its_buffer_and_no_further() {
        let pool = pool();
        let (mut row, loose) = (pool.row(1), out(&mut pool.lend(1)));
        let moved = |by: isize, len: u32| Loose { data: loose[0].data.wrapping_offset(by), len, ..loose[0] };
        let first = -isize::try_from(HEADROOM).unwrap();
        for wrong in [moved(first - 1, 0), moved(0, 101), moved(101, 0), moved(100, 1), moved(1, u32::MAX)] {
            assert!(matches!(pool.objection(&wrong), Some(LooseError::Place { .. })), "{wrong:?}");
        }
        for right in [moved(0, 100), moved(100, 0), moved(60, 40)] {
            assert_eq!(pool.objection(&right), None);
        }
        let whole = moved(first, 100 + HEADROOM);
        // SAFETY: the packet is ours, and its buffer has so many bytes.
        unsafe { whole.data.write_bytes(9, whole.len as usize) };
        assert_eq!(take(&mut row, &[whole]), 1);
        assert_eq!(row.get(0).unwrap(), [9; 100 + HEADROOM as usize]);
    }

    #[test]
    fn those_that_nobody_wanted_keep_their_handles() {
        let pool = pool();
        let (mut row, loose) = (pool.row(4), out(&mut pool.lend(4)));
        assert_eq!(take(&mut row, &loose), 4);
        row.drop_first();
        row.refuse();
        assert_eq!((row.len(), pool.free()), (0, 1));
        assert_eq!((take(&mut row, &loose), take(&mut row, &loose[1..])), (0, 3));
        drop(row);
        assert_eq!(pool.free(), 4);
    }

    #[test]
    fn a_pool_over_memory_of_the_callers_lies_there_and_nowhere_else() {
        let mut memory = vec![0x55_u8; OPTIONS.bytes() + 64];
        let start = memory.as_mut_ptr().wrapping_add(3);
        // SAFETY: so many bytes, which outlive the pool and everything of it, and are not touched until then.
        let pool = unsafe { PacketPool::over(start, OPTIONS) };
        assert!(pool.is_whole());
        let mut row = pool.lend(4);
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
