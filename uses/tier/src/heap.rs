//! Memory on several tiers, whose pages change their tier while the program runs.

use crate::arena::shared::Units;
use crate::config::{HeapOptions, MAX_TIERS, Mechanism, PAGE, TierId};
use crate::error::TierError;
use crate::heat::Advice;
use crate::heat::hints::Hints;
use crate::mechanism::Backend;
use crate::mechanism::move_pages::MovePages;
use crate::mechanism::userfault_move::UserfaultMove;
use crate::page_map::RegionPart;
use crate::stats::{Moved, Stats};
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use telpher_os::{Lineage, UserfaultError};

/// The largest batch. Source: chosen, 256 MiB: the first page would wait for some 20 ms.
const MOST_BATCH: usize = 65_536;

/// Memory on several tiers.
///
/// Cloning is cheap and yields the same heap. The heap lives until its last clone and its last [`Arena`](crate::Arena)
/// are dropped.
#[derive(Clone, Debug)]
pub struct Heap {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    options: HeapOptions,
    pub(crate) backend: Arc<dyn Backend>,
    shared: Mutex<Shared>,
    lineage: Lineage,
    pub(crate) hints: Hints,
}

/// The heap's shared arenas.
#[derive(Debug, Default)]
struct Shared {
    units: Vec<Arc<Units>>,
    moved: Moved,
}

impl Heap {
    /// Creates a heap without memory; see [`Heap::arena`].
    ///
    /// # Errors
    /// [`TierError`]: invalid options, or the system refuses what the mechanism needs.
    pub fn new(options: HeapOptions) -> Result<Heap, TierError> {
        let (tiers, batch) = (options.tiers.len(), options.batch);
        if !(2..=MAX_TIERS).contains(&tiers) || options.home.index() >= tiers || !(1..=MOST_BATCH).contains(&batch) {
            return Err(TierError::Options { tiers, home: options.home.0, batch });
        }
        let given = options.shared_memory.len();
        if given > tiers {
            return Err(TierError::SharedMemory { given, tiers });
        }
        let backend = open_backend(&options)?;
        Ok(Heap::by(options, backend))
    }

    pub(crate) fn by(options: HeapOptions, backend: Arc<dyn Backend>) -> Heap {
        Heap {
            inner: Arc::new(Inner {
                options,
                backend,
                shared: Mutex::default(),
                lineage: Lineage::current(),
                hints: Hints::default(),
            }),
        }
    }

    /// Returns how its pages change their tier. [Shared arenas](Heap::shared_arena) always use [`Mechanism::Remap`].
    #[must_use]
    pub fn mechanism(&self) -> Mechanism {
        self.inner.backend.mechanism()
    }

    /// Returns the options it was created with.
    #[must_use]
    pub fn options(&self) -> &HeapOptions {
        &self.inner.options
    }

    /// Moves the pages of a range to a tier, as many as possible, and returns what became of each present page. Bytes
    /// and addresses do not change; a thread that touches a page in flight waits.
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
                None => moved += self.inner.backend.migrate(part, to)?,
                Some(units) => shared += units.migrate(&part, to),
            }
        }
        self.inner.shared().moved += shared;
        moved += shared;
        Ok(moved)
    }

    /// Returns the number of pages of 4 KiB in a range on each tier; pages that were never touched are on none.
    ///
    /// # Errors
    /// [`TierError`]: the page tables cannot be read, or this is a forked child.
    pub fn residency(&self, range: Range<u64>) -> Result<Vec<u64>, TierError> {
        self.inner.is_ours()?;
        let mut on = vec![0; self.inner.options.tiers.len()];
        for (part, units) in self.inner.parts(range) {
            match units {
                None => {
                    let pages = self.inner.backend.residency(part)?;
                    on.iter_mut().zip(pages).for_each(|(on, pages)| *on += pages);
                }
                Some(units) => units.residency(&part, &mut on),
            }
        }
        Ok(on)
    }

    /// Returns the addresses of its memory in order: arenas and adopted ranges, without [shared
    /// arenas](Heap::shared_arena). Adjacent memory may be one range or several. **Staleness**: mappings come and go
    /// meanwhile.
    #[must_use]
    pub fn ranges(&self) -> Vec<Range<u64>> {
        self.inner.backend.region_parts().into_iter().map(|region_part| region_part.range).collect()
    }

    /// Gives advice about a part of the memory to the [`Manager`](crate::Manager), present or future. Nothing moves
    /// before the manager has read it. It ignores advice for memory that is not the heap's at that time. Later advice
    /// overrides earlier advice.
    ///
    /// # Errors
    /// [`TierError`]: no such tier, this is a forked child, or too much advice is waiting for a manager.
    pub fn advise(&self, range: Range<u64>, advice: Advice) -> Result<(), TierError> {
        self.inner.is_ours()?;
        let tiers = self.inner.options.tiers.len();
        match advice {
            Advice::Pin(tier) if tier.index() >= tiers => Err(TierError::NoSuchTier { tier: tier.0, tiers }),
            _ if self.inner.hints.say(range, advice) => Ok(()),
            _ => Err(TierError::TooMuchAdvice),
        }
    }

    /// Returns the process that traces this one with `ptrace`, if any. While there is one, nothing moves
    /// ([`Unmoved::held`](crate::Unmoved::held)), because a tracer cannot read a page that is out. **When this returns
    /// a process, no page is out, and none goes out until the tracer has left.**
    ///
    /// A heap makes this check itself before it takes pages out, at most once a millisecond. A tracer that stops all
    /// threads of the process at once may stop them while pages are out: call [`hold`](Heap::hold) before it attaches.
    /// Returns none with [`Mechanism::MovePages`], with which every reader waits, and in a forked child. [Shared
    /// arenas](Heap::shared_arena) are not held in place.
    #[must_use]
    pub fn tracer(&self) -> Option<u32> {
        self.inner.is_ours().ok().and_then(|()| self.inner.backend.tracer())
    }

    /// Keeps all pages where they are (`true`) until it is called again (`false`): nothing is moved or trapped. When it
    /// returns, every page is present in the program and can be read by debuggers, checkpoint tools and readers of
    /// `/proc/PID/mem`. Shared arenas are not held.
    ///
    /// # Errors
    /// [`TierError`]: this is a forked child.
    pub fn hold(&self, holds: bool) -> Result<(), TierError> {
        self.inner.is_ours()?;
        self.inner.backend.hold(holds);
        Ok(())
    }

    /// Returns what the heap has done. **Staleness**: each number is right for some moment during the call.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = self.inner.backend.stats();
        stats.moved += self.inner.shared().moved;
        stats
    }

    /// Returns the free pages of 4 KiB that the heap keeps of each tier.
    #[must_use]
    pub fn free(&self) -> Vec<u64> {
        self.inner.backend.free()
    }

    /// Returns the pages of 4 KiB of each tier that are old copies; see [`HeapOptions::shadow_bytes`].
    #[must_use]
    pub fn shadows(&self) -> Vec<u64> {
        self.inner.backend.shadows()
    }
}

