//! Verdicts that threads share, one bit for each size step: whether a device does it, and whether the verdict is
//! settled.

use crate::sync::{AtomicU64, Ordering};

/// The verdicts for one kind of operation. Bit *n* belongs to step *n*.
#[derive(Debug)]
pub(crate) struct VerdictBits {
    /// A device does it.
    device: AtomicU64,
    /// The verdict is settled.
    settled: AtomicU64,
}

impl VerdictBits {
    /// Unsettled verdicts with these initial device bits.
    pub(crate) fn new(device: u64) -> Self {
        VerdictBits { device: AtomicU64::new(device), settled: AtomicU64::new(0) }
    }

    /// Returns true if a device does step `at`.
    ///
    /// **Staleness**: another thread may change the verdict; an old one is as good a guess as a new one.
    #[inline]
    pub(crate) fn is_device(&self, at: usize) -> bool {
        // Relaxed: no other memory depends on the verdict.
        self.device.load(Ordering::Relaxed) >> at & 1 == 1
    }

    /// Returns the first step that a device does.
    ///
    /// **Staleness**: as for `is_device`.
    pub(crate) fn first(&self) -> Option<usize> {
        // Relaxed: see `is_device`. Below 64, so it fits.
        let device = self.device.load(Ordering::Relaxed);
        (device != 0).then_some(device.trailing_zeros() as usize)
    }

    /// Returns true if step `at` needs only an occasional sample.
    #[inline]
    pub(crate) fn is_settled(&self, at: usize) -> bool {
        // Relaxed: a verdict not yet seen misdirects one operation, and the next operation sees it.
        self.settled.load(Ordering::Relaxed) >> at & 1 == 1
    }

    /// Sets the verdict of step `at`. The bits of other steps stay as they are, even if other threads set them
    /// meanwhile. A call that changes nothing writes nothing, so the cache line stays shared by all readers.
    pub(crate) fn set(&self, at: usize, device: bool, settled: bool) {
        put(&self.device, at, device);
        put(&self.settled, at, settled);
    }
}

/// Sets one bit; concurrent changes of other bits of the word are kept.
fn put(word: &AtomicU64, at: usize, bit: bool) {
    // Relaxed (all): only the bit itself matters. The read-modify-write ensures that no other bit is lost.
    if (word.load(Ordering::Relaxed) >> at & 1 == 1) == bit {
        return;
    }
    if bit {
        word.fetch_or(1 << at, Ordering::Relaxed);
    } else {
        word.fetch_and(!(1 << at), Ordering::Relaxed);
    }
}
