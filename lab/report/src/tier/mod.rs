//! The states of processes under `telpher tier run`, as data.

pub mod tables;

use serde::Serialize;

/// What a process has done so far. Pages are of 4 KiB.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct ProcessState {
    /// The process.
    pub pid: u32,
    /// Its command line.
    pub command: Vec<String>,
    /// Seconds since its start.
    pub seconds: f64,
    /// The process has ended normally; otherwise it still runs or was killed.
    pub ended: bool,
    /// Why its memory is not managed.
    pub error: Option<String>,
    /// How pages move.
    pub mechanism: String,
    /// The tiers, the fastest first.
    pub tiers: Vec<TierState>,
    /// The name of the tier on which pages are allocated when they are first touched.
    pub home: String,
    /// The number of managed mappings.
    pub mappings: u64,
    /// The bytes of managed mappings.
    pub mapped_bytes: u64,
    /// The most bytes that were managed at once.
    pub most_mapped_bytes: u64,
    /// Mappings that the last scan ignored, by reason.
    pub ignored: Vec<Ignored>,
    /// Counters of pages.
    pub counts: Counts,
    /// The latest moments: pages on each tier, promoted and demoted.
    pub points: Vec<Point>,
    /// How heat is found, and its cost.
    pub tracking: Tracking,
    /// The heat map.
    pub heat: Vec<HeatRow>,
    /// The process that traces this one, such as a debugger. While there is one no page is out, and none moves.
    pub tracer: Option<u32>,
    /// `telpher tier pause` is in force: nothing moves and no page is out.
    pub paused: bool,
    /// Seconds in which nothing moved because of a tracer or a pause.
    pub held_seconds: f64,
    /// The system's setting for transparent huge pages: always, madvise, never or unknown.
    pub transparent_huge_pages: String,
}

/// The state of a tier.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct TierState {
    /// Its name.
    pub name: String,
    /// Its NUMA node.
    pub node: Option<u32>,
    /// The most bytes that the process uses of it; 0 for no limit.
    pub bytes: u64,
    /// Pages of the process on it.
    pub pages: u64,
    /// The most pages on it at once. Samples are some ten milliseconds apart, or a hundred times the duration of a
    /// sample.
    pub most_pages: u64,
    /// The average number of pages on it over time.
    pub mean_pages: u64,
    /// Free pages that are kept of it.
    pub free: u64,
}

/// Mappings that were ignored for one reason.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Ignored {
    /// The reason.
    pub reason: String,
    /// Their number.
    pub mappings: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A reason and a number of pages.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Move {
    /// The reason.
    pub what: String,
    /// Pages.
    pub pages: u64,
}

/// Counters of pages and events.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Counts {
    /// Pages moved.
    pub moved: u64,
    /// Moved to a faster tier; included in `moved`.
    pub promoted: u64,
    /// Moved to a slower tier; included in `moved`.
    pub demoted: u64,
    /// Parts of huge pages that moved whole; included in `moved`.
    pub huge: u64,
    /// Pages that stayed, by reason.
    pub stayed: Vec<Move>,
    /// Batches of pages that were taken out and brought back.
    pub exchanges: u64,
    /// Pages discarded or unmapped while they were in flight.
    pub dropped: u64,
    /// Forks that were noticed.
    pub forks: u64,
    /// Seconds spent on moves.
    pub moving_seconds: f64,
    /// The part of `moving_seconds` spent on copies, which a device could take over.
    pub copying_seconds: f64,
    /// Pages that are lost; a number other than 0 is reported on standard error as well.
    pub lost: u64,
}

/// The tiers at one moment.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Point {
    /// Seconds since the process' start.
    pub seconds: f64,
    /// Pages on each tier.
    pub pages: Vec<u64>,
    /// Pages promoted since the point before.
    pub promoted: u64,
    /// Pages demoted since the point before.
    pub demoted: u64,
}

/// How heat is found, and its cost.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Tracking {
    /// The sources in use.
    pub source: String,
    /// Why DAMON is not used, if it was tried.
    pub without_damon: Option<String>,
    /// Uses that were missed because there were too many.
    pub lost: u64,
    /// The share of a core that sampling took, here and in the kernel.
    pub core_share: f64,
    /// Page faults that sampling caused in the program.
    pub faults: u64,
    /// The total time that the program's threads waited for those faults.
    pub waited_seconds: f64,
    /// The share of a core that moves took.
    pub moving_share: f64,
    /// Why the policy moves nothing now; none if it moves pages.
    pub holds: Option<String>,
    /// The most pages whose heat was known at once.
    pub most_known: u64,
    /// The most pages that were hot and not on the fastest tier at once.
    pub most_hot: u64,
}

/// A part of the memory.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct HeatRow {
    /// Its first byte.
    pub start: u64,
    /// The byte after its last.
    pub end: u64,
    /// How hot it is: 0 to 1.
    pub heat: f32,
    /// Its pages on each tier.
    pub pages: Vec<u64>,
}

impl ProcessState {
    /// Returns its pages on all tiers.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.tiers.iter().map(|tier| tier.pages).sum()
    }
}
