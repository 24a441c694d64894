//! Fabrics and domains: parents of the other objects, which count as used while one of these exists. Regions of a
//! domain's memory.

use crate::bound::BoundEndpoint;
use crate::failure::{Errno, INVALID};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use telpher_fabric::{Buffer, Permissions, Region, Regions, Segments};

/// A fabric. All fabrics are the same one: this machine.
#[derive(Debug, Default)]
pub(crate) struct Fabric {
    /// The version of the interface that its program was compiled for.
    pub(crate) api_version: u32,
}

/// A domain.
#[derive(Debug)]
pub(crate) struct Domain {
    /// Kept in use.
    pub(crate) fabric: Arc<Fabric>,
    /// True if messages must move while the program makes no calls.
    pub(crate) automatic_progress: bool,
    /// True if peers name memory by its virtual address, and not by its position in the region.
    pub(crate) virtual_addresses: bool,
    /// True if the provider chooses the keys of regions.
    pub(crate) chooses_keys: bool,
    /// The memory that peers of all its endpoints may access.
    pub(crate) regions: Arc<Regions>,
    /// Its endpoints that are enabled.
    pub(crate) endpoints: Mutex<Vec<Weak<dyn BoundEndpoint>>>,
}

impl Domain {
    /// An endpoint of the domain is enabled.
    pub(crate) fn enabled(&self, endpoint: &Arc<dyn BoundEndpoint>) {
        let mut endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        endpoints.retain(|known| known.strong_count() > 0);
        endpoints.push(Arc::downgrade(endpoint));
    }

    /// Returns the endpoints that are enabled.
    pub(crate) fn endpoints(&self) -> Vec<Arc<dyn BoundEndpoint>> {
        let endpoints = self.endpoints.lock().unwrap_or_else(PoisonError::into_inner);
        endpoints.iter().filter_map(Weak::upgrade).collect()
    }
}

/// A region that a program has registered. It is closed when the value is dropped.
#[derive(Debug)]
pub(crate) struct MemoryRegion {
    domain: Arc<Domain>,
    key: u64,
}

impl MemoryRegion {
    /// Registers a region.
    ///
    /// # Errors
    /// `ENOKEY` if the requested key is in use.
    pub(crate) fn register(
        domain: Arc<Domain>,
        segments: Segments,
        permissions: Permissions,
        requested_key: u64,
    ) -> Result<MemoryRegion, Errno> {
        let first = segments.as_slice().first().map_or(0, Buffer::address);
        let base = if domain.virtual_addresses { first } else { 0 };
        let key = (!domain.chooses_keys).then_some(requested_key);
        let key = domain.regions.register(Region { segments, base, permissions }, key)?;
        Ok(MemoryRegion { domain, key })
    }

    /// Lets a number count the writes and atomic operations of peers that change the region.
    ///
    /// # Errors
    /// `EINVAL` in a forked child.
    pub(crate) fn count_changes(&self, changes: Arc<AtomicU64>) -> Result<(), Errno> {
        if self.domain.regions.count_changes(self.key, changes) { Ok(()) } else { Err(INVALID) }
    }

    /// Returns the key by which peers name the region.
    pub(crate) fn key(&self) -> u64 {
        self.key
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // False in a forked child, which has a copy of the table for nothing.
        let _ = self.domain.regions.close(self.key);
    }
}
