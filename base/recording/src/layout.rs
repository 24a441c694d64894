//! The file: a header, then tables, all of little-endian words.
//!
//! ```text
//! header       what is known at the start, and the place of each table       written once; the magic number last
//! progress     counters of the whole process                                 by all threads
//! boundaries   the times that separate hot, cold and fresh                   written once
//! directory    return address → site                                         by all threads
//! modules      the program and its libraries                                 by the thread that finds one
//! threads      for each thread, its calls by operation and size              by that thread
//! sites        for each thread and site, its calls                           by that thread
//! trace        long calls, one after another                                 by all threads
//! ```
//!
//! The last thread's table belongs to all threads that came after the tables were used up. Tables begin at multiples of
//! 4 KiB. What no thread has written is zero, so a file takes only the disk space of the parts in use.
//!
//! A type with a parameter `W` is a table of words: `AtomicU64` for the writer, bytes without alignment for the reader.

use crate::operation::{Access, Alignment, Direction, Distance, Operation, SIZE_CLASSES, Temperature};
use crate::sampling::BLOCK;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first bytes of a recording.
pub const MAGIC: [u8; 8] = *b"telphrec";
/// Changes with every change of the layout.
pub const VERSION: u32 = 2;
/// A call below the size of long calls is timed if its number among those of its operation, thread and size class is a
/// multiple of this. Calls of small lengths, and those without a site after the first 4096, are timed less often.
pub const SAMPLE_PERIOD: u64 = 64;
/// Calls of fewer bytes are counted by their length, and not by their size class. Source: chosen; the exported
/// functions of `telpher record` copy up to 64 bytes themselves, and 72 words end with a cache line.
pub const SMALL_LENGTHS: usize = 72;

/// Tables begin at a multiple of this.
const PAGE: usize = 4096;
/// Points of a calibration curve at most.
pub(crate) const CURVE_POINTS: usize = 24;
/// Classes of a size or a time, by its binary logarithm.
pub(crate) const LOGARITHMS: usize = 48;

/// Text of at most `N` bytes. A longer one loses its end.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Text<const N: usize> {
    /// Bytes of the whole text, which may be more than the room for it.
    pub(crate) len: U32,
    pub(crate) bytes: [u8; N],
}

impl<const N: usize> Text<N> {
    pub(crate) fn new(text: &[u8]) -> Self {
        let mut bytes = [0; N];
        bytes.iter_mut().zip(text).for_each(|(byte, of_text)| *byte = *of_text);
        Text { len: U32::new(u32::try_from(text.len()).unwrap_or(u32::MAX)), bytes }
    }

    /// The bytes that are there, and whether the text was longer.
    pub(crate) fn get(&self) -> (&[u8], bool) {
        let len = usize::try_from(self.len.get()).unwrap_or(usize::MAX);
        (&self.bytes[..len.min(N)], len > N)
    }
}

/// The place of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Extent {
    /// Bytes from the beginning of the file.
    pub(crate) offset: U64,
    /// Bytes of an entry.
    pub(crate) entry_bytes: U64,
    /// Entries.
    pub(crate) entries: U64,
}

impl Extent {
    /// Bytes of the table. `None` if the number is too large.
    fn bytes(self) -> Option<u64> {
        self.entry_bytes.get().checked_mul(self.entries.get())
    }
}

/// A point of a calibration curve, in picoseconds per byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Point {
    /// Bytes of a call; 0 after the last point.
    pub(crate) len: U64,
    pub(crate) hot: U32,
    pub(crate) cold: U32,
    pub(crate) fresh: U32,
    pub(crate) reserved: U32,
}

