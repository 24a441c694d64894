//! The interface of the mechanisms that move pages, and the two mechanisms.

pub(crate) mod move_pages;
pub(crate) mod userfault_move;

use crate::config::{Mechanism, PAGE, TierId};
use crate::error::TierError;
use crate::page_map::RegionPart;
use crate::page_set::PageSet;
use crate::stats::{Moved, Stats};
use crate::traps::{Trap, TrapCost};
use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::time::Duration;

/// One mechanism that moves pages. Callers ensure that this process owns the heap, and that the tiers they name exist.
pub(crate) trait Backend: Debug + Send + Sync {
    /// Returns its kind.
    fn mechanism(&self) -> Mechanism;

    /// Adopts a range whose pages are all on the home tier.
    ///
    /// A mapping of the program lies in `room`, in which there was nothing else when the program was scanned. It may
    /// have grown since and must not be cut in two, or it may be gone. An arena has no room, because its mapping does
    /// not change.
    fn adopt(&self, range: Range<u64>, room: Option<Range<u64>>) -> Result<(), TierError>;

    /// Releases a range: its pages stay where they are.
    fn release(&self, range: &Range<u64>);

    /// Returns what it has adopted and not released, in address order; adjacent memory may be one part or several.
    fn region_parts(&self) -> Vec<RegionPart>;

    /// Writes the tiers of the present pages from `first` on; [`NO_TIER`](crate::heat::NO_TIER) for other pages and for
    /// those that may not be moved; [`IN_FLIGHT`](crate::page_map::IN_FLIGHT) for pages that are out, whose tier is the
    /// last one reported.
    fn tiers(&self, first: u64, tiers: &mut [u8]) -> io::Result<()>;

    /// Returns its write tracking; none if it cannot track writes.
    fn watch(&self) -> Option<&dyn Watch> {
        None
    }

    /// Returns its traps; none if it cannot trap pages.
    fn traps(&self) -> Option<&dyn Trapping> {
        None
    }

    /// Moves the pages of a range to a tier, as many as possible.
    fn migrate(&self, range: Range<u64>, to: TierId) -> Result<Moved, TierError>;

    /// Returns the number of pages of a range on each tier.
    fn residency(&self, range: Range<u64>) -> Result<Vec<u64>, TierError>;

    /// Returns the process that traces this one, if pages are held in place because of it; no page is out then.
    fn tracer(&self) -> Option<u32> {
        None
    }

    /// Starts or ends a hold, in which no page goes out. All pages are back when this returns.
    fn hold(&self, holds: bool);

    /// Returns what it has done.
    fn stats(&self) -> Stats;

    /// Returns the number of free pages that are kept of each tier.
    fn free(&self) -> Vec<u64>;

    /// Returns the number of old copies that are kept of each tier.
    fn shadows(&self) -> Vec<u64>;
}

/// Tracks writes to a heap's pages, with the same mechanism that moves them.
pub(crate) trait Watch {
    /// Starts to track writes to the small pages of a window of at most 2 MiB, which replaces the previous window.
    /// Returns the tracked pages.
    fn track(&self, window: &Range<u64>) -> io::Result<PageSet>;

    /// Returns the pages of the window that were written since, and those that were moved, of which nothing is known.
    fn written(&self, window: &Range<u64>) -> io::Result<(PageSet, PageSet)>;

    /// Ends the tracking.
    fn untrack(&self, window: &Range<u64>);
}

/// Contiguous pages, one of which was drawn at random.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TrapCandidate {
    /// Their addresses.
    pub(crate) pages: Range<u64>,
    /// The first page is the drawn one. A huge page is trapped only if its drawn page is in it; small pages are also
    /// trapped as neighbours.
    pub(crate) first: bool,
}

/// Takes pages of a heap out for a while, to learn when they are first touched.
pub(crate) trait Trapping {
    /// Allocates what traps need, once.
    ///
    /// # Errors
    /// [`TierError`]: the system refuses.
    fn begin(&self) -> Result<(), TierError>;

    /// Sets a round of traps on those of these pages that are present and may be moved. Returns the number of small
    /// pages trapped; 0 if a round is under way.
    fn set(&self, drawn: &[TrapCandidate]) -> io::Result<u64>;

    /// Ends the round: untouched pages come back, and `each` is called with what became of each trap.
    fn end(&self, each: &mut dyn FnMut(&Trap));

    /// Returns the cost for threads other than the caller.
    fn cost(&self) -> TrapCost;

    /// Measures how long a touch takes now. Returns none while a round is under way, or if it cannot be measured.
    fn time_touch(&self) -> Option<Duration>;
}

/// Returns the pages that lie entirely in a range.
pub(crate) fn whole_pages(range: &Range<u64>) -> Range<u64> {
    let end = range.end - range.end % PAGE;
    range.start.next_multiple_of(PAGE).min(end)..end
}
