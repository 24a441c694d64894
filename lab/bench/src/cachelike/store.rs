//! The cache: pools of slabs, a size class for each slot size, and a list of the least recently used values in each.
//!
//! ```text
//! Pool ── index: key → place            64 parts, each with a lock
//!   ├─── slabs of 4 MiB that no class has
//!   └─── Class ── Lru: list, free slots   one lock
//!          └──── slots: key, generation, bytes   a lock each, held while bytes are copied
//! ```
//!
//! A class takes a slab while the pool has one, then the slot of its least recently used value; slabs never return. A
//! slot belongs to the thread that has removed its key from the index.

use super::config::{CacheConfig, SLAB_BYTES};
use super::distribution::whole;
use super::lru::Lru;
use crate::ffi;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, RwLock};
use telpher_os::Random;

/// Parts of the index of a pool. Source: chosen; far more than threads.
const PARTS: usize = 64;

/// A value in its slot.
#[derive(Debug)]
struct Slot<'m> {
    key: u64,
    generation: u64,
    /// Bytes of the value; 0 in a slot that never had one.
    len: usize,
    bytes: &'m mut [u8],
}

/// Where a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct ValueSlot {
    class: usize,
    slot: u32,
}

/// A class of slots of one size.
#[derive(Debug)]
struct Class<'m> {
    slot_bytes: usize,
    lru: Mutex<Lru>,
    /// The slots of each slab, in the order in which the class took them.
    slabs: Vec<OnceLock<Vec<RwLock<Slot<'m>>>>>,
}

/// A part of the cache with its own memory.
#[derive(Debug)]
struct Pool<'m> {
    index: Vec<Mutex<HashMap<u64, ValueSlot>>>,
    unused: Mutex<Vec<&'m mut [u8]>>,
    classes: Vec<Class<'m>>,
}

/// A cache in memory of its owner.
#[derive(Debug)]
pub(super) struct Store<'m> {
    pools: Vec<Pool<'m>>,
    evictions: AtomicU64,
}

/// What a get has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub(super) len: usize,
    pub(super) generation: u64,
}

impl<'m> Class<'m> {
    fn slots_of_slab(&self) -> usize {
        slab_bytes() / self.slot_bytes
    }

    fn slot(&self, number: u32) -> &RwLock<Slot<'m>> {
        let (slab, slot) = (number as usize / self.slots_of_slab(), number as usize % self.slots_of_slab());
        &self.slabs[slab].get().expect("a slot's number is given out after its slab is there")[slot]
    }

    fn lru(&self) -> MutexGuard<'_, Lru> {
        self.lru.lock().expect(NO_PANIC)
    }

    /// Divides a slab into slots and makes them free.
    fn take_slab(&self, lru: &mut Lru, slab: &'m mut [u8]) {
        let of_slab = self.slots_of_slab();
        let number = lru.slots() / of_slab;
        let slot = |bytes| RwLock::new(Slot { key: 0, generation: 0, len: 0, bytes });
        let slots = slab.chunks_exact_mut(self.slot_bytes).map(slot).collect();
        self.slabs[number].set(slots).expect("only the thread that has the list adds slabs");
        lru.add_free(of_slab);
    }
}

/// Bytes of a slab in this address space.
fn slab_bytes() -> usize {
    usize::try_from(SLAB_BYTES).expect("4 MiB fit")
}

/// Why locks cannot be poisoned.
const NO_PANIC: &str = "no thread panics while it holds a lock of the cache";

