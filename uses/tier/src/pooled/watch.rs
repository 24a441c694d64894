//! Tracks writes with the userfaultfd that moves the pages; a second one could not register the same mapping.

use super::Pooled;
use crate::book::ALOFT;
use crate::config::{HUGE, PAGE};
use crate::heat::{NO_TIER, WHOLE};
use crate::marks::Marks;
use crate::way::Watch;
use std::io;
use std::ops::Range;
use telpher_mem::{PageRun, UserfaultFeatures};

/// Adds the pages of a run to the set of a window.
fn note(marks: &mut Marks, window: &Range<u64>, run: PageRun) {
    let first = (run.start - window.start) / PAGE;
    (first..first + run.pages()).for_each(|at| marks.mark(usize::try_from(at).expect("in a window")));
}

impl Pooled {
    /// Returns whether the kernel tracks writes.
    pub(super) fn tracks(&self) -> bool {
        self.exchange.userfault.features().has(UserfaultFeatures::TRACK_WRITES)
    }

    pub(super) fn tiers_of(&self, first: u64, tiers: &mut [u8]) -> io::Result<()> {
        self.exchange.book().tiers(first, [NO_TIER, ALOFT], tiers);
        let end = first + tiers.len() as u64 * PAGE;
        let place = |address: u64| usize::try_from((address - first) / PAGE).expect("in the row");
        // Pages between the present runs are missing, except those that are out.
        let none = |tiers: &mut [u8]| tiers.iter_mut().filter(|tier| **tier != ALOFT).for_each(|tier| *tier = NO_TIER);
        let mut at = 0;
        self.exchange.scan.present(first..end, |run| {
            none(&mut tiers[at..place(run.start)]);
            at = place(run.end);
            if run.is_huge() {
                let there = tiers[place(run.start)..at].iter_mut();
                there.filter(|tier| ![NO_TIER, ALOFT].contains(tier)).for_each(|tier| *tier |= WHOLE);
            }
        })?;
        none(&mut tiers[at..]);
        Ok(())
    }
}

impl Watch for Pooled {
    fn track(&self, window: &Range<u64>) -> io::Result<Marks> {
        assert!(window.end - window.start <= HUGE, "a window has at most 2 MiB");
        self.exchange.book().watch(window.clone());
        let mut tracked = Marks::default();
        self.exchange.scan.track(window.clone(), |run| note(&mut tracked, window, run))?;
        Ok(tracked)
    }

    fn written(&self, window: &Range<u64>) -> io::Result<(Marks, Marks)> {
        let mut written = Marks::default();
        self.exchange.scan.written(window.clone(), |run| note(&mut written, window, run))?;
        // Read after the scan: a page that moved before the scan is in this set.
        Ok((written, self.exchange.book().moved_in_window()))
    }

    fn untrack(&self, window: &Range<u64>) {
        // If the kernel refuses (a mapping that changes or is gone), each page stays tracked until it is written.
        let _ = self.exchange.userfault.protect(window.clone(), false);
        self.exchange.book().watch(0..0);
    }
}
