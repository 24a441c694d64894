//! The ways in which pages change their tier, and which of them a heap goes.

use crate::config::{HeapOptions, PAGE, TierId};
use crate::error::TierError;
use crate::pooled::Pooled;
use crate::stats::{Moved, Stats};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

/// By which mechanism pages change their tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Mechanism {
    /// Out to a pool with `UFFDIO_MOVE`, a copy of the mover's, and in with `UFFDIO_MOVE`.
    Exchange,
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
    Ok(Arc::new(Pooled::new(options)?))
}

/// The pages that begin and end in a range.
pub(crate) fn whole_pages(range: &Range<u64>) -> Range<u64> {
    let end = range.end - range.end % PAGE;
    range.start.next_multiple_of(PAGE).min(end)..end
}