/// What is known when a recording starts.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) magic: [u8; 8],
    pub(crate) version: U32,
    /// Operations and size classes of a thread's table.
    pub(crate) operations: U32,
    pub(crate) size_classes: U32,
    /// Numbers of a [`Limits`].
    pub(crate) threads: U32,
    pub(crate) sites: U32,
    pub(crate) modules: U32,
    pub(crate) trace_blocks: U32,
    /// Calls of a block of the trace.
    pub(crate) block: U32,
    /// The tables, in the order of [`Tables`].
    pub(crate) tables: [Extent; Tables::COUNT],
    /// Bytes of the whole recording.
    pub(crate) bytes: U64,
    /// Ticks of the time stamp counter in a second.
    pub(crate) tsc_hz: U64,
    /// The time stamp counter at the start.
    pub(crate) start_ticks: U64,
    /// Nanoseconds from 1970 to the start.
    pub(crate) start_realtime_ns: U64,
    /// Ticks that a measurement of nothing takes.
    pub(crate) timer_ticks: U64,
    pub(crate) sample_period: U64,
    /// Bytes from which on a call's site is recorded, and from which on a call is long.
    pub(crate) sites_from: U64,
    pub(crate) long_from: U64,
    /// Bytes of the data caches of level 1, 2 and 3 that a core can use.
    pub(crate) cache_bytes: [U64; 3],
    pub(crate) pid: U32,
    pub(crate) parent_pid: U32,
    /// EAX of CPUID leaf 1: family, model and stepping.
    pub(crate) cpu_signature: U32,
    pub(crate) logical_cpus: U32,
    pub(crate) cpu: Text<60>,
    pub(crate) kernel: Text<124>,
    pub(crate) program: Text<508>,
    /// Separated by zero bytes.
    pub(crate) arguments: Text<2044>,
    pub(crate) options: Text<508>,
    /// A curve for each [`Access`].
    pub(crate) curves: [[Point; CURVE_POINTS]; Access::COUNT],
}

/// Counters of the whole process. Those that threads change at the same time have cache lines of their own.
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Progress<W> {
    /// Bits 0 to 15: long calls in flight; the other bits: the number of long calls that have begun.
    pub(crate) long_calls: W,
    pub(crate) reserved: [W; 15],
    pub(crate) threads_claimed: W,
    pub(crate) sites_claimed: W,
    pub(crate) modules_claimed: W,
    /// Threads that share the last table.
    pub(crate) threads_beyond: W,
    /// Modules that came after the table was full.
    pub(crate) modules_beyond: W,
    /// Calls that a thread made without being able to reach a table.
    pub(crate) calls_lost: W,
    /// Ticks from the start to the last note of the process' time, and its processor time then, in nanoseconds.
    pub(crate) noted_ticks: W,
    pub(crate) cpu_ns: W,
    pub(crate) unused: [W; 8],
}

/// The times that separate temperatures, for sizes from a power of two to the next one; 0 if there is no calibration.
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Boundary<W> {
    /// A call is hot below this, in ticks per MiB.
    pub(crate) cold_from: W,
    /// A call is cold below this, and fresh from it on.
    pub(crate) fresh_from: W,
}

#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Boundaries<W> {
    pub(crate) of: [[Boundary<W>; LOGARITHMS]; Access::COUNT],
}

/// Bytes of a build-id that are kept.
pub(crate) const BUILD_ID_BYTES: usize = 32;
/// Bytes of a module's path that are kept. Source: chosen, so that an entry has 512 bytes.
pub(crate) const PATH_BYTES: usize = 432;

/// A file that is mapped for execution.
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ModuleEntry<W> {
    /// 1 after all other words were written.
    pub(crate) complete: W,
    /// The addresses of its mappings.
    pub(crate) start: W,
    pub(crate) end: W,
    /// Bytes of the build-id and of the path. The path may have more than are kept.
    pub(crate) build_id_len: W,
    pub(crate) path_len: W,
    pub(crate) reserved: W,
    pub(crate) build_id: [W; BUILD_ID_BYTES / 8],
    pub(crate) path: [W; PATH_BYTES / 8],
}

/// The calls of one operation and size class.
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SizeCell<W> {
    pub(crate) calls: W,
    pub(crate) bytes: W,
    /// Those that were timed.
    pub(crate) timed_calls: W,
    /// Their time, with the time of the measurement.
    pub(crate) timed_ticks: W,
}

