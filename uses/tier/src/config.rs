//! What a heap is made of.

use crate::way::Mechanism;
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

/// The most tiers of a heap.
pub const MOST_TIERS: usize = 8;

/// Which of a heap's tiers: its place in [`HeapOptions::tiers`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct TierId(pub u8);

impl TierId {
    pub(crate) fn index(self) -> usize {
        self.0.into()
    }
}

/// One kind of memory.
#[derive(Clone, Debug)]
pub struct TierOptions {
    /// What people call it.
    pub name: String,
    /// The NUMA node its pages are on; none for wherever the system has some, as on a machine with one node.
    pub node: Option<u32>,
    /// The most memory the heap takes of it: its pages there, and free ones that are kept for pages to come. The home tier, where pages are
    /// when they are touched first, has no bound of the heap's.
    pub bytes: u64,
}

/// What a tier's memory is made of in [shared arenas](crate::Heap::shared_arena).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum TierMemory {
    /// Pages of the system's, on the tier's node.
    #[default]
    Pages,
    /// Huge pages that the system has reserved (hugetlb, `vm.nr_hugepages`), 2 MiB each, on the tier's node. An arena takes all it may have at once,
    /// and keeps it.
    HugePages,
    /// A device of memory (device-DAX, such as `/dev/dax0.0`: CXL memory that is no node, on whichever node it is), with pages of 2 MiB, or a
    /// file in memory (tmpfs, hugetlbfs). One arena has it at a time. Who changes it otherwise, changes the arena.
    ///
    /// The kernel does not protect devices from writes by userfaultfd. So a unit that leaves is hidden while it is copied: whoever reads
    /// or writes it waits. Linux 4.11, beside what shared arenas want.
    File(PathBuf),
}

impl TierMemory {
    /// It is not protected from writes, but hidden.
    pub(crate) fn is_hidden(&self) -> bool {
        matches!(self, TierMemory::File(_))
    }
}

/// What a heap is made of.
#[derive(Clone, Debug)]
pub struct HeapOptions {
    /// The fastest first; at most [`MOST_TIERS`].
    pub tiers: Vec<TierOptions>,
    /// The tier whose memory pages have when they are touched first.
    pub home: TierId,
    /// By which mechanism pages change their tier; none for the best that the kernel has, see [`Mechanism`].
    pub mechanism: Option<Mechanism>,
    /// Who copies, where the kernel does not.
    pub mover: Mover,
    /// The most pages of 4 KiB that are on their way at once, which is how long the first of them has to wait. A huge page counts as the
    /// 512 it is of, and goes by itself if that is more than this. Source: the kernel's own most, NR_MAX_BATCHED_MIGRATION (Linux, mm/migrate.c).
    pub batch: usize,
    /// Free memory of the home tier that is kept for pages that come back.
    pub spare_bytes: u64,
    /// Memory, of all tiers together, that keeps what small pages were copied from when they went to a faster tier; none unless asked for.
    /// A page that goes back to the tier of its old copy is compared with it, and only copied if it was written since, so that slow memory is
    /// read instead of written. It costs this memory, which a tier that runs short takes back, and a comparison in vain, up to the first byte
    /// that differs, for pages that were written.
    pub shadow_bytes: u64,
    /// How long a page that the kernel does not let back to its place is tried again before it is given up. Source: chosen; it has not been
    /// seen to take longer than an event takes to be read.
    pub patience: Duration,
    /// Forks by the C library wait until nothing is on its way, also where the kernel tells of them: for a process whose allocator is locked while it forks,
    /// and is asked for memory while pages are on their way. They wait for each other in any case where the kernel does not tell.
    pub holds_forks: bool,
    /// What shared arenas have of each tier; [`TierMemory::Pages`] of those that are not in the list.
    pub shared_memory: Vec<TierMemory>,
}

impl HeapOptions {
    /// These tiers, the fastest first, with the last as home; copies by the CPU.
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
            patience: Duration::from_secs(5),
            holds_forks: false,
            shared_memory: Vec::new(),
        }
    }

    /// What shared arenas have of a tier.
    pub(crate) fn memory(&self, tier: usize) -> &TierMemory {
        self.shared_memory.get(tier).unwrap_or(&TierMemory::Pages)
    }
}
