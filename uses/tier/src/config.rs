//! The options of a heap.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;
use telpher_mover::Mover;

/// Bytes of a small page.
pub(crate) const PAGE: u64 = telpher_mem::PAGE_BYTES;

/// Bytes of a huge page. Source: x86-64 page tables, level 2.
pub(crate) const HUGE: u64 = 2 << 20;
/// Small pages in a huge one.
pub(crate) const IN_HUGE: usize = 512;
const _: () = assert!(IN_HUGE as u64 * PAGE == HUGE);

/// All addresses.
pub(crate) const ALL: Range<u64> = 0..u64::MAX;

/// The most tiers of a heap.
pub const MAX_TIERS: usize = 8;

/// A heap's tier: its index in [`HeapOptions::tiers`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct TierId(pub u8);

impl TierId {
    pub(crate) fn index(self) -> usize {
        self.0.into()
    }
}

/// One tier of memory.
#[derive(Clone, Debug)]
pub struct TierOptions {
    /// The name for people.
    pub name: String,
    /// The NUMA node of its pages; none to let the system choose, as on a machine with one node.
    pub node: Option<u32>,
    /// The most memory that the heap uses on this tier, including free pages kept for later. The heap does not limit
    /// the home tier, where pages are allocated when they are first touched.
    pub bytes: u64,
}

/// The kind of memory of a tier in [shared arenas](crate::Heap::shared_arena).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum TierMemory {
    /// The system's pages, on the tier's node.
    #[default]
    Pages,
    /// Huge pages that the system has reserved (hugetlb, `vm.nr_hugepages`), 2 MiB each, on the tier's node. An arena
    /// takes all that it may use at once and keeps them.
    HugePages,
    /// A memory device (device-DAX, such as `/dev/dax0.0`: CXL memory that is no node) with pages of 2 MiB, or a file
    /// in memory (tmpfs, hugetlbfs). One arena uses it at a time. Other changes to the file change the arena.
    ///
    /// The kernel does not protect devices from writes with userfaultfd. A unit that leaves is therefore hidden while
    /// it is copied: readers and writers wait. This needs Linux 4.11, in addition to what shared arenas need.
    File(PathBuf),
}

impl TierMemory {
    /// Returns whether its units are hidden instead of protected from writes.
    pub(crate) fn is_hidden(&self) -> bool {
        matches!(self, TierMemory::File(_))
    }
}

/// How pages change their tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Mechanism {
    /// Out to a pool with `UFFDIO_MOVE`, a copy by the mover, and in with `UFFDIO_MOVE`.
    ///
    /// Needs Linux 6.8 and a userfaultfd.
    Exchange,
    /// `move_pages(2)`: the kernel copies, with the CPU. Each tier is a NUMA node of its own. The options about copies,
    /// spare memory and old copies have no effect, and forks, fills and huge pages are not counted. A page that the
    /// kernel itself moves to another node, as with automatic balancing, is then on that node's tier.
    ///
    /// A heap uses it by default where the kernel lacks `UFFDIO_MOVE` and each tier is a node.
    MovePages,
    /// Write protection, a copy by the mover, and another mapping in its place: used by [shared
    /// arenas](crate::Heap::shared_arena).
    Remap,
}

/// The options of a heap.
#[derive(Clone, Debug)]
pub struct HeapOptions {
    /// The fastest first; at most [`MAX_TIERS`].
    pub tiers: Vec<TierOptions>,
    /// The tier on which pages are allocated when they are first touched.
    pub home: TierId,
    /// How pages change their tier; none for the best mechanism that the kernel has, see [`Mechanism`].
    pub mechanism: Option<Mechanism>,
    /// Copies the pages, unless the kernel does.
    pub mover: Mover,
    /// The most pages of 4 KiB in flight at once, which determines how long the first of them has to wait. A huge page
    /// counts as 512, and moves alone if that exceeds the limit. Source: the kernel's own limit,
    /// NR_MAX_BATCHED_MIGRATION (Linux, mm/migrate.c).
    pub batch: usize,
    /// Free memory of the home tier that is kept for pages that come back, in bytes.
    pub spare_bytes: u64,
    /// Memory, of all tiers together, for old copies: the originals of small pages that moved to a faster tier. The
    /// default is none. A page that goes back to the tier of its old copy is compared with it and copied only if it was
    /// written since, so that slow memory is read instead of written. The cost is this memory, which a tier that runs
    /// short reclaims, and for written pages a comparison up to the first byte that differs.
    pub shadow_bytes: u64,
    /// How long to retry when the kernel does not let a page back, before the page is given up. Source: chosen; it has
    /// not been seen to take longer than reading an event.
    pub retry_timeout: Duration,
    /// Makes forks by the C library wait until no page is in flight, even if the kernel reports forks. Use it in a
    /// process whose allocator is locked while it forks and is used while pages are in flight. Where the kernel does
    /// not report forks, they wait in any case.
    pub delay_forks: bool,
    /// The kind of memory that shared arenas use on each tier; [`TierMemory::Pages`] for tiers that are not in the
    /// list.
    pub shared_memory: Vec<TierMemory>,
}

impl HeapOptions {
    /// Creates options for these tiers, the fastest first. The last one is the home tier; the CPU copies.
    #[must_use]
    pub fn new(tiers: Vec<TierOptions>) -> HeapOptions {
        let home = TierId(u8::try_from(tiers.len().saturating_sub(1)).unwrap_or(u8::MAX));
        HeapOptions {
            tiers,
            home,
            mechanism: None,
            mover: Mover::cpu(),
            batch: 512,
            spare_bytes: 64 << 20,
            shadow_bytes: 0,
            retry_timeout: Duration::from_secs(5),
            delay_forks: false,
            shared_memory: Vec::new(),
        }
    }

    /// Returns the kind of memory of a tier in shared arenas.
    pub(crate) fn memory(&self, tier: usize) -> &TierMemory {
        self.shared_memory.get(tier).unwrap_or(&TierMemory::Pages)
    }
}
