//! What a process tells of itself.

use serde::{Deserialize, Serialize};

/// What a process has done up to now. Pages are of 4 KiB.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct State {
    /// [`VERSION`](crate::VERSION).
    pub version: u32,
    /// The process.
    pub pid: u32,
    /// Its command line.
    pub command: Vec<String>,
    /// Seconds since it was begun with.
    pub seconds: f64,
    /// The process has ended by itself; without, it goes on, or was killed.
    pub ended: bool,
    /// Why its memory is not managed.
    pub error: Option<String>,
    /// By which mechanism pages move.
    pub mechanism: String,
    /// Tiers, the fastest first.
    pub tiers: Vec<TierState>,
    /// Name of the tier on which pages are when they are touched first.
    pub home: String,
    /// Mappings that are managed, and their bytes.
    pub mappings: u64,
    /// Their bytes.
    pub mapped_bytes: u64,
    /// The most bytes that were managed at a moment.
    pub most_mapped_bytes: u64,
    /// Mappings that were left alone, by reason, at the last look.
    pub ignored: Vec<Ignored>,
    /// Pages that moved, and those that stayed.
    pub counts: Counts,
    /// Pages that were promoted and demoted, second by second: the latest.
    pub points: Vec<Point>,
    /// How heat is found, and what it costs.
    pub tracking: Tracking,
    /// Where it is hot.
    pub heat: Vec<HeatRow>,
    /// The process that traces this one, such as a debugger. While there is one no page is out, and none moves.
    pub tracer: Option<u32>,
    /// `telpher tier pause` has it that nothing moves; no page is out.
    pub paused: bool,
    /// Seconds in which nothing moved for one of these two reasons.
    pub held_seconds: f64,
    /// The system's setting for transparent huge pages: always, madvise, never or unknown.
    pub transparent_huge_pages: String,
}

/// A tier.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TierState {
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: Option<u32>,
    /// The most that the process takes of it; 0 for as much as it likes.
    pub bytes: u64,
    /// Pages of the process that are there.
    pub pages: u64,
    /// The most pages that were there at a moment. Moments are some ten milliseconds apart, or a hundred times what a look at the pages takes.
    pub most_pages: u64,
    /// Pages that were there on the average of the time.
    pub mean_pages: u64,
    /// Free pages that are kept of it.
    pub free: u64,
}

/// Mappings that were left alone.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ignored {
    /// Why.
    pub reason: String,
    /// How many.
    pub mappings: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// One reason and how many pages.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Move {
    /// Which.
    pub what: String,
    /// Pages.
    pub pages: u64,
}

/// What became of pages.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Moved.
    pub moved: u64,
    /// Of these, to a faster tier.
    pub promoted: u64,
    /// Of these, to a slower tier.
    pub demoted: u64,
    /// Of these, parts of huge pages that moved whole.
    pub huge: u64,
    /// Stayed, by reason.
    pub stayed: Vec<Move>,
    /// Exchanges.
    pub exchanges: u64,
    /// Discarded or unmapped while they were on their way.
    pub dropped: u64,
    /// Forks that were seen.
    pub forks: u64,
    /// Seconds that moves have taken, and those of them that copies have taken, which a device could take over.
    pub moving_seconds: f64,
    /// See `moving_seconds`.
    pub copying_seconds: f64,
    /// Pages that are lost; anything but 0 is told on standard error, too.
    pub lost: u64,
}

/// A moment.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Point {
    /// Seconds since it was begun with.
    pub seconds: f64,
    /// Pages on each tier.
    pub pages: Vec<u64>,
    /// Pages promoted since the point before.
    pub promoted: u64,
    /// Pages demoted since the point before.
    pub demoted: u64,
}

/// How heat is found.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Tracking {
    /// Where it is looked for.
    pub source: String,
    /// Why not by DAMON, where that was tried.
    pub without_damon: Option<String>,
    /// Uses that should have been seen, and were too many to be kept.
    pub lost: u64,
    /// Share of a core that looking took, here and in the kernel.
    pub core_share: f64,
    /// Page faults that the program had for it, and how long its threads waited for those, together.
    pub faults: u64,
    /// See `faults`.
    pub waited_seconds: f64,
    /// Share of a core that moving took.
    pub moving_share: f64,
    /// What the policy holds back for, as words; none if it does not.
    pub holds: Option<String>,
    /// The most pages whose heat was known at a moment.
    pub most_known: u64,
    /// The most pages that were hot and not on the fastest tier at a moment.
    pub most_hot: u64,
}

/// A piece of memory.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct HeatRow {
    /// Its first byte.
    pub start: u64,
    /// The byte behind its last.
    pub end: u64,
    /// How hot it is: 0 to 1.
    pub heat: f32,
    /// Pages of it on each tier.
    pub pages: Vec<u64>,
}

impl State {
    /// Pages of it on all tiers.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.tiers.iter().map(|tier| tier.pages).sum()
    }
}
