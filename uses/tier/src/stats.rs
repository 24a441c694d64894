//! Counters of a heap.

use std::time::Duration;

/// Pages that stayed where they were, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Unmoved {
    /// They were on the tier already.
    pub already: u64,
    /// They are pinned (by a device, io_uring), or shared with a process that does not release them.
    pub pinned: u64,
    /// The kernel does not move pages of their mapping: it is locked, or its protection differs from plain memory.
    pub unsupported: u64,
    /// They were discarded or unmapped meanwhile.
    pub gone: u64,
    /// The tier is full, or its node has no memory, or no huge page is left.
    pub no_room: u64,
    /// Their copy failed, or their slot held something else; they are where they were.
    pub failed: u64,
    /// No page is taken out now: a process traces this one ([`Heap::tracer`](crate::Heap::tracer)), or
    /// [`Heap::hold`](crate::Heap::hold) is in force.
    pub held: u64,
}

impl Unmoved {
    /// Returns the sum of all reasons.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.already + self.pinned + self.unsupported + self.gone + self.no_room + self.failed + self.held
    }

    pub(crate) fn add(&mut self, other: Unmoved) {
        self.already += other.already;
        self.pinned += other.pinned;
        self.unsupported += other.unsupported;
        self.gone += other.gone;
        self.no_room += other.no_room;
        self.failed += other.failed;
        self.held += other.held;
    }
}

/// What became of pages that were to be moved, in pages of 4 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Moved {
    /// Moved.
    pub pages: u64,
    /// Parts of huge pages that were moved whole; included in `pages`.
    pub huge: u64,
    /// Pages that stayed, by reason.
    pub left: Unmoved,
}

impl Moved {
    pub(crate) fn add(&mut self, other: Moved) {
        self.pages += other.pages;
        self.huge += other.huge;
        self.left.add(other.left);
    }
}

/// What a heap has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// What became of pages that were to be moved.
    pub moved: Moved,
    /// Total time spent moving them: scanning, taking out, copying, bringing back.
    pub moving: Duration,
    /// The part of `moving` in which the mover copied, which a device can take over. Moves of shared arenas are in
    /// neither.
    pub copying: Duration,
    /// Small pages that went back to their old copy because they had not been written: they were compared, not copied.
    pub not_copied: u64,
    /// Batches of pages that were taken out and brought back.
    pub exchanges: u64,
    /// Pages that were discarded or unmapped while they were in flight.
    pub dropped: u64,
    /// Pages that came back to the home tier as a copy made by the kernel, because their mapping had changed meanwhile.
    pub returned: u64,
    /// Page faults that were answered with empty pages.
    pub fills: u64,
    /// Forks that were noticed.
    pub forks: u64,
    /// Pages in flight that were copied to forked children.
    pub given: u64,
    /// Moves that the kernel reported as failed although it had made them; see the module `exchange` for the remedy.
    pub lies: u64,
    /// Pages that were returned at once because the moving thread touched them. It should not touch managed pages.
    pub rescued: u64,
    /// Pages of 4 KiB that were taken out to notice the first touch: see
    /// [`SourceKind::Traps`](crate::SourceKind::Traps).
    pub trapped: u64,
    /// Trapped pages that were touched and returned at once.
    pub touched: u64,
    /// Pages that could not come back because their address was taken or did not become free, and pages that a forked
    /// child could not be given. If this is not zero, bytes of the program were lost, which is also reported on
    /// standard error.
    pub lost: u64,
}
