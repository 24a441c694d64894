//! The memory of this process that peers may access: regions by their keys.
//!
//! An access holds the table's lock for reading while it runs, and `close` takes it for writing. So after a region was
//! closed, no thread of this process accesses its memory for a peer.

use crate::access_counters::count;
use crate::buffer::Segments;
use crate::error::FabricError;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use telpher_os::Lineage;

/// What peers may do with a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Permissions {
    /// They may read it.
    pub read: bool,
    /// They may write it.
    pub write: bool,
}

/// Memory that peers may access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// The memory. It belongs to the table until the region is closed: peers access it at any time.
    pub segments: Segments,
    /// The address by which peers name its first byte: its own, or 0 if peers use offsets.
    pub base: u64,
    /// What peers may do.
    pub permissions: Permissions,
}

/// Why a peer refused an access to its memory. It accessed nothing, except if its memory is not mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AccessError {
    /// No region has the key, or it was closed.
    #[error("no region has this key")]
    UnknownKey,
    /// The range is not wholly within the region.
    #[error("the range is not within the region")]
    OutOfRange,
    /// The region may not be accessed so.
    #[error("the region does not permit this kind of access")]
    NotPermitted,
    /// The address of an atomic operation is not a multiple of the size of its type.
    #[error("the address is not a multiple of the size of the type")]
    Misaligned,
    /// The region was registered, but its memory is not mapped, or not writable. Bytes before that may be written.
    #[error("the memory of the region is not mapped, or not writable")]
    NotMapped,
}

/// The regions of one or more endpoints.
#[derive(Debug)]
pub struct Regions {
    table: RwLock<Table>,
    /// True once a counter counts the changes of a region.
    is_counting: AtomicBool,
    created_in: Lineage,
}

#[derive(Debug)]
struct Table {
    regions: HashMap<u64, Registered>,
    /// The next key to try when the caller wants any.
    next_key: u64,
}

#[derive(Debug)]
struct Registered {
    region: Region,
    /// What counts its changes by peers.
    changes: Option<Arc<AtomicU64>>,
}

impl Default for Regions {
    fn default() -> Regions {
        // Not 0, so that a zeroed structure of a program names no region.
        let table = Table { regions: HashMap::new(), next_key: 1 };
        Regions { table: RwLock::new(table), is_counting: AtomicBool::new(false), created_in: Lineage::current() }
    }
}

impl Regions {
    /// Registers a region under a key, or under one that is not in use. Returns the key.
    ///
    /// # Errors
    /// [`FabricError::KeyInUse`], [`FabricError::Forked`].
    pub fn register(&self, region: Region, key: Option<u64>) -> Result<u64, FabricError> {
        let mut table = self.change().ok_or(FabricError::Forked)?;
        let key = match key {
            Some(key) if table.regions.contains_key(&key) => return Err(FabricError::KeyInUse { key }),
            Some(key) => key,
            None => {
                while table.regions.contains_key(&table.next_key) {
                    table.next_key = table.next_key.wrapping_add(1);
                }
                let key = table.next_key;
                table.next_key = key.wrapping_add(1);
                key
            }
        };
        table.regions.insert(key, Registered { region, changes: None });
        Ok(key)
    }

    /// Lets a counter count the writes and atomic operations of peers that change a region, each when it has ended.
    /// False if there is no such region.
    #[must_use]
    pub fn count_changes(&self, key: u64, counter: Arc<AtomicU64>) -> bool {
        let Some(mut table) = self.change() else { return false };
        let Some(registered) = table.regions.get_mut(&key) else { return false };
        registered.changes = Some(counter);
        self.is_counting.store(true, Ordering::Relaxed);
        true
    }

    /// Calls `use_counter` with what counts the changes of a region that peers may write.
    fn counter_of<R>(&self, key: u64, use_counter: impl FnOnce(&AtomicU64) -> R) -> Option<R> {
        if !self.is_counting.load(Ordering::Relaxed) {
            return None;
        }
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let registered = table.regions.get(&key).filter(|registered| registered.region.permissions.write)?;
        registered.changes.as_deref().map(use_counter)
    }

    /// True if the changes of a region are counted.
    pub(crate) fn counts_changes(&self, key: u64) -> bool {
        self.counter_of(key, |_| ()).is_some()
    }

    /// A peer has changed a region.
    pub(crate) fn changed(&self, key: u64) {
        let _ = self.counter_of(key, count);
    }

    /// Closes a region: later accesses fail. When this returns, none is under way. True if the region existed.
    #[must_use]
    pub fn close(&self, key: u64) -> bool {
        self.change().is_some_and(|mut table| table.regions.remove(&key).is_some())
    }

