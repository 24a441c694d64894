//! The backend of the namespaces: it accepts reads, and the simulator answers them when a simulated disk has done so.

use std::sync::{Mutex, PoisonError};
use telpher_nvmf::digest::digest;
use telpher_nvmf::engine::{JobId, Segment, Segments, Shared};
use telpher_nvmf::storage::{Started, Storage, StorageRequest, StorageResult};

/// Bytes of each disk. Source: chosen; addresses do not matter.
const CAPACITY: u64 = 1 << 40;

/// All disks. Every read gets the same bytes.
#[derive(Debug)]
pub(super) struct Disks {
    bytes: Shared,
    digest: u32,
    /// Reads that were accepted and not yet taken by the simulator.
    accepted: Mutex<Vec<JobId>>,
}

impl Disks {
    /// Disks for reads of `bytes` bytes.
    pub(super) fn new(bytes: u32) -> Disks {
        // All values of a byte, in an order that is not periodic with a power of two.
        let bytes: Vec<u8> = (0..bytes).map(|index| (index % 251).to_le_bytes()[0]).collect();
        Disks { digest: digest(&bytes), bytes: Shared::new(bytes), accepted: Mutex::default() }
    }

    /// The digest of a read's bytes.
    pub(super) fn digest(&self) -> u32 {
        self.digest
    }

    /// Takes the accepted reads, in their order.
    pub(super) fn take_accepted(&self) -> Vec<JobId> {
        std::mem::take(&mut self.accepted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The answer to a read: one segment, as from a file.
    pub(super) fn answer(&self) -> StorageResult {
        Ok(Segments::from([Segment::all(Shared::clone(&self.bytes))]))
    }
}

impl Storage for Disks {
    fn start(&self, id: JobId, request: StorageRequest) -> Started {
        let StorageRequest::Read { .. } = request else { unreachable!("the simulated initiators only read") };
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        Started::Later
    }

    fn capacity(&self) -> u64 {
        CAPACITY
    }
}