/// What one thread did.
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ThreadTable<W> {
    /// The kernel's number; 0 if it was not written yet, and in the shared table.
    pub(crate) thread_id: W,
    /// The most long calls in flight in the process when one of this thread began.
    pub(crate) most_in_flight: W,
    /// The end of the last long call, in ticks of the counter.
    pub(crate) last_long_end: W,
    pub(crate) long_calls: W,
    /// Calls from the size of sites on whose site is not in the directory.
    pub(crate) calls_without_site: W,
    pub(crate) reserved: [W; 11],
    /// Ticks between the end of a long call and the begin of the next, by their binary logarithm.
    pub(crate) gaps: [W; LOGARITHMS],
    /// Calls by size class. Of lengths below [`SMALL_LENGTHS`], a cell has only the timed calls and their time.
    pub(crate) sizes: [[SizeCell<W>; SIZE_CLASSES]; Operation::ALL.len()],
    /// Calls of each length below [`SMALL_LENGTHS`]. Their bytes follow from the length, so a call changes one word.
    pub(crate) small: [[W; SMALL_LENGTHS]; Operation::ALL.len()],
}

/// Timed calls of a site.
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct TimedCells<W> {
    pub(crate) calls: W,
    pub(crate) bytes: W,
    pub(crate) ticks: W,
}

/// What one thread did at one site.
#[derive(Debug, FromBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SiteCounters<W> {
    pub(crate) calls: W,
    pub(crate) bytes: W,
    pub(crate) timed: [TimedCells<W>; Temperature::ALL.len()],
    pub(crate) destinations: [W; Alignment::ALL.len()],
    pub(crate) sources: [W; Alignment::ALL.len()],
    pub(crate) overlaps: [[W; Distance::ALL.len()]; Direction::ALL.len()],
    pub(crate) overlap_bytes: [W; Direction::ALL.len()],
    /// Calls whose page faults were counted, and the faults.
    pub(crate) fault_checks: W,
    pub(crate) faults: W,
    /// Calls by operation.
    pub(crate) operations: [W; Operation::ALL.len()],
    pub(crate) reserved: [W; 15],
}

/// What the four words of a trace slot are to a reader.
pub(crate) type SlotWords<W> = [W; 4];

// A size that changes is another version of the layout.
const _: () = assert!(size_of::<Header>() == 5304);
const _: () = assert!(size_of::<Progress<U64>>() == 256);
const _: () = assert!(size_of::<ModuleEntry<U64>>() == 512);
const _: () = assert!(size_of::<ThreadTable<U64>>() == 34688);
const _: () = assert!(size_of::<SiteCounters<U64>>() == 384);

/// How many entries the tables have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Threads with a table of their own; later ones share one more table.
    pub threads: u32,
    /// Call sites; a power of two.
    pub sites: u32,
    /// The program and its libraries.
    pub modules: u32,
    /// Blocks of the trace, of [`BLOCK`] calls each.
    pub trace_blocks: u32,
}

impl Default for Limits {
    /// Room for a server: 36 MiB, of which most are never written and take no disk space.
    fn default() -> Self {
        Limits { threads: 128, sites: 512, modules: 256, trace_blocks: 1024 }
    }
}

impl Limits {
    /// The largest numbers. Source: 16 bits for a site and a thread in an event; the others are chosen.
    const MOST: Limits = Limits { threads: 1 << 14, sites: 1 << 14, modules: 1 << 14, trace_blocks: 1 << 20 };

    /// Returns what is wrong with the numbers.
    fn problem(self) -> Option<&'static str> {
        let most = Limits::MOST;
        if !(1..=most.threads).contains(&self.threads) {
            Some("the number of threads is not between 1 and 16384")
        } else if !(2..=most.sites).contains(&self.sites) || !self.sites.is_power_of_two() {
            Some("the number of sites is not a power of two between 2 and 16384")
        } else if !(1..=most.modules).contains(&self.modules) {
            Some("the number of modules is not between 1 and 16384")
        } else if self.trace_blocks > most.trace_blocks {
            Some("the trace has more than 1048576 blocks")
        } else {
            None
        }
    }
}

