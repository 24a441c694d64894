//! Counters of a heap.

use std::time::Duration;
use telpher_metrics::{Record, metrics};

/// The help of pages that stayed.
const STAYED: &str = "Pages of 4 KiB that were to be moved and stayed, by reason.";

metrics! {
    /// Pages that stayed where they were, by reason.
    #[non_exhaustive]
    pub struct Unmoved {
        /// They were on the tier already.
        pub already: u64 = counter "telpher_tier_unmoved_pages_total" by reason ["already there"] => STAYED,
        /// They are pinned (by a device, io_uring), or shared with a process that does not release them.
        pub pinned: u64 = counter "telpher_tier_unmoved_pages_total" by reason ["pinned"] => STAYED,
        /// The kernel does not move pages of their mapping: it is locked, or its protection differs from plain memory.
        pub unsupported: u64 = counter "telpher_tier_unmoved_pages_total" by reason ["unsupported mapping"] => STAYED,
        /// They were discarded or unmapped meanwhile.
        pub gone: u64 = counter "telpher_tier_unmoved_pages_total" by reason ["gone"] => STAYED,
        /// The tier is full, or its node has no memory, or no huge page is left.
        pub no_room: u64 = counter "telpher_tier_unmoved_pages_total" by reason ["no room"] => STAYED,
        /// Their copy failed, or their slot held something else; they are where they were.
        pub failed: u64 = counter "telpher_tier_unmoved_pages_total" by reason ["copy failed"] => STAYED,
        /// No page is taken out now: a process traces this one ([`Heap::tracer`](crate::Heap::tracer)), or
        /// [`Heap::hold`](crate::Heap::hold) is in force.
        pub held: u64 = counter "telpher_tier_unmoved_pages_total" by reason ["held"] => STAYED,
    }
}

impl Unmoved {
    /// Returns the sum of all reasons.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.total()
    }
}

metrics! {
    /// What became of pages that were to be moved, in pages of 4 KiB.
    #[non_exhaustive]
    pub struct Moved {
        /// Pages of 4 KiB that were moved.
        pub pages: u64 = counter "telpher_tier_moved_pages_total",
        /// Pages of 4 KiB that were moved as parts of whole huge pages; included in the moved pages.
        pub huge: u64 = counter "telpher_tier_moved_huge_parts_total",
        /// Pages that stayed, by reason.
        pub left: Unmoved = set,
    }
}

metrics! {
    /// What a heap has done.
    #[non_exhaustive]
    pub struct Stats {
        /// What became of pages that were to be moved.
        pub moved: Moved = set,
        /// Total time spent moving pages: scanning, taking out, copying, bringing back.
        pub moving: Duration = counter(Seconds) "telpher_tier_moving_seconds_total",
        /// The part of the time spent moving in which the mover copied, which a device can take over. Moves of shared
        /// arenas are in neither.
        pub copying: Duration = counter(Seconds) "telpher_tier_copying_seconds_total",
        /// Small pages that went back to their old copy because they had not been written: they were compared, not
        /// copied.
        pub not_copied: u64 = counter "telpher_tier_not_copied_pages_total",
        /// Batches of pages that were taken out and brought back.
        pub exchanges: u64 = counter "telpher_tier_exchanges_total",
        /// Pages that were discarded or unmapped while they were in flight.
        pub dropped: u64 = counter "telpher_tier_dropped_pages_total",
        /// Pages that came back to the home tier as a copy made by the kernel, because their mapping had changed
        /// meanwhile.
        pub copied_back: u64 = counter "telpher_tier_copied_back_pages_total",
        /// Page faults that were answered with empty pages.
        pub fills: u64 = counter "telpher_tier_fills_total",
        /// Forks that were noticed.
        pub forks: u64 = counter "telpher_tier_forks_total",
        /// Pages in flight that were copied to forked children.
        pub copied_to_children: u64 = counter "telpher_tier_copied_to_children_pages_total",
        /// Moves that the kernel reported as failed although it had made them; the module `exchange` has the remedy.
        pub misreported: u64 = counter "telpher_tier_misreported_moves_total",
        /// Pages that were returned at once because the moving thread touched them. It should not touch managed pages.
        pub returned_early: u64 = counter "telpher_tier_returned_early_pages_total",
        /// Pages of 4 KiB that were taken out to notice the first touch (`SourceKind::Traps`).
        pub trapped: u64 = counter "telpher_tier_trapped_pages_total",
        /// Trapped pages that were touched and returned at once.
        pub touched: u64 = counter "telpher_tier_touched_pages_total",
        /// Pages that could not come back because their address was taken or did not become free, and pages that a
        /// forked child could not be given. If this is not zero, bytes of the program were lost, which is also reported
        /// on standard error.
        pub lost: u64 = counter "telpher_tier_lost_pages_total",
    }
}
