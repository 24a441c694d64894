//! Memory on several tiers, and pages that change theirs while the program goes on.

use crate::arena::Arena;
use crate::arena::shared::{SharedArena, Units};
use crate::book::Piece;
use crate::config::{HeapOptions, MOST_TIERS, PAGE, TierId};
use crate::error::TierError;
use crate::heat::Advice;
use crate::heat::hints::Hints;
use crate::stats::{Moved, Stats};
use crate::way::{self, Mechanism, Way};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use telpher_mem::PageSize;
use telpher_os::Lineage;

/// The largest batch. Source: chosen, 256 MiB: the first page would wait for some 20 ms.
const MOST_BATCH: usize = 65_536;

/// Memory on several tiers.
///
/// Cheap to clone; every clone is the same heap, which is there until the last [`Arena`] is gone, too.
#[derive(Clone, Debug)]
pub struct Heap {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    options: HeapOptions,
    pub(crate) way: Arc<dyn Way>,
    shared: Mutex<Shared>,
    lineage: Lineage,
    pub(crate) hints: Hints,
}

/// Shared arenas.
#[derive(Debug, Default)]
struct Shared {
    units: Vec<Arc<Units>>,
    moved: Moved,
}

impl Heap {
    /// A heap without memory; see [`Heap::arena`].
    ///
    /// # Errors
    /// [`TierError`]: the options make no sense, or the system refuses what moving pages wants.
    pub fn new(options: HeapOptions) -> Result<Heap, TierError> {
        let (tiers, batch) = (options.tiers.len(), options.batch);
        if !(2..=MOST_TIERS).contains(&tiers) || options.home.index() >= tiers || !(1..=MOST_BATCH).contains(&batch) {
            return Err(TierError::Options { tiers, home: options.home.0, batch });
        }
        let given = options.shared_memory.len();
        if given > tiers {
            return Err(TierError::SharedMemory { given, tiers });
        }
        let way = way::open(&options)?;
        Ok(Heap::by(options, way))
    }

    pub(crate) fn by(options: HeapOptions, way: Arc<dyn Way>) -> Heap {
        Heap {
            inner: Arc::new(Inner {
                options,
                way,
                shared: Mutex::default(),
                lineage: Lineage::current(),
                hints: Hints::default(),
            }),
        }
    }

    /// By which mechanism its pages change their tier; those of [shared arenas](Heap::shared_arena) do by [`Mechanism::Remap`].
    #[must_use]
    pub fn mechanism(&self) -> Mechanism {
        self.inner.way.mechanism()
    }

    /// What it was made of.
    #[must_use]
    pub fn options(&self) -> &HeapOptions {
        &self.inner.options
    }

    /// Zeroed memory of this heap, rounded up to 2 MiB, on the home tier: small pages as they are touched, huge ones at once, as far as the system
    /// has any.
    ///
    /// # Errors
    /// [`TierError`]: the system refuses it, or there are too many pieces of memory.
    pub fn arena(&self, len: usize, pages: PageSize) -> Result<Arena, TierError> {
        Arena::new(&self.inner, len, pages)
    }

    /// Zeroed memory of files, rounded up to 2 MiB, all of it there at once on the home tier, for what cannot be private: see what it does not
    /// stand at [`SharedArena`]. It is moved in units of 2 MiB, those that lie in a range whole, and may take as much of each tier as the rest
    /// of the heap, once more.
    ///
    /// # Errors
    /// [`TierError`]: the system refuses it, or cannot protect memory of files from writes (Linux 5.19).
    pub fn shared_arena(&self, len: usize) -> Result<SharedArena, TierError> {
        SharedArena::new(&self.inner, len)
    }

    /// Moves the pages of a range to a tier, as many as can be, and tells what became of each that is there. Bytes and addresses stay what they
    /// are; whoever touches a page on its way waits.
    ///
    /// # Errors
    /// [`TierError`]: no such tier, or this is a forked child.
    pub fn migrate(&self, range: Range<u64>, to: TierId) -> Result<Moved, TierError> {
        self.inner.is_ours()?;
        let tiers = self.inner.options.tiers.len();
        if to.index() >= tiers {
            return Err(TierError::NoSuchTier { tier: to.0, tiers });
        }
        let (mut moved, mut shared) = (Moved::default(), Moved::default());
        for (part, units) in self.inner.parts(range) {
            match units {
                None => moved.add(self.inner.way.migrate(part, to)?),
                Some(units) => shared.add(units.migrate(&part, to)),
            }
        }
        self.inner.shared().moved.add(shared);
        moved.add(shared);
        Ok(moved)
    }

    /// Pages of 4 KiB in a range that are on each tier; those that nobody has touched are on none.
    ///
    /// # Errors
    /// [`TierError`]: the page tables cannot be asked.
    pub fn residency(&self, range: Range<u64>) -> Result<Vec<u64>, TierError> {
        self.inner.is_ours()?;
        let mut on = vec![0; self.inner.options.tiers.len()];
        for (part, units) in self.inner.parts(range) {
            match units {
                None => {
                    let pages = self.inner.way.residency(part)?;
                    on.iter_mut().zip(pages).for_each(|(on, pages)| *on += pages);
                }
                Some(units) => units.residency(&part, &mut on),
            }
        }
        Ok(on)
    }

    /// The addresses of its memory, in order: of arenas and of what was taken over, without [shared arenas](Heap::shared_arena). Neighbours may be
    /// one piece or several. **Staleness**: mappings come and go meanwhile.
    #[must_use]
    pub fn ranges(&self) -> Vec<Range<u64>> {
        self.inner.way.pieces().into_iter().map(|piece| piece.range).collect()
    }

