//! The ways in which pages change their tier, and which of them a heap goes.

use crate::by_kernel::ByKernel;
use crate::config::{HeapOptions, PAGE, TierId};
use crate::error::TierError;
use crate::pooled::Pooled;
use crate::stats::{Moved, Stats};
use std::fmt::Debug;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;
use telpher_mem::UserfaultError;

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
    fn adopt(&self, range: Range<u64>) -> Result<(), TierError>;

    /// Lets a range go, whose owner unmaps it.
    fn release(&self, range: &Range<u64>);

    /// Moves the pages of a range to a tier, as many as can be.
    fn migrate(&self, range: Range<u64>, to: TierId) -> Result<Moved, TierError>;

    /// Pages of a range that are on each tier.
    fn residency(&self, range: Range<u64>) -> Result<Vec<u64>, TierError>;

    /// What it has done.
    fn stats(&self) -> Stats;

    /// Free pages that are kept of each tier.
    fn free(&self) -> Vec<u64>;

    /// Old copies that are kept of each tier.
    fn shadows(&self) -> Vec<u64>;
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
            Err(error) if is_too_old(&error) => Ok(Arc::new(ByKernel::new(options).map_err(|_| error)?)),
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