impl<'m> Pool<'m> {
    fn part(&self, key: u64) -> MutexGuard<'_, HashMap<u64, ValueSlot>> {
        // Mixed, because neighbouring keys are popular together.
        let part = usize::try_from(Random::new(key).next() % PARTS as u64).expect("less than the parts");
        self.index[part].lock().expect(NO_PANIC)
    }

    /// Removes a key from the index if it is at this place.
    fn take(&self, key: u64, place: ValueSlot) -> bool {
        let mut part = self.part(key);
        let is_there = part.get(&key) == Some(&place);
        if is_there {
            part.remove(&key);
        }
        is_there
    }

    /// Returns a slot of a class for a new value; `None` if the class has no slot and the pool no slab. Counts evicted
    /// values.
    fn allocate(&self, class: usize, evictions: &AtomicU64) -> Option<u32> {
        let of = &self.classes[class];
        let mut lru = of.lru();
        if let Some(slot) = lru.take_free() {
            return Some(slot);
        }
        let slab = self.unused.lock().expect(NO_PANIC).pop();
        if let Some(slab) = slab {
            of.take_slab(&mut lru, slab);
            return lru.take_free();
        }
        let mut candidate = lru.last();
        while let Some((slot, key)) = candidate {
            // Another thread may be about to put this key into the index, or has just removed it.
            if self.take(key, ValueSlot { class, slot }) {
                lru.unlink(slot);
                evictions.fetch_add(1, Ordering::Relaxed);
                return Some(slot);
            }
            candidate = lru.before(slot);
        }
        None
    }

    /// Makes a slot free whose key this thread has removed from the index.
    fn release(&self, place: ValueSlot) {
        let mut lru = self.classes[place.class].lru();
        lru.unlink(place.slot);
        lru.free(place.slot);
    }
}

impl<'m> Store<'m> {
    /// Creates the cache of a configuration in `memory`, which has the configured length. No byte is touched.
    pub(super) fn new(config: &CacheConfig, memory: &'m mut [u8]) -> Self {
        let mut slabs: Vec<&mut [u8]> = memory.chunks_exact_mut(slab_bytes()).collect();
        let all = slabs.len();
        let mut pools = Vec::new();
        for part in &config.pools {
            // Each pool has a slab at least, if there are any left.
            let number = usize::try_from(whole(all as f64 * part)).unwrap_or(all).max(1).min(slabs.len());
            let unused = slabs.split_off(slabs.len() - number);
            let class = |slot_bytes: &u64| Class {
                slot_bytes: usize::try_from(*slot_bytes).expect("at most a slab"),
                lru: Mutex::default(),
                slabs: (0..number).map(|_| OnceLock::new()).collect(),
            };
            pools.push(Pool {
                index: (0..PARTS).map(|_| Mutex::default()).collect(),
                unused: Mutex::new(unused),
                classes: config.slots.iter().map(class).collect(),
            });
        }
        Store { pools, evictions: AtomicU64::new(0) }
    }

    /// Values that were removed to make room.
    pub(super) fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Copies the value of a key to the front of `to`. Returns `None` if the cache does not have it.
    pub(super) fn get(&self, pool: usize, key: u64, to: &mut [u8]) -> Option<Found> {
        let pool = &self.pools[pool];
        loop {
            let place = *pool.part(key).get(&key)?;
            let class = &pool.classes[place.class];
            let slot = class.slot(place.slot).read().expect(NO_PANIC);
            if slot.key != key {
                // The value was removed, and its slot has another one now.
                continue;
            }
            let found = Found { len: slot.len, generation: slot.generation };
            ffi::memmove(&mut to[..slot.len], &slot.bytes[..slot.len]);
            drop(slot);
            // As CacheLib's `tryLockUpdate`: reading does not wait for the list.
            if let Ok(mut lru) = class.lru.try_lock() {
                lru.touch(place.slot, key);
            }
            return Some(found);
        }
    }

    /// Copies a new value into the cache. Returns false if there is no room: the value is too long, or its class has no
    /// slot.
    pub(super) fn set(&self, number: usize, key: u64, generation: u64, value: &[u8]) -> bool {
        let pool = &self.pools[number];
        let Some(class) = pool.classes.iter().position(|class| class.slot_bytes >= value.len()) else { return false };
        let Some(slot) = pool.allocate(class, &self.evictions) else { return false };
        let place = ValueSlot { class, slot };
        {
            let mut slot = pool.classes[class].slot(slot).write().expect(NO_PANIC);
            (slot.key, slot.generation, slot.len) = (key, generation, value.len());
            ffi::memmove(&mut slot.bytes[..value.len()], value);
        }
        // First the list, then the index: what is in the index is in its list, too, and can be released.
        pool.classes[class].lru().link(slot, key);
        let before = pool.part(key).insert(key, place);
        if let Some(before) = before {
            pool.release(before);
        }
        true
    }