/// The places of all tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables {
    pub(crate) progress: Extent,
    pub(crate) boundaries: Extent,
    pub(crate) directory: Extent,
    pub(crate) modules: Extent,
    pub(crate) threads: Extent,
    pub(crate) sites: Extent,
    pub(crate) trace: Extent,
    /// Bytes of the recording.
    pub(crate) bytes: u64,
}

impl Tables {
    pub(crate) const COUNT: usize = 7;

    /// Returns the places, or what is wrong with the limits.
    pub(crate) fn of(limits: Limits) -> Result<Tables, &'static str> {
        if let Some(problem) = limits.problem() {
            return Err(problem);
        }
        let mut end = size_of::<Header>().next_multiple_of(PAGE) as u64;
        // The limits keep every product below 2^40.
        let mut place = |entry_bytes: usize, entries: u64| {
            let extent =
                Extent { offset: U64::new(end), entry_bytes: U64::new(entry_bytes as u64), entries: U64::new(entries) };
            end = (end + entry_bytes as u64 * entries).next_multiple_of(PAGE as u64);
            extent
        };
        let [threads, sites, modules, blocks] =
            [limits.threads, limits.sites, limits.modules, limits.trace_blocks].map(u64::from);
        let progress = place(size_of::<Progress<U64>>(), 1);
        let boundaries = place(size_of::<Boundaries<U64>>(), 1);
        let directory = place(size_of::<U64>(), 2 * sites);
        let modules = place(size_of::<ModuleEntry<U64>>(), modules);
        let threads_table = place(size_of::<ThreadTable<U64>>(), threads + 1);
        let sites = place(size_of::<SiteCounters<U64>>(), (threads + 1) * sites);
        let trace = place(size_of::<SlotWords<U64>>(), blocks * BLOCK);
        Ok(Tables { progress, boundaries, directory, modules, threads: threads_table, sites, trace, bytes: end })
    }

    pub(crate) fn all(&self) -> [Extent; Self::COUNT] {
        let Tables { progress, boundaries, directory, modules, threads, sites, trace, bytes: _ } = *self;
        [progress, boundaries, directory, modules, threads, sites, trace]
    }
}

impl Extent {
    /// The table's part of a recording. `None` if it is not inside.
    pub(crate) fn part<T>(self, of: &[T]) -> Option<&[T]> {
        let unit = size_of::<T>();
        let at = |bytes: u64| usize::try_from(bytes).ok().map(|bytes| bytes / unit);
        let start = at(self.offset.get())?;
        of.get(start..start.checked_add(at(self.bytes()?)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_follow_each_other_without_overlap() {
        for limits in [Limits::default(), Limits::MOST, Limits { threads: 1, sites: 2, modules: 1, trace_blocks: 0 }] {
            let tables = Tables::of(limits).unwrap();
            let mut end = size_of::<Header>() as u64;
            for extent in tables.all() {
                assert!(extent.offset.get() >= end && extent.offset.get().is_multiple_of(PAGE as u64), "{limits:?}");
                end = extent.offset.get() + extent.bytes().unwrap();
            }
            assert!(tables.bytes >= end && tables.bytes < end + PAGE as u64);
        }
        assert_eq!(Tables::of(Limits::default()).unwrap().bytes >> 20, 36);
    }

    #[test]
    fn absurd_limits_are_refused() {
        let fine = Limits::default();
        for limits in [
            Limits { threads: 0, ..fine },
            Limits { threads: u32::MAX, ..fine },
            Limits { sites: 3, ..fine },
            Limits { sites: 1 << 31, ..fine },
            Limits { modules: 0, ..fine },
            Limits { trace_blocks: u32::MAX, ..fine },
        ] {
            assert!(Tables::of(limits).is_err(), "{limits:?}");
        }
    }

    #[test]
    fn a_long_text_loses_its_end() {
        let text = Text::<4>::new(b"abcdef");
        assert_eq!(text.get(), (&b"abcd"[..], true));
        assert_eq!(Text::<4>::new(b"ab").get(), (&b"ab"[..], false));
    }
}
