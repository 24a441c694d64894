//! Which thread of a forked child opens its device, or creates its recording.

use crate::sync::{AtomicU32, Ordering};

/// The process in which the device was opened last, or is being opened. A forked child inherits its parent's value, so
/// that each process opens once. (A recording is created once in each memory: there the value is not inherited.)
#[derive(Debug)]
pub(crate) struct Opening(AtomicU32);

impl Opening {
    /// No process has opened its device by this.
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Opening {
        Opening(AtomicU32::new(0))
    }

    /// No process has opened its device by this.
    #[cfg(loom)]
    pub(crate) fn new() -> Opening {
        Opening(AtomicU32::new(0))
    }

    /// Returns true for one call in each process, of whatever thread: the caller opens the device. For all others the
    /// device is being opened, or could not be opened.
    pub(crate) fn begin(&self, process: u32) -> bool {
        // Relaxed: the word decides which thread opens, and publishes nothing; `device::publish` does.
        let before = self.0.load(Ordering::Relaxed);
        before != process && self.0.compare_exchange(before, process, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_process_of_a_family_opens_once() {
        let opening = Opening::new();
        for process in [7, 8, 9] {
            assert!(opening.begin(process) && !opening.begin(process));
        }
    }
}