    /// Says what the program knows of some of its memory, for a [`Manager`](crate::Manager) that there is or will be. Nothing moves before that.
    /// What is said of memory that is not the heap's when a manager hears it is forgotten, and what is said later overrides what was said before.
    ///
    /// # Errors
    /// [`TierError`]: no such tier, this is a forked child, or so much has been said that no manager has heard that there is no room for more.
    pub fn advise(&self, range: Range<u64>, advice: Advice) -> Result<(), TierError> {
        self.inner.is_ours()?;
        let tiers = self.inner.options.tiers.len();
        match advice {
            Advice::Pin(tier) if tier.index() >= tiers => Err(TierError::NoSuchTier { tier: tier.0, tiers }),
            _ if self.inner.hints.say(range, advice) => Ok(()),
            _ => Err(TierError::TooMuchAdvice),
        }
    }

    /// The process that traces this one with `ptrace`, if any. As long as there is one nothing moves ([`Left::held`](crate::Left::held)), because what a
    /// tracer reads of a page that is out is an error. **When this returns a process, no page is out, and none goes out until the tracer has left.**
    ///
    /// A heap asks the kernel by itself before it takes pages out, at most once a millisecond. A tracer that stops all threads of the process at once
    /// may stop them while pages are out: call [`hold`](Heap::hold) before it attaches. Always none with [`Mechanism::MovePages`], with which every
    /// reader waits, and in a forked child. [Shared arenas](Heap::shared_arena) are not held in place.
    #[must_use]
    pub fn tracer(&self) -> Option<u32> {
        self.inner.is_ours().ok().and_then(|()| self.inner.way.tracer())
    }

    /// Keeps all pages where they are (`true`) until it is called again (`false`): nothing is moved or trapped. When it returns, every page is where the
    /// program has it, and can be read by debuggers, checkpoint tools and readers of `/proc/PID/mem`. Shared arenas are not held.
    ///
    /// # Errors
    /// [`TierError`]: this is a forked child.
    pub fn hold(&self, holds: bool) -> Result<(), TierError> {
        self.inner.is_ours()?;
        self.inner.way.hold(holds);
        Ok(())
    }

    /// What it has done. **Staleness**: each number is right for some moment during the call.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.inner.way.stats();
        stats.moved.add(self.inner.shared().moved);
        stats
    }

    /// Free pages of 4 KiB that the heap keeps of each tier.
    #[must_use]
    pub fn free(&self) -> Vec<u64> {
        self.inner.way.free()
    }

    /// Pages of 4 KiB of each tier that are old copies; see [`HeapOptions::shadow_bytes`].
    #[must_use]
    pub fn shadows(&self) -> Vec<u64> {
        self.inner.way.shadows()
    }
}

impl Inner {
    /// This process made it.
    pub(crate) fn is_ours(&self) -> Result<(), TierError> {
        if self.lineage.is_current() { Ok(()) } else { Err(TierError::Forked) }
    }

    pub(crate) fn options(&self) -> &HeapOptions {
        &self.options
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        // Nothing in there is halfway at any time.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A shared arena is there from now on.
    pub(crate) fn has_shared(&self, units: &Arc<Units>) {
        self.shared().units.push(Arc::clone(units));
    }

    /// It is not any more.
    pub(crate) fn has_no_more(&self, units: &Arc<Units>) {
        // Dropped without the lock.
        let mut shared = self.shared();
        let at = shared.units.iter().position(|other| Arc::ptr_eq(other, units));
        let gone = at.map(|at| shared.units.swap_remove(at));
        drop(shared);
        drop(gone);
    }

    /// Parts of a range: of shared arenas, and what lies between.
    fn parts(&self, range: Range<u64>) -> Vec<(Range<u64>, Option<Arc<Units>>)> {
        let mut shared = self.shared().units.clone();
        shared.sort_unstable_by_key(|units| units.range().start);
        let (mut parts, mut at) = (Vec::new(), range.start);
        for units in shared {
            let part = units.range().start.max(at)..units.range().end.min(range.end);
            if part.start < part.end {
                parts.push((at..part.start, None));
                at = part.end;
                parts.push((part, Some(units)));
            }
        }
        parts.push((at..range.end, None));
        parts.retain(|(part, _)| part.start < part.end);
        parts
    }

    /// Its memory, in order, and what each piece is of: shared arenas among it.
    pub(crate) fn pieces(&self) -> Vec<Piece> {
        /// What is of a shared arena: no other number is as large.
        const SHARED: u64 = 1 << 63;
        let mut pieces = self.way.pieces();
        let shared = self.shared().units.clone();
        pieces.extend(shared.iter().map(|units| {
            let range = units.range();
            Piece { of: SHARED | range.start, range, first: 0 }
        }));
        pieces.sort_unstable_by_key(|piece| piece.range.start);
        pieces
    }

    /// The tiers of pages from the first on, as [`Way::tiers`] has them (also [`ALOFT`](crate::book::ALOFT)), with [`WHOLE`](crate::heat::WHOLE) where they move together.
    pub(crate) fn tiers(&self, first: u64, tiers: &mut [u8]) -> std::io::Result<()> {
        let all = first..first + tiers.len() as u64 * PAGE;
        let place = |address: u64| usize::try_from((address - first) / PAGE).expect("in the row");
        for (part, units) in self.parts(all) {
            let tiers = &mut tiers[place(part.start)..place(part.end)];
            match units {
                None => self.way.tiers(part.start, tiers)?,
                Some(units) => units.tiers(&part, tiers),
            }
        }
        Ok(())
    }

    pub(crate) fn home_node(&self) -> Option<u32> {
        self.options.tiers[self.options.home.index()].node
    }
}

impl Moved {
    /// Nothing of it is left out: pages that moved and pages that stayed.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.pages + self.left.all()
    }
}
