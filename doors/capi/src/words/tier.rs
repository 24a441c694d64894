//! What memory on several tiers shows of itself. `TierOptions` is `telpher_tier_options` in the header, and so on.

use std::ffi::c_char;

/// One kind of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TierOptions {
    /// What people call it; NULL for its number.
    pub name: *const c_char,
    /// The most memory the heap takes of it.
    pub size: u64,
    /// Bits of [`tier_flag`](super::tier_flag): those of a node and of huge pages.
    pub flags: u32,
    /// Its node, with that flag.
    pub node: u32,
    /// A file that shared arenas have there; NULL for none.
    pub path: *const c_char,
    /// Zero.
    pub reserved: [u64; 4],
}

/// How a tier stands.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TierInfo {
    /// Its name, cut to 31 bytes, ended by a zero byte.
    pub name: [u8; 32],
    /// The most memory the heap takes of it.
    pub size: u64,
    /// Free pages that are kept.
    pub free_pages: u64,
    /// Pages that are old copies.
    pub old_copies: u64,
    /// Its node; -1 for wherever the system has some.
    pub node: i32,
    /// 1 if pages are there when they are touched first.
    pub home: u32,
    /// Zero.
    pub reserved: [u64; 4],
}

/// What became of pages that were to be moved.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TierMoved {
    /// Moved.
    pub pages: u64,
    /// Of these, parts of huge pages that were moved whole.
    pub huge: u64,
    /// Stayed: they are there already.
    pub already: u64,
    /// Stayed: somebody has pinned them.
    pub pinned: u64,
    /// Stayed: of a kind that is not moved.
    pub unsupported: u64,
    /// Went while they were looked at.
    pub gone: u64,
    /// Stayed: the tier is full.
    pub no_room: u64,
    /// Stayed: their copy failed.
    pub failed: u64,
    /// Stayed: a process traces this one.
    pub held: u64,
    /// Zero.
    pub reserved: [u64; 3],
}

/// What a heap has done.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TierStats {
    /// What became of pages that were to be moved.
    pub moved: TierMoved,
    /// Pages that went back to their old copy.
    pub not_copied: u64,
    /// Times pages were taken out and brought back.
    pub exchanges: u64,
    /// Pages that were discarded or unmapped on their way.
    pub dropped: u64,
    /// Pages that came back by a copy of the kernel's.
    pub returned: u64,
    /// Page faults that were answered with empty pages.
    pub fills: u64,
    /// Forks that were seen.
    pub forks: u64,
    /// Pages on their way that were given to children.
    pub given: u64,
    /// Times the kernel said that pages were not moved, and they were.
    pub lies: u64,
    /// Pages that were brought back because the thread that moved them touched them.
    pub rescued: u64,
    /// Pages whose bytes were lost.
    pub lost: u64,
    /// Time that moving has taken, in nanoseconds, but for shared arenas' moves.
    pub moving_ns: u64,
    /// Of that, copies.
    pub copying_ns: u64,
    /// Zero.
    pub reserved: [u64; 4],
}

/// What a manager has found and done.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TierReport {
    /// Since it was started.
    pub time_ns: u64,
    /// Pages that went to a faster tier.
    pub promoted: u64,
    /// Pages that went to a slower tier.
    pub demoted: u64,
    /// Pages that were to move and stayed.
    pub stayed: u64,
    /// Moves that are decided and not made yet.
    pub waiting: u64,
    /// Time of a core that looking and deciding took.
    pub looking_ns: u64,
    /// Time of a core that moving took.
    pub moving_ns: u64,
    /// 1 while nothing moves, as moving did not pay.
    pub resting: u32,
    /// 1 if its thread has ended by a bug.
    pub failed: u32,
    /// Pages on each tier.
    pub pages: [u64; 8],
    /// Of these, hot.
    pub hot: [u64; 8],
    /// Zero.
    pub reserved: [u64; 8],
}

numbers! {
    /// What a program knows of its memory.
    tier_advice:
    /// It will be used a lot.
    TELPHER_TIER_HOT = 1;
    /// It will not be used for a while.
    TELPHER_TIER_COLD = 2;
    /// It belongs on a tier.
    TELPHER_TIER_PIN = 3;
    /// It belongs nowhere any more.
    TELPHER_TIER_UNPIN = 4;
}

numbers! {
    /// Flags of an arena.
    tier_arena_flag:
    /// Pages of 2 MiB, as far as the system has any.
    TELPHER_TIER_ARENA_HUGE_PAGES = 0x1;
    /// Memory of files.
    TELPHER_TIER_ARENA_SHARED = 0x2;
}

numbers! {
    /// By which mechanism pages change their tier.
    tier_mechanism:
    /// `UFFDIO_MOVE` out, a copy, and in.
    TELPHER_TIER_EXCHANGE = 1;
    /// `move_pages(2)`.
    TELPHER_TIER_MOVE_PAGES = 2;
    /// Protection from writes, a copy, and another mapping.
    TELPHER_TIER_REMAP = 3;
    /// One that has no number yet.
    TELPHER_TIER_OTHER_WAY = 255;
}