    /// Locks the table for a change; a forked child does not wait for a lock that a thread of its parent may hold.
    fn change(&self) -> Option<RwLockWriteGuard<'_, Table>> {
        self.created_in.is_current().then(|| self.table.write().unwrap_or_else(PoisonError::into_inner))
    }

    /// Checks an access of a peer, and runs it on the region's memory, from a position there. This is the only check of
    /// key, range and permission. An access to no bytes needs no region.
    pub(crate) fn access(
        &self,
        range: &RemoteRange,
        needs: Permissions,
        run: impl FnOnce(&Segments, u64) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        if range.len == 0 {
            return Ok(());
        }
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let Registered { region, .. } = table.regions.get(&range.key).ok_or(AccessError::UnknownKey)?;
        let offset = range.address.checked_sub(region.base).ok_or(AccessError::OutOfRange)?;
        if offset.checked_add(range.len).is_none_or(|end| end > region.segments.len()) {
            return Err(AccessError::OutOfRange);
        }
        if (needs.read && !region.permissions.read) || (needs.write && !region.permissions.write) {
            return Err(AccessError::NotPermitted);
        }
        run(&region.segments, offset)
    }
}

/// Memory of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteRange {
    /// The key of the region.
    pub key: u64,
    /// The address, as the peer's region counts it.
    pub address: u64,
    /// Bytes.
    pub len: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Buffer;

    fn segments(buffers: &[(u64, u64)]) -> Segments {
        let buffers: Vec<Buffer> = buffers.iter().map(|&(at, len)| Buffer::unaccessed(at, len)).collect();
        Segments::new(&buffers).unwrap()
    }

    const READ: Permissions = Permissions { read: true, write: false };
    const WRITE: Permissions = Permissions { read: false, write: true };
    const BOTH: Permissions = Permissions { read: true, write: true };

    /// Returns the position of an access that is permitted.
    fn position(regions: &Regions, key: u64, address: u64, len: u64, needs: Permissions) -> Result<u64, AccessError> {
        let mut seen = None;
        let range = RemoteRange { key, address, len };
        regions.access(&range, needs, |_, offset| {
            seen = Some(offset);
            Ok(())
        })?;
        Ok(seen.expect("a permitted access runs"))
    }

    #[test]
    fn exactly_the_bytes_of_a_region_can_be_accessed() {
        let regions = Regions::default();
        for base in [0, 0x5000] {
            let region = Region { segments: segments(&[(0x5000, 100), (0x9000, 28)]), base, permissions: BOTH };
            let key = regions.register(region, None).unwrap();
            for (at, len, expected) in [
                (0, 1, Ok(0)),
                (0, 128, Ok(0)),
                (127, 1, Ok(127)),
                (0, 129, Err(AccessError::OutOfRange)),
                (128, 1, Err(AccessError::OutOfRange)),
                (1, u64::MAX, Err(AccessError::OutOfRange)),
                (u64::MAX - base, 1, Err(AccessError::OutOfRange)),
            ] {
                assert_eq!(position(&regions, key, base + at, len, BOTH), expected, "{at} {len}");
            }
        }
        assert_eq!(position(&regions, 2, 0x4fff, 1, READ), Err(AccessError::OutOfRange));
    }

    #[test]
    fn a_region_permits_what_it_was_registered_for() {
        let regions = Regions::default();
        for (key, permissions) in [(1, Permissions::default()), (2, READ), (3, WRITE), (4, BOTH)] {
            regions.register(Region { segments: segments(&[(0x5000, 8)]), base: 0, permissions }, Some(key)).unwrap();
            for needs in [READ, WRITE, BOTH] {
                let permitted = (permissions.read || !needs.read) && (permissions.write || !needs.write);
                let expected = if permitted { Ok(0) } else { Err(AccessError::NotPermitted) };
                assert_eq!(position(&regions, key, 0, 8, needs), expected, "{permissions:?} {needs:?}");
            }
        }
    }

    #[test]
    fn keys_are_chosen_or_given_and_never_in_use_twice() {
        let regions = Regions::default();
        let region = Region { segments: segments(&[(0x5000, 8)]), base: 0, permissions: BOTH };
        assert_eq!(regions.register(region, Some(2)).unwrap(), 2);
        assert!(matches!(regions.register(region, Some(2)), Err(FabricError::KeyInUse { key: 2 })));
        let chosen = [(); 3].map(|()| regions.register(region, None).unwrap());
        assert_eq!(chosen, [1, 3, 4]);
        assert!(regions.close(2) && !regions.close(2));
        assert_eq!(position(&regions, 2, 0, 1, READ), Err(AccessError::UnknownKey));
        assert_eq!(regions.register(region, Some(2)).unwrap(), 2);
    }
}
