//! The C structures of memory on several tiers. `TierOptions` is `telpher_tier_options` in the header, and so on.

use std::ffi::c_char;

/// One kind of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TierOptions {
    /// A name for people; NULL for its number.
    pub name: *const c_char,
    /// The most bytes that the heap uses of it.
    pub size: u64,
    /// Bits of [`tier_flag`](super::tier_flag): node and huge pages only.
    pub flags: u32,
    /// Its node, with that flag.
    pub node: u32,
    /// A file for shared arenas; NULL for none.
    pub path: *const c_char,
    /// Zero.
    pub reserved: [u64; 4],
}

/// The state of a tier.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TierInfo {
    /// Its name, truncated to 31 bytes, ended by a zero byte.
    pub name: [u8; 32],
    /// The most bytes that the heap uses of it.
    pub size: u64,
    /// Free pages that are kept.
    pub free_pages: u64,
    /// Pages kept as old copies.
    pub old_copies: u64,
    /// Its node; -1 if the system chooses.
    pub node: i32,
    /// 1 if pages are here when first touched.
    pub home: u32,
    /// Zero.
    pub reserved: [u64; 4],
}

/// The result of moving pages.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TierMoved {
    /// Moved.
    pub pages: u64,
    /// Of these, parts of huge pages that were moved as a whole.
    pub huge: u64,
    /// Stayed: on the tier already.
    pub already: u64,
    /// Stayed: pinned.
    pub pinned: u64,
    /// Stayed: not movable.
    pub unsupported: u64,
    /// Unmapped during the call.
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

/// The counters of a heap.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TierStats {
    /// The sum over all moves.
    pub moved: TierMoved,
    /// Pages that went back to their old copy.
    pub not_copied: u64,
    /// How often pages were taken out and brought back.
    pub exchanges: u64,
    /// Pages discarded or unmapped while being moved.
    pub dropped: u64,
    /// Pages that the kernel copied back.
    pub copied_back: u64,
    /// Page faults that were answered with empty pages.
    pub fills: u64,
    /// Forks noticed.
    pub forks: u64,
    /// Pages being moved that were copied to children.
    pub copied_to_children: u64,
    /// How often the kernel reported pages as not moved that had moved.
    pub misreported: u64,
    /// Pages brought back because the moving thread touched them.
    pub returned_early: u64,
    /// Pages whose bytes were lost.
    pub lost: u64,
    /// Nanoseconds spent moving, without shared arenas.
    pub moving_ns: u64,
    /// Of that, nanoseconds spent copying.
    pub copying_ns: u64,
    /// Zero.
    pub reserved: [u64; 4],
}

/// What a manager has found and done.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TierReport {
    /// Nanoseconds since its start.
    pub time_ns: u64,
    /// Pages moved to a faster tier.
    pub promoted: u64,
    /// Pages moved to a slower tier.
    pub demoted: u64,
    /// Pages that should have moved and stayed.
    pub stayed: u64,
    /// Moves decided and not made yet.
    pub waiting: u64,
    /// Core time for finding hot pages and deciding.
    pub looking_ns: u64,
    /// Core time for moving.
    pub moving_ns: u64,
    /// 1 while moves are paused, because they did not pay off.
    pub resting: u32,
    /// 1 if its thread has ended because of a bug.
    pub failed: u32,
    /// Pages on each tier.
    pub pages: [u64; 8],
    /// Of these, hot.
    pub hot: [u64; 8],
    /// Zero.
    pub reserved: [u64; 8],
}

numbers! {
    /// Hints about the use of memory.
    tier_advice:
    /// It will be used a lot.
    TELPHER_TIER_HOT = 1;
    /// It will not be used for a while.
    TELPHER_TIER_COLD = 2;
    /// It belongs on a tier.
    TELPHER_TIER_PIN = 3;
    /// It is no longer pinned to a tier.
    TELPHER_TIER_UNPIN = 4;
}

numbers! {
    /// Flags of an arena.
    tier_arena_flag:
    /// Pages of 2 MiB, if the system has them.
    TELPHER_TIER_ARENA_HUGE_PAGES = 0x1;
    /// Shared file mappings.
    TELPHER_TIER_ARENA_SHARED = 0x2;
}

numbers! {
    /// The mechanism by which pages change tiers.
    tier_mechanism:
    /// `UFFDIO_MOVE` out, a copy, and in.
    TELPHER_TIER_EXCHANGE = 1;
    /// `move_pages(2)`.
    TELPHER_TIER_MOVE_PAGES = 2;
    /// Write protection, a copy, and another mapping.
    TELPHER_TIER_REMAP = 3;
    /// A mechanism without a number in this table.
    TELPHER_TIER_OTHER_WAY = 255;
}
