//! Bytes of C that change: their versions, and blocks that are modified in fast memory and copied back.

use crate::c_structs::Synced;
use crate::cache::{Cache, Entry};
use crate::failure::{Failure, Refusal};
use crate::raw::{CallerBytes, CallerMemory};
use std::time::Duration;
use telpher_cache::{FetchError, Find, ReadPermit, VersionGate, WriteBack as Inner, WritePermit};
use telpher_mem::Pool;
use telpher_mover::Mover;

/// Versioned bytes. Any number of threads may use them at once.
#[derive(Debug)]
pub struct Versioned {
    cache: Cache,
    data: CallerMemory,
    gate: VersionGate,
}

/// A reader's access. Any number of threads may use it at once.
#[derive(Debug)]
pub struct Reading {
    cache: Cache,
    data: CallerMemory,
    permit: ReadPermit,
}

/// The writer's access.
#[derive(Debug)]
pub struct Writing {
    cache: Cache,
    data: CallerMemory,
    /// Ends when the handle is freed.
    _permit: WritePermit,
}

impl Drop for Writing {
    fn drop(&mut self) {
        // Entries that the program has created meanwhile by telpher_cache_access have bytes of no version. Fails only
        // for a range outside of the bytes.
        let _ = self.cache.withdraw(self.data);
    }
}

/// A block in fast memory. Used by one thread at a time.
#[derive(Debug)]
pub struct WriteBack(Inner<CallerBytes>);

impl Versioned {
    pub(crate) fn new(cache: &Cache, data: CallerMemory) -> Versioned {
        Versioned { cache: cache.share(), data, gate: VersionGate::default() }
    }

    pub(crate) fn version(&self) -> u64 {
        self.gate.version()
    }

    pub(crate) fn read(&self, at_most: Option<Duration>) -> Option<Reading> {
        let permit = self.gate.read(at_most)?;
        Some(Reading { cache: self.cache.share(), data: self.data, permit })
    }

    /// Waits until no reader and no entry is left, and no copy reads the bytes.
    pub(crate) fn write(&self, at_most: Option<Duration>) -> Result<Option<Writing>, Failure> {
        let Some(permit) = self.gate.write(at_most) else { return Ok(None) };
        self.withdraw()?;
        Ok(Some(Writing { cache: self.cache.share(), data: self.data, _permit: permit }))
    }

    /// Removes the entries of the bytes; returns when no copy reads them any more.
    pub(crate) fn withdraw(&self) -> Result<(), Failure> {
        self.cache.withdraw(self.data).map(drop)
    }
}

impl Reading {
    pub(crate) fn version(&self) -> u64 {
        self.permit.version()
    }

    /// Accesses a block; its entry keeps the permit.
    pub(crate) fn access(&self, offset: usize, len: usize) -> Result<Entry, Failure> {
        let block = self.data.part(offset, len)?;
        Ok(self.cache.access(block)?.with_permit(self.permit.clone()))
    }

    pub(crate) fn has_entries(&self) -> bool {
        !self.permit.is_alone()
    }
}

impl WriteBack {
    pub(crate) fn fetch(mover: &Mover, pool: &Pool, home: CallerBytes) -> Result<WriteBack, Failure> {
        Inner::fetch(mover, pool, home).map(WriteBack).map_err(|error| {
            let text = telpher_os::chain(&error);
            match error {
                FetchError::Copy { error, .. } => Failure::Job(error),
                _ => Failure::Other(libc::ENOMEM, text),
            }
        })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    pub(crate) fn write(&mut self, offset: usize, len: usize) -> Result<&mut [u8], Refusal> {
        let size = self.0.bytes().len();
        match offset.checked_add(len).filter(|&end| end <= size) {
            Some(end) => Ok(self.0.write(offset..end)),
            None => Err(Refusal::OutsideBlock { offset: offset as u64, len: len as u64, size: size as u64 }),
        }
    }

    pub(crate) fn unsynced(&self) -> usize {
        self.0.unsynced()
    }

    pub(crate) fn sync(&mut self, find: Find) -> Result<Synced, Failure> {
        let done = self.0.sync(find)?;
        Ok(Synced { compared: done.compared as u64, copied: done.copied as u64, reserved: [0; 2] })
    }
}
