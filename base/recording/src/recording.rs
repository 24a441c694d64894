//! What a reader gets: plain data.

use crate::calibration::CurvePoint;
use crate::operation::{Direction, Operation, Temperature};
use serde::Serialize;

/// What one process copied, or several processes on one machine ([`Recording::merge`]).
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Recording {
    /// Where it was recorded.
    pub machine: Machine,
    /// What calls cost there.
    pub calibration: Calibration,
    /// The processes, by start.
    pub processes: Vec<Process>,
    /// The program and its libraries, as far as calls came from them.
    pub modules: Vec<Module>,
    /// The places from which calls came.
    pub sites: Vec<Site>,
    /// The threads, in the order in which they claimed their tables.
    pub threads: Vec<Thread>,
    /// Calls by operation and size, of all threads.
    pub sizes: Vec<SizeRow>,
    /// Long calls, by start.
    pub events: Vec<Event>,
    /// What is missing.
    pub not_recorded: NotRecorded,
}

/// The machine of a recording.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Machine {
    /// The processor's brand string.
    pub cpu: String,
    /// EAX of CPUID leaf 1: family, model and stepping.
    pub cpu_signature: u32,
    /// Logical processors that the process might use.
    pub logical_cpus: u32,
    /// Bytes of the data caches of level 1, 2 and 3 that a core can use; 0 for a level that is absent.
    pub cache_bytes: [u64; 3],
    /// The kernel's release.
    pub kernel: String,
    /// Ticks of the time stamp counter in a second.
    pub tsc_hz: u64,
}

/// The calibration curves, measured before the program started.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Calibration {
    /// Of memcpy, memmove, mempcpy and string copies.
    pub copy: Vec<CurvePoint>,
    /// Of memset.
    pub fill: Vec<CurvePoint>,
    /// Of memcmp.
    pub compare: Vec<CurvePoint>,
    /// Nanoseconds that a measurement of nothing takes. They are already subtracted from the times below.
    pub timer_ns: f64,
}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its parent's number.
    pub parent_pid: u32,
    /// The program's path.
    pub program: String,
    /// Its arguments, the program's name first.
    pub arguments: Vec<String>,
    /// The arguments were longer than the room for them.
    pub arguments_are_cut: bool,
    /// The options of the recording.
    pub options: String,
    /// Nanoseconds from 1970 to the start.
    pub start_realtime_ns: u64,
    /// The time stamp counter at the start.
    pub start_ticks: u64,
    /// Nanoseconds from the start of the first process to the start of this one.
    pub start_ns: u64,
    /// Nanoseconds from its start to the end of its last long call. It may have lived longer.
    pub last_long_end_ns: u64,
    /// Nanoseconds from its start to the last note of its time: its end, if it ended by `exit` or by returning from
    /// `main`. 0 without any note.
    pub noted_ns: u64,
    /// Its processor time at that note, in nanoseconds.
    pub cpu_ns: u64,
    /// Bytes from which on sites are recorded.
    pub sites_from: u64,
    /// Bytes from which on a call is long: timed, and traced.
    pub long_from: u64,
    /// A shorter call is timed once in this many calls of its operation, size class and thread.
    pub sample_period: u64,
}

impl Process {
    /// Returns its processor time, in nanoseconds. `None` if it was noted before the last long call ended: the process
    /// was killed, or ended without its destructors.
    #[must_use]
    pub fn cpu_time_ns(&self) -> Option<u64> {
        (self.cpu_ns > 0 && self.noted_ns >= self.last_long_end_ns).then_some(self.cpu_ns)
    }
}

/// A file that was mapped for execution.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub struct Module {
    /// Its path. A long path has lost its begin.
    pub path: String,
    /// The build-id in hexadecimal digits; empty if it has none.
    pub build_id: String,
}

/// Timed calls.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Timed {
    /// Their number.
    pub calls: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their time.
    pub ns: u64,
}

/// Addresses by alignment.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Alignments {
    /// Multiples of 4 KiB.
    pub page: u64,
    /// Multiples of 64, but not of 4 KiB.
    pub line: u64,
    /// Other addresses.
    pub other: u64,
}

/// Copies whose ranges overlap, in one direction.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Overlaps {
    /// Copies over less than 64 bytes.
    pub below_line: u64,
    /// Copies over 64 bytes or more, but less than 4 KiB.
    pub below_page: u64,
    /// Copies over 4 KiB or more.
    pub page_or_more: u64,
    /// Bytes of all these copies.
    pub bytes: u64,
}

