//! What has happened.

use std::time::Duration;

/// Why pages stayed where they were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Left {
    /// They are there already.
    pub already: u64,
    /// Somebody has pinned them (a device, io_uring), or shares them with a process and does not let go.
    pub pinned: u64,
    /// Their mapping is of a kind that the kernel does not move pages of: locked, or protected otherwise than plain memory.
    pub unsupported: u64,
    /// They went while they were looked at.
    pub gone: u64,
    /// The tier is full, or its node has no more memory, or no huge page.
    pub no_room: u64,
    /// Their copy failed, or something was in the place from which it is made; they are where they were.
    pub failed: u64,
    /// Nothing is taken out now: a process traces this one ([`Heap::tracer`](crate::Heap::tracer)), or [`Heap::hold`](crate::Heap::hold) is in force.
    pub held: u64,
}

impl Left {
    /// All of them.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.already + self.pinned + self.unsupported + self.gone + self.no_room + self.failed + self.held
    }

    pub(crate) fn add(&mut self, other: Left) {
        self.already += other.already;
        self.pinned += other.pinned;
        self.unsupported += other.unsupported;
        self.gone += other.gone;
        self.no_room += other.no_room;
        self.failed += other.failed;
        self.held += other.held;
    }
}

/// What became of pages that were to be moved. Numbers of pages of 4 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Moved {
    /// Moved.
    pub pages: u64,
    /// Of these, parts of huge pages that were moved whole.
    pub huge: u64,
    /// Stayed, by reason.
    pub left: Left,
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
    /// Time that moving them has taken, all in all: looking for them, taking them out, copying, bringing them back.
    pub moving: Duration,
    /// Of this, time that copies of the mover's have taken: what a device can take over. Shared arenas' moves are in neither.
    pub copying: Duration,
    /// Small pages that went back to their old copy, as nobody had written them since: they were compared, not copied.
    pub not_copied: u64,
    /// Times pages were taken out and brought back.
    pub exchanges: u64,
    /// Pages that were discarded or unmapped while they were on their way.
    pub dropped: u64,
    /// Pages that came back by a copy of the kernel's, because their mapping had changed meanwhile: to the home tier.
    pub returned: u64,
    /// Page faults that were answered with empty pages.
    pub fills: u64,
    /// Forks that were seen.
    pub forks: u64,
    /// Pages on their way that were given to forked children.
    pub given: u64,
    /// Times the kernel said that pages were not moved, and they were. Source of the cure: see `exchange`.
    pub lies: u64,
    /// Pages that were brought back at once because the thread that moved them touched them itself. It should touch none that are managed.
    pub rescued: u64,
    /// Pages of 4 KiB that were taken out to see who touches them: see [`SourceKind::Traps`](crate::SourceKind::Traps).
    pub trapped: u64,
    /// Times one of these was touched, and went back at once.
    pub touched: u64,
    /// Pages whose place was taken when they came back, or did not come free, or that a forked child could not be given. Not zero means that bytes of the program were lost, which is
    /// told on standard error, too.
    pub lost: u64,
}
