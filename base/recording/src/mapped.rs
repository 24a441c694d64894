//! The tables of a recording in mapped memory.

use crate::calibration::boundaries;
use crate::claim::claim;
use crate::layout::{Boundaries, Boundary, Extent, Limits, MAGIC, ModuleEntry, Progress, SiteCounters, ThreadTable};
use crate::operation::Access;
use crate::overlay::table;
use crate::start::{CreateError, Start, words};
use crate::sync::{AtomicU64, Ordering};
use crate::trace_slot::TraceSlot;

/// The tables of a recording, and what is known without looking into them.
pub(crate) struct Mapped<'m> {
    pub(crate) progress: &'m Progress<AtomicU64>,
    boundaries: &'m Boundaries<AtomicU64>,
    pub(crate) directory: &'m [AtomicU64],
    pub(crate) modules: &'m [ModuleEntry<AtomicU64>],
    threads: &'m [ThreadTable<AtomicU64>],
    sites: &'m [SiteCounters<AtomicU64>],
    pub(crate) trace: &'m [TraceSlot],
    pub(crate) limits: Limits,
    pub(crate) start_ticks: u64,
    pub(crate) timer_ticks: u64,
    pub(crate) long_from: usize,
}

/// The tables of one thread.
#[derive(Clone, Copy)]
pub(crate) struct ThreadTables<'m> {
    pub(crate) calls: &'m ThreadTable<AtomicU64>,
    pub(crate) sites: &'m [SiteCounters<AtomicU64>],
    pub(crate) index: u16,
    /// Other threads use the same tables.
    pub(crate) shared: bool,
}

impl<'m> Mapped<'m> {
    /// Writes the header into words that are zero.
    pub(crate) fn create(memory: &'m [AtomicU64], start: &Start<'_>) -> Result<Self, CreateError> {
        let (header, tables) = start.header()?;
        let short = CreateError::Short { have: size_of_val(memory) as u64, needed: tables.bytes };
        if (size_of_val(memory) as u64) < tables.bytes {
            return Err(short);
        }
        let part = |extent: Extent| extent.part(memory).ok_or(short);
        let only = "a table with one entry";
        let mapped = Mapped {
            progress: table(part(tables.progress)?).first().expect(only),
            boundaries: table(part(tables.boundaries)?).first().expect(only),
            directory: part(tables.directory)?,
            modules: table(part(tables.modules)?),
            threads: table(part(tables.threads)?),
            sites: table(part(tables.sites)?),
            trace: table(part(tables.trace)?),
            limits: start.limits,
            start_ticks: start.start_ticks,
            timer_ticks: start.timer_ticks,
            long_from: start.long_from,
        };
        mapped.write_boundaries(start);
        for (word, value) in memory.iter().zip(words(&header)) {
            // Relaxed: published by the magic number.
            word.store(value, Ordering::Relaxed);
        }
        // Release: a reader that sees it sees the whole header.
        memory[0].store(u64::from_ne_bytes(MAGIC), Ordering::Release);
        Ok(mapped)
    }

    fn write_boundaries(&self, start: &Start<'_>) {
        for (access, of_access) in [Access::Copy, Access::Fill, Access::Compare].into_iter().zip(&self.boundaries.of) {
            for (log, of_size) in of_access.iter().enumerate() {
                let [cold_from, fresh_from] = boundaries(start.curves.of(access), log, start.tsc_hz);
                of_size.cold_from.store(cold_from, Ordering::Relaxed);
                of_size.fresh_from.store(fresh_from, Ordering::Relaxed);
            }
        }
    }

    /// Claims the tables of a thread; the last ones if all others are claimed.
    pub(crate) fn claim_thread(&self, thread_id: u32) -> ThreadTables<'m> {
        let own = self.threads.len() - 1;
        let claimed = claim(&self.progress.threads_claimed, own);
        let index = claimed.unwrap_or(own);
        let calls = &self.threads[index];
        match claimed {
            // Relaxed: a reader takes 0 for a thread without a number.
            Some(_) => calls.thread_id.store(thread_id.into(), Ordering::Relaxed),
            None => _ = self.progress.threads_beyond.fetch_add(1, Ordering::Relaxed),
        }
        let sites = self.limits.sites as usize;
        let sites = &self.sites[index * sites..(index + 1) * sites];
        // Cannot truncate: the limits keep the number of threads below 2^14.
        let index = u16::try_from(index).expect("a number of 14 bits");
        ThreadTables { calls, sites, index, shared: claimed.is_none() }
    }

    /// The times that separate temperatures; see [`Boundary`].
    pub(crate) fn boundary(&self, access: Access, log: usize) -> [u64; 2] {
        let Boundary { cold_from, fresh_from } = &self.boundaries.of[access as usize][log];
        [cold_from.load(Ordering::Relaxed), fresh_from.load(Ordering::Relaxed)]
    }
}
