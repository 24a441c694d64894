//! Verdicts that threads share: one bit for each step of sizes, and one that says whether it is settled.

use crate::sync::{AtomicU64, Ordering};

/// The verdicts of one kind of operation. Bit *n* belongs to step *n*.
#[derive(Debug)]
pub(crate) struct Marks {
    /// A device does it.
    device: AtomicU64,
    /// Enough is known.
    settled: AtomicU64,
}

impl Marks {
    /// Unsettled verdicts to begin with.
    pub(crate) fn new(device: u64) -> Self {
        Marks { device: AtomicU64::new(device), settled: AtomicU64::new(0) }
    }

    /// True if a device does step `at`.
    ///
    /// **Staleness**: a verdict of a moment ago is as good a guess as one of now.
    #[inline]
    pub(crate) fn is_device(&self, at: usize) -> bool {
        // Relaxed: nothing lies behind a verdict but the verdict.
        self.device.load(Ordering::Relaxed) >> at & 1 == 1
    }

    /// The first step that a device does.
    ///
    /// **Staleness**: as for `is_device`.
    pub(crate) fn first(&self) -> Option<usize> {
        // Relaxed: see `is_device`. Below 64, so it fits.
        let device = self.device.load(Ordering::Relaxed);
        (device != 0).then_some(device.trailing_zeros() as usize)
    }

    /// True if nobody need look at step `at` but now and then.
    #[inline]
    pub(crate) fn is_settled(&self, at: usize) -> bool {
        // Relaxed: a verdict not yet seen misleads one operation, and the next one sees it.
        self.settled.load(Ordering::Relaxed) >> at & 1 == 1
    }

    /// The verdict of step `at`. Others' steps stay as they are, whoever sets them meanwhile. A look that changes nothing
    /// writes nothing, so that the line stays shared by all who read it.
    pub(crate) fn set(&self, at: usize, device: bool, settled: bool) {
        put(&self.device, at, device);
        put(&self.settled, at, settled);
    }
}

/// One bit, whatever others do to the rest of the word.
fn put(word: &AtomicU64, at: usize, bit: bool) {
    // Relaxed (all): the bit is all there is to see; that no other bit is lost is what makes it a read-modify-write.
    if (word.load(Ordering::Relaxed) >> at & 1 == 1) == bit {
        return;
    }
    if bit {
        word.fetch_or(1 << at, Ordering::Relaxed);
    } else {
        word.fetch_and(!(1 << at), Ordering::Relaxed);
    }
}