    /// Removes a value. Returns false if there was none.
    pub(super) fn delete(&self, pool: usize, key: u64) -> bool {
        let pool = &self.pools[pool];
        let place = pool.part(key).remove(&key);
        if let Some(place) = place {
            pool.release(place);
        }
        place.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::value::{fill, first_wrong};
    use super::*;

    /// One slab for each of two pools, and slots of 1 and 2 MiB.
    fn config() -> CacheConfig {
        let slots = vec![1 << 20, 2 << 20];
        CacheConfig { cache_bytes: 2 * SLAB_BYTES, pools: vec![0.5, 0.5], slots, ..CacheConfig::paper() }
    }

    fn with_store(test: impl FnOnce(&Store<'_>)) {
        let config = config();
        let mut memory = vec![0; usize::try_from(config.cache_bytes).unwrap()];
        test(&Store::new(&config, &mut memory));
    }

    fn set(store: &Store<'_>, pool: usize, key: u64, generation: u64, len: usize) -> bool {
        let mut value = vec![0; len];
        fill(&mut value, key, generation);
        store.set(pool, key, generation, &value)
    }

    fn get(store: &Store<'_>, pool: usize, key: u64) -> Option<(usize, u64)> {
        let mut to = vec![0; 2 << 20];
        let found = store.get(pool, key, &mut to)?;
        assert_eq!(first_wrong(&to[..found.len], key, found.generation), None);
        Some((found.len, found.generation))
    }

    #[test]
    fn the_least_recently_used_value_of_a_class_makes_room() {
        with_store(|store| {
            (0..4).for_each(|key| assert!(set(store, 0, key, 1, 700_000)));
            // Key 0 is used again, so key 1 is the oldest.
            assert_eq!(get(store, 0, 0), Some((700_000, 1)));
            assert!(set(store, 0, 4, 1, 1000));
            assert_eq!([0, 1, 2, 3, 4].map(|key| get(store, 0, key).is_some()), [true, false, true, true, true]);
            assert_eq!(store.evictions(), 1);
        });
    }

    #[test]
    fn a_class_without_a_slab_has_no_room_and_pools_are_apart() {
        with_store(|store| {
            assert!(set(store, 0, 1, 1, 100));
            assert!(!set(store, 0, 2, 1, 1_500_000), "the pool's slab belongs to the other class");
            assert!(set(store, 1, 2, 1, 1_500_000) && !set(store, 1, 3, 1, 3 << 20));
            assert_eq!((get(store, 0, 2), get(store, 1, 2)), (None, Some((1_500_000, 1))));
        });
    }

    #[test]
    fn a_replaced_or_deleted_value_gives_its_slot_back() {
        with_store(|store| {
            for generation in 0..20 {
                assert!(set(store, 0, 7, generation, 500));
                assert_eq!(get(store, 0, 7), Some((500, generation)));
            }
            assert!(store.delete(0, 7) && !store.delete(0, 7));
            assert_eq!(get(store, 0, 7), None);
            (0..4).for_each(|key| assert!(set(store, 0, key, 1, 500)));
            assert_eq!(store.evictions(), 0);
        });
    }

    #[test]
    fn threads_that_set_get_and_delete_the_same_keys_find_whole_values() {
        with_store(|store| {
            let work = |thread: u64| {
                let mut random = Random::new(thread);
                for generation in 0..2000 {
                    let key = random.below(6);
                    match random.below(8) {
                        0 => drop(store.delete(0, key)),
                        1 | 2 => drop(set(store, 0, key, thread << 32 | generation, 300)),
                        _ => drop(get(store, 0, key)),
                    }
                }
            };
            std::thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || work(thread)))));
            // No slot was lost: four values have room.
            (10..14).for_each(|key| assert!(set(store, 0, key, 1, 300)));
            assert!((10..14).all(|key| get(store, 0, key).is_some()));
        });
    }
}
