//! The ways in which pages change their tier, and which of them a heap goes.

use crate::book::Piece;
use crate::by_kernel::ByKernel;
use crate::config::{HeapOptions, PAGE, TierId};
use crate::error::TierError;
use crate::marks::Marks;
use crate::pooled::Pooled;
use crate::stats::{Moved, Stats};
use crate::traps::{Trap, TrapCost};
use std::fmt::Debug;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use telpher_os::UserfaultError;

/// By which mechanism pages change their tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Mechanism {
    /// Out to a pool with `UFFDIO_MOVE`, a copy of the mover's, and in with `UFFDIO_MOVE`.
    ///
    /// Wants Linux 6.8 and a userfaultfd.
    Exchange,
    /// `move_pages(2)`: the kernel copies, by the CPU. Each tier is a NUMA node of its own. What the options say of copies, spare memory and old
    /// copies is without meaning, nothing is told of forks, fills and huge pages, and a page that the kernel itself moves to another
    /// node, as with automatic balancing, is on that node's tier.
    ///
    /// What a heap does by itself where the kernel has not the other and each tier is a node.
    MovePages,
    /// Protection from writes, a copy of the mover's, and another mapping in its place: what [shared arenas](crate::Heap::shared_arena) have.
    Remap,
}

/// One way in which pages change their tier. Its callers have made sure that this process is the heap's, and that a tier they name is one.
pub(crate) trait Way: Debug + Send + Sync {
    /// Which it is.
    fn mechanism(&self) -> Mechanism;

    /// Takes a range over, whose pages are all on the home tier.
    ///
    /// Somebody else's lies in `room`, in which there was nothing else when he looked: a mapping may have grown since, and must not be cut in two, or
    /// gone. What has none is an arena's, and stays what it is.
    fn adopt(&self, range: Range<u64>, room: Option<Range<u64>>) -> Result<(), TierError>;

    /// Lets a range go: its pages stay where they are.
    fn release(&self, range: &Range<u64>);

    /// What it has taken over and not let go, in order; neighbours may be one piece or several.
    fn pieces(&self) -> Vec<Piece>;

    /// The tiers of pages from the first on that are there; [`NO_TIER`](crate::heat::NO_TIER) for others, and for those that may not be moved;
    /// [`ALOFT`](crate::book::ALOFT) for those that are out, of which holds what was said before.
    fn tiers(&self, first: u64, tiers: &mut [u8]) -> io::Result<()>;

    /// What looks at its pages by itself; none if it cannot.
    fn watch(&self) -> Option<&dyn Watch> {
        None
    }

    /// What takes its pages out to see who touches them; none if it cannot.
    fn traps(&self) -> Option<&dyn Trapping> {
        None
    }

    /// Moves the pages of a range to a tier, as many as can be.
    fn migrate(&self, range: Range<u64>, to: TierId) -> Result<Moved, TierError>;

    /// Pages of a range that are on each tier.
    fn residency(&self, range: Range<u64>) -> Result<Vec<u64>, TierError>;

    /// The process that traces this one, if pages are held in place because of it; then nothing is out.
    fn tracer(&self) -> Option<u32> {
        None
    }

    /// Takes nothing out as long as it holds; what is out is back when this returns.
    fn hold(&self, holds: bool);

    /// What it has done.
    fn stats(&self) -> Stats;

    /// Free pages that are kept of each tier.
    fn free(&self) -> Vec<u64>;

    /// Old copies that are kept of each tier.
    fn shadows(&self) -> Vec<u64>;
}

/// Looks at pages of a heap by the same means by which they move.
pub(crate) trait Watch {
    /// Begins to track writes to the small pages of a window of at most 2 MiB, which takes the place of the one before. Gives those that are tracked.
    fn track(&self, window: &Range<u64>) -> io::Result<Marks>;

    /// Those of the window that were written since, and those that were moved, of which nothing is known.
    fn written(&self, window: &Range<u64>) -> io::Result<(Marks, Marks)>;

    /// Ends it.
    fn untrack(&self, window: &Range<u64>);
}

/// Neighbouring pages, one of which was drawn by lot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Drawn {
    /// Their addresses.
    pub(crate) pages: Range<u64>,
    /// The first is the one. A huge page is trapped if that is a part of it; small pages are for their neighbours' sake, too.
    pub(crate) first: bool,
}

/// Takes pages of a heap out for a while, to be told of who touches them.
pub(crate) trait Trapping {
    /// Gets what it takes, once.
    ///
    /// # Errors
    /// [`TierError`]: the system's refusal.
    fn begin(&self) -> Result<(), TierError>;

    /// Sets a lot: of these pages those that are there and may be moved. Returns how many small ones those are; none if a lot is set.
    fn set(&self, drawn: &[Drawn]) -> io::Result<u64>;

    /// Ends the lot: what nobody has touched comes back, and what became of each is told.
    fn end(&self, each: &mut dyn FnMut(&Trap));

    /// What it has cost others than those who call this.
    fn cost(&self) -> TrapCost;

    /// How long a touch takes, measured now and here. None while a lot is set, or if it cannot be told now.
    fn time_touch(&self) -> Option<Duration>;
}

/// The way that these options ask for.
///
/// # Errors
/// [`TierError`]: the system refuses what it wants.
pub(crate) fn open(options: &HeapOptions) -> Result<Arc<dyn Way>, TierError> {
    match options.mechanism {
        Some(Mechanism::Exchange) => Ok(Arc::new(Pooled::new(options)?)),
        Some(Mechanism::Remap) => Err(TierError::OnlyShared),
        Some(Mechanism::MovePages) => Ok(Arc::new(ByKernel::new(options)?)),
        None => match Pooled::new(options) {
            Ok(pooled) => Ok(Arc::new(pooled)),
            Err(error) if is_too_old(&error) => match ByKernel::new(options) {
                Ok(by_kernel) => Ok(Arc::new(by_kernel)),
                // Not every tier is a node: a newer kernel would do, too.
                Err(TierError::Nodes) => Err(error),
                Err(refused) => Err(refused),
            },
            Err(error) => Err(error),
        },
    }
}

/// The kernel has not what it takes. That this user may not have it is another matter, which he is told how to change.
fn is_too_old(error: &TierError) -> bool {
    match error {
        TierError::Userfault(why) => matches!(why, UserfaultError::None(_) | UserfaultError::Lacks(_)),
        TierError::Scan(why) => why.kind() == ErrorKind::Unsupported,
        _ => false,
    }
}

/// The pages that begin and end in a range.
pub(crate) fn whole_pages(range: &Range<u64>) -> Range<u64> {
    let end = range.end - range.end % PAGE;
    range.start.next_multiple_of(PAGE).min(end)..end
}
