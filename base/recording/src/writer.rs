//! The side that records.

use crate::calibration::boundaries;
use crate::claim::claim;
use crate::layout::{Boundaries, Boundary, Extent, Limits, MAGIC, ModuleEntry, Progress, SiteCounters, Tables};
use crate::layout::{PATH_BYTES, ThreadTable};
use crate::operation::Access;
use crate::overlay;
use crate::start::{CreateError, Start, words};
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::thread_writer::{Attached, ThreadWriter};
use crate::trace_slot::TraceSlot;
use std::ops::Range;

/// A mapped file, or another part of the program's code, as `/proc/self/maps` lists it.
#[derive(Clone, Debug)]
pub struct ModuleMapping<'a> {
    /// The file's path; of a long path, the last 432 bytes are kept.
    pub path: &'a [u8],
    /// The build-id in its ELF notes, up to 32 bytes; empty if it has none.
    pub build_id: &'a [u8],
    /// From the first to the last of its mappings. Offsets of call sites count from its begin.
    pub addresses: Range<usize>,
}

/// A recording that is being written. All its methods may be called by any thread and in signal handlers, and use no
/// memory, no lock and no function of the C library.
pub struct Writer<'m> {
    progress: &'m Progress<AtomicU64>,
    boundaries: &'m Boundaries<AtomicU64>,
    directory: &'m [AtomicU64],
    modules: &'m [ModuleEntry<AtomicU64>],
    threads: &'m [ThreadTable<AtomicU64>],
    sites: &'m [SiteCounters<AtomicU64>],
    trace: &'m [TraceSlot],
    limits: Limits,
    start_ticks: u64,
    timer_ticks: u64,
    long_from: usize,
    /// In the memory of this process only, so that a forked child can stop for itself.
    detached: AtomicBool,
}

impl std::fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Returns the bytes of a recording with tables of these limits.
///
/// # Errors
/// If the limits make no sense.
pub fn bytes_needed(limits: Limits) -> Result<u64, CreateError> {
    Tables::of(limits).map(|tables| tables.bytes).map_err(CreateError::Start)
}

impl<'m> Writer<'m> {
    /// Creates a recording in mapped memory.
    ///
    /// # Errors
    /// If the memory is too small or misaligned, or if a value of `start` makes no sense.
    ///
    /// # Safety
    /// - `memory` to `memory + bytes` is mapped, readable and writable, during all of `'m`: the file keeps its length.
    /// - The memory is zero, as that of a new file is.
    /// - During `'m`, this process accesses it only through this writer, or through atomics.
    #[allow(unsafe_code, reason = "the caller vouches for the memory")]
    pub unsafe fn create(memory: *mut u8, bytes: usize, start: &Start<'_>) -> Result<Self, CreateError> {
        if !memory.addr().is_multiple_of(align_of::<AtomicU64>()) {
            return Err(CreateError::Misaligned);
        }
        // SAFETY: the caller vouches for the memory, and the alignment was checked.
        Writer::over(unsafe { overlay::words(memory, bytes) }, start)
    }

