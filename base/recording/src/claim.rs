//! Claims of entries of a table, by one atomic addition each.

use crate::sync::{AtomicU64, Ordering};

/// Claims the next entry of a table of `limit` entries. `None` if all are claimed.
///
/// The counter may exceed the limit by the number of threads that claim at the same time.
pub(crate) fn claim(claimed: &AtomicU64, limit: usize) -> Option<usize> {
    // Relaxed here and below: the number is all that is passed on. Without this look, a full table would be counted
    // without end.
    if claimed.load(Ordering::Relaxed) >= limit as u64 {
        return None;
    }
    let index = usize::try_from(claimed.fetch_add(1, Ordering::Relaxed)).ok()?;
    (index < limit).then_some(index)
}