impl Inner {
    /// Fails in a forked child.
    pub(crate) fn is_ours(&self) -> Result<(), TierError> {
        if self.lineage.is_current() { Ok(()) } else { Err(TierError::Forked) }
    }

    pub(crate) fn options(&self) -> &HeapOptions {
        &self.options
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        // No change leaves the data inconsistent.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a shared arena.
    pub(crate) fn has_shared(&self, units: &Arc<Units>) {
        self.shared().units.push(Arc::clone(units));
    }

    /// Removes a shared arena.
    pub(crate) fn has_no_more(&self, units: &Arc<Units>) {
        // Dropped after releasing the lock.
        let mut shared = self.shared();
        let at = shared.units.iter().position(|other| Arc::ptr_eq(other, units));
        let gone = at.map(|at| shared.units.swap_remove(at));
        drop(shared);
        drop(gone);
    }

    /// Splits a range into parts of shared arenas and the rest between them.
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

    /// Returns its memory in address order, with shared arenas.
    pub(crate) fn region_parts(&self) -> Vec<RegionPart> {
        /// PageSet the numbers of shared arenas; no other region number is this large.
        const SHARED: u64 = 1 << 63;
        let mut region_parts = self.backend.region_parts();
        let shared = self.shared().units.clone();
        region_parts.extend(shared.iter().map(|units| {
            let range = units.range();
            RegionPart { region: SHARED | range.start, range, first: 0 }
        }));
        region_parts.sort_unstable_by_key(|region_part| region_part.range.start);
        region_parts
    }

    /// Writes the tiers of the pages from `first` on, as [`Backend::tiers`] does (with
    /// [`IN_FLIGHT`](crate::page_map::IN_FLIGHT)), and adds [`WHOLE`](crate::heat::WHOLE) where pages move together.
    pub(crate) fn tiers(&self, first: u64, tiers: &mut [u8]) -> std::io::Result<()> {
        let all = first..first + tiers.len() as u64 * PAGE;
        let index = |address: u64| usize::try_from((address - first) / PAGE).expect("within `tiers`");
        for (part, units) in self.parts(all) {
            let tiers = &mut tiers[index(part.start)..index(part.end)];
            match units {
                None => self.backend.tiers(part.start, tiers)?,
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
    /// Returns all pages: those that moved and those that stayed.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.pages + self.left.all()
    }
}

/// Opens the mechanism that these options request.
///
/// # Errors
/// [`TierError`]: the system refuses what it needs.
fn open_backend(options: &HeapOptions) -> Result<Arc<dyn Backend>, TierError> {
    match options.mechanism {
        Some(Mechanism::Exchange) => Ok(Arc::new(UserfaultMove::new(options)?)),
        Some(Mechanism::Remap) => Err(TierError::OnlyShared),
        Some(Mechanism::MovePages) => Ok(Arc::new(MovePages::new(options)?)),
        None => match UserfaultMove::new(options) {
            Ok(mechanism) => Ok(Arc::new(mechanism)),
            Err(error) if is_too_old(&error) => match MovePages::new(options) {
                Ok(by_kernel) => Ok(Arc::new(by_kernel)),
                // Not every tier is a node, so the error for the newer mechanism is the useful one.
                Err(TierError::Nodes) => Err(error),
                Err(refused) => Err(refused),
            },
            Err(error) => Err(error),
        },
    }
}

/// Returns whether the kernel lacks a feature. A missing permission is another error, whose message says how to change
/// it.
fn is_too_old(error: &TierError) -> bool {
    match error {
        TierError::Userfault(why) => matches!(why, UserfaultError::None(_) | UserfaultError::Lacks(_)),
        TierError::Scan(why) => why.kind() == ErrorKind::Unsupported,
        _ => false,
    }
}
