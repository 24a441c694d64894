//! The side that records.

use crate::claim::claim;
use crate::layout::{Limits, PATH_BYTES, Tables};
use crate::mapped::Mapped;
use crate::overlay::words;
use crate::start::{CreateError, Start};
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::thread_writer::ThreadWriter;
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
    mapped: Mapped<'m>,
    /// In the memory of this process only, so that a forked child can stop for itself.
    detached: AtomicBool,
}

impl std::fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("limits", &self.mapped.limits).finish_non_exhaustive()
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
        Writer::over(unsafe { words(memory, bytes) }, start)
    }

    /// Creates a recording in words that are zero.
    ///
    /// # Errors
    /// If there are too few words, or if a value of `start` makes no sense.
    pub fn over(memory: &'m [AtomicU64], start: &Start<'_>) -> Result<Self, CreateError> {
        Ok(Writer { mapped: Mapped::create(memory, start)?, detached: AtomicBool::new(false) })
    }

    /// Claims a table for a thread; `thread_id` is the kernel's number of it. If all tables are claimed, the thread
    /// shares the last one, where counting takes longer. After [`Writer::detach`], the result records nothing.
    pub fn thread(&self, thread_id: u32) -> ThreadWriter<'_> {
        let thread = ThreadWriter::detached();
        self.attach(&thread, thread_id);
        thread
    }

    /// Claims a table for a thread that began [detached](ThreadWriter::detached), as [`Writer::thread`] does. A signal
    /// handler of the thread may do the same in between; the thread then has two tables.
    pub fn attach<'w>(&'w self, thread: &ThreadWriter<'w>, thread_id: u32) {
        if !self.detached.load(Ordering::Relaxed) {
            thread.set(&self.mapped, self.mapped.claim_thread(thread_id));
        }
    }

    /// Adds a module. Without room for it, the recording counts it only. Nothing is removed: if another module is
    /// mapped at the same addresses later, sites there belong to the module that was added last.
    pub fn add_module(&self, module: &ModuleMapping<'_>) {
        if self.detached.load(Ordering::Relaxed) {
            return;
        }
        let Some(index) = claim(&self.mapped.progress.modules_claimed, self.mapped.modules.len()) else {
            self.mapped.progress.modules_beyond.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let entry = &self.mapped.modules[index];
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

    /// Counts calls that could not be recorded, for example because the recording did not exist yet.
    pub fn lose_calls(&self, calls: u64) {
        if !self.detached.load(Ordering::Relaxed) {
            self.mapped.progress.calls_lost.fetch_add(calls, Ordering::Relaxed);
        }
    }

    /// Notes how long the process has lived and how much processor time it has taken. The last note counts, so the
    /// caller notes it at the end, and now and then before, because a process may be killed.
    pub fn note_time(&self, ticks: u64, cpu_ns: u64) {
        if !self.detached.load(Ordering::Relaxed) {
            // Relaxed: notes of two threads at once may mix, and differ by little then.
            let progress = self.mapped.progress;
            progress.noted_ticks.store(ticks.saturating_sub(self.mapped.start_ticks), Ordering::Relaxed);
            progress.cpu_ns.store(cpu_ns, Ordering::Relaxed);
        }
    }

    /// Stops recording in this process, for a forked child: the recording is its parent's. The caller also detaches the
    /// child's only thread ([`ThreadWriter::detach`]). No mapped memory is touched, so it may be absent in the child.
    pub fn detach(&self) {
        self.detached.store(true, Ordering::Relaxed);
    }
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