/// Calls of one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct OperationCalls {
    /// The operation.
    pub operation: Operation,
    /// The number of calls.
    pub calls: u64,
}

/// A place from which calls came. Only calls from [`Process::sites_from`] bytes on are counted by site.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Site {
    /// The index of the module; `None` if no module is mapped there.
    pub module: Option<usize>,
    /// The return address, relative to the module's first address; absolute without a module.
    pub offset: u64,
    /// Calls.
    pub calls: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Calls by operation; operations without calls are left out.
    pub operations: Vec<OperationCalls>,
    /// Timed calls with data in the caches.
    pub hot: Timed,
    /// Timed calls with data in memory.
    pub cold: Timed,
    /// Timed calls that waited for page faults.
    pub fresh: Timed,
    /// Destinations by alignment.
    pub destinations: Alignments,
    /// Sources by alignment.
    pub sources: Alignments,
    /// Overlapping copies to lower addresses.
    pub overlaps_down: Overlaps,
    /// Overlapping copies to higher addresses.
    pub overlaps_up: Overlaps,
    /// Calls whose page faults were counted.
    pub fault_checks: u64,
    /// Their page faults.
    pub faults: u64,
}

/// The calls of one operation and size class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct SizeRow {
    /// The operation.
    pub operation: Operation,
    /// The smallest size of the class.
    pub from: u64,
    /// The largest size of the class.
    pub to: u64,
    /// Calls.
    pub calls: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that were timed.
    pub timed_calls: u64,
    /// The time of those.
    pub timed_ns: u64,
}

/// A thread.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Thread {
    /// The index of its process.
    pub process: usize,
    /// The kernel's number. `None` for the table that several threads shared, and for a thread that was killed while it
    /// claimed its table.
    pub id: Option<u64>,
    /// Several threads shared this table, because the tables were used up.
    pub is_shared: bool,
    /// Calls.
    pub calls: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Long calls.
    pub long_calls: u64,
    /// The most long calls in flight in the process when one of this thread began.
    pub most_in_flight: u64,
    /// Its calls by operation and size.
    pub sizes: Vec<SizeRow>,
    /// Times between the end of a long call and the begin of the next.
    pub gaps: Vec<Gap>,
}

/// Times between long calls of a thread, in one class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Gap {
    /// The shortest time of the class. The next class begins at twice of it.
    pub from_ns: u64,
    /// How many there were.
    pub count: u64,
}

/// A long call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Event {
    /// Nanoseconds from the start of the first process to the begin of the call.
    pub start_ns: u64,
    /// Its duration. A call of more than 2^32 ticks (about a second) has that duration.
    pub duration_ns: u64,
    /// Its number among the long calls of its process. Where numbers are missing, calls were left out.
    pub number: u64,
    /// The index of its thread.
    pub thread: usize,
    /// The index of its site, if it is known.
    pub site: Option<usize>,
    /// The operation.
    pub operation: Operation,
    /// Bytes.
    pub bytes: u64,
    /// The direction, if source and destination overlap.
    pub overlap: Option<Direction>,
    /// The distance of the overlapping ranges, rounded down to a power of two; 1 also stands for 0.
    pub overlap_distance: Option<u64>,
    /// The destination is a multiple of 64.
    pub destination_is_aligned: bool,
    /// The source is a multiple of 64.
    pub source_is_aligned: bool,
    /// `None` without calibration.
    pub temperature: Option<Temperature>,
    /// Long calls in flight in its process when it began, itself included; 255 also stands for more.
    pub in_flight: u8,
}

/// What a recording lacks. All zero: it has everything.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct NotRecorded {
    /// Long calls that are not in [`Recording::events`], because the trace was full or they had not ended.
    pub events_left_out: u64,
    /// Entries of the trace that were being written when the process ended or the file was copied.
    pub events_torn: u64,
    /// Threads that share a table, because the tables were used up.
    pub threads_without_table: u64,
    /// Calls whose site is not recorded, because the table was full or the return address unknown.
    pub calls_without_site: u64,
    /// Modules for which there was no room.
    pub modules_without_entry: u64,
    /// Calls that are not counted at all, because the thread could not reach a table.
    pub calls_lost: u64,
    /// Entries that make no sense: the file is damaged.
    pub entries_damaged: u64,
}