    /// Creates a recording in words that are zero.
    ///
    /// # Errors
    /// If there are too few words, or if a value of `start` makes no sense.
    pub fn over(memory: &'m [AtomicU64], start: &Start<'_>) -> Result<Self, CreateError> {
        let (header, tables) = start.header()?;
        let short = CreateError::Short { have: size_of_val(memory) as u64, needed: tables.bytes };
        if short_of(memory, tables.bytes) {
            return Err(short);
        }
        let part = |extent: Extent| extent.part(memory).ok_or(short);
        let only = "a table with one entry";
        let writer = Writer {
            progress: overlay::table(part(tables.progress)?).first().expect(only),
            boundaries: overlay::table(part(tables.boundaries)?).first().expect(only),
            directory: part(tables.directory)?,
            modules: overlay::table(part(tables.modules)?),
            threads: overlay::table(part(tables.threads)?),
            sites: overlay::table(part(tables.sites)?),
            trace: overlay::table(part(tables.trace)?),
            limits: start.limits,
            start_ticks: start.start_ticks,
            timer_ticks: start.timer_ticks,
            long_from: start.long_from,
            detached: AtomicBool::new(false),
        };
        writer.write_boundaries(start);
        for (word, value) in memory.iter().zip(words(&header)) {
            // Relaxed: published by the magic number.
            word.store(value, Ordering::Relaxed);
        }
        // Release: a reader that sees it sees the whole header.
        memory[0].store(u64::from_ne_bytes(MAGIC), Ordering::Release);
        Ok(writer)
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

    /// Claims a table for a thread; `thread_id` is the kernel's number of it. If all tables are claimed, the thread
    /// shares the last one, where counting takes longer. After [`Writer::detach`], the result records nothing.
    pub fn thread(&self, thread_id: u32) -> ThreadWriter<'_> {
        if self.detached.load(Ordering::Relaxed) {
            return ThreadWriter::detached();
        }
        let own = self.threads.len() - 1;
        let claimed = claim(&self.progress.threads_claimed, own);
        let index = claimed.unwrap_or(own);
        let table = &self.threads[index];
        match claimed {
            // Relaxed: a reader takes 0 for a thread without a number.
            Some(_) => table.thread_id.store(thread_id.into(), Ordering::Relaxed),
            None => _ = self.progress.threads_beyond.fetch_add(1, Ordering::Relaxed),
        }
        let sites = self.limits.sites as usize;
        let sites = &self.sites[index * sites..(index + 1) * sites];
        // Cannot truncate: the limits keep the number of threads below 2^14.
        let thread = u16::try_from(index).expect("a number of 14 bits");
        ThreadWriter::attached(Attached { writer: self, table, sites, thread, shared: claimed.is_none() })
    }

    /// Adds a module. Without room for it, the recording counts it only. Nothing is removed: if another module is mapped
    /// at the same addresses later, sites there belong to the module that was added last.
    pub fn add_module(&self, module: &ModuleMapping<'_>) {
        if self.detached.load(Ordering::Relaxed) {
            return;
        }
        let Some(index) = claim(&self.progress.modules_claimed, self.modules.len()) else {
            self.progress.modules_beyond.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let entry = &self.modules[index];
        // Relaxed: published by `complete`.
        let store = |word: &AtomicU64, value: usize| word.store(value as u64, Ordering::Relaxed);
        store(&entry.start, module.addresses.start);
        store(&entry.end, module.addresses.end);
        store(&entry.build_id_len, module.build_id.len());
        store(&entry.path_len, module.path.len());
        put_bytes(&entry.build_id, module.build_id);
        // The file's name is at the end.
        put_bytes(&entry.path, &module.path[module.path.len().saturating_sub(PATH_BYTES)..]);
        // Release: a reader that sees it sees the whole entry.
        entry.complete.store(1, Ordering::Release);
    }

    /// Counts a call that the thread could not record, for example because it has no thread-local memory yet.
    pub fn lose_call(&self) {
        if !self.detached.load(Ordering::Relaxed) {
            self.progress.calls_lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Stops recording in this process, for a forked child: the recording is its parent's. The caller also detaches the
    /// child's only thread ([`ThreadWriter::detach`]). No mapped memory is touched, so it may be absent in the child.
    pub fn detach(&self) {
        self.detached.store(true, Ordering::Relaxed);
    }

    pub(crate) fn progress(&self) -> &Progress<AtomicU64> {
        self.progress
    }

    pub(crate) fn directory(&self) -> &[AtomicU64] {
        self.directory
    }

    pub(crate) fn trace(&self) -> &[TraceSlot] {
        self.trace
    }

    pub(crate) fn boundary(&self, access: Access, log: usize) -> [u64; 2] {
        let Boundary { cold_from, fresh_from } = &self.boundaries.of[access as usize][log];
        [cold_from.load(Ordering::Relaxed), fresh_from.load(Ordering::Relaxed)]
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    pub(crate) fn timer_ticks(&self) -> u64 {
        self.timer_ticks
    }

    #[inline]
    pub(crate) fn long_from(&self) -> usize {
        self.long_from
    }
}

fn short_of(memory: &[AtomicU64], bytes: u64) -> bool {
    (size_of_val(memory) as u64) < bytes
}

/// Writes bytes into words, as far as there is room.
fn put_bytes(words: &[AtomicU64], bytes: &[u8]) {
    for (word, part) in words.iter().zip(bytes.chunks(8)) {
        let mut eight = 0;
        for (at, byte) in part.iter().enumerate() {
            eight |= u64::from(*byte) << (8 * at);
        }
        // Relaxed: published by the entry's `complete`.
        word.store(eight, Ordering::Relaxed);
    }
}
