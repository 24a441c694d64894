//! Tracks writes with the userfaultfd that moves the pages; a second one could not register the same mapping.

use super::UserfaultMove;
use crate::config::{HUGE, PAGE};
use crate::heat::{NO_TIER, WHOLE};
use crate::mechanism::Watch;
use crate::page_map::IN_FLIGHT;
use crate::page_set::PageSet;
use std::io;
use std::ops::Range;
use telpher_os::{PageRun, UserfaultFeatures};

/// Adds the pages of a run to the set of a window.
fn note(page_set: &mut PageSet, window: &Range<u64>, run: PageRun) {
    let first = (run.start - window.start) / PAGE;
    (first..first + run.pages()).for_each(|at| page_set.insert(usize::try_from(at).expect("in a window")));
}

impl UserfaultMove {
    /// Returns whether the kernel tracks writes.
    pub(super) fn tracks(&self) -> bool {
        self.exchange.userfault.features().has(UserfaultFeatures::TRACK_WRITES)
    }

    pub(super) fn tiers_of(&self, first: u64, tiers: &mut [u8]) -> io::Result<()> {
        self.exchange.page_map().tiers(first, [NO_TIER, IN_FLIGHT], tiers);
        let end = first + tiers.len() as u64 * PAGE;
        let index = |address: u64| usize::try_from((address - first) / PAGE).expect("within `tiers`");
        // Pages between the present runs are missing, except those that are out.
        let none =
            |tiers: &mut [u8]| tiers.iter_mut().filter(|tier| **tier != IN_FLIGHT).for_each(|tier| *tier = NO_TIER);
        let mut at = 0;
        self.exchange.scan.present(first..end, |run| {
            none(&mut tiers[at..index(run.start)]);
            at = index(run.end);
            if run.is_huge() {
                let there = tiers[index(run.start)..at].iter_mut();
                there.filter(|tier| ![NO_TIER, IN_FLIGHT].contains(tier)).for_each(|tier| *tier |= WHOLE);
            }
        })?;
        none(&mut tiers[at..]);
        Ok(())
    }
}

impl Watch for UserfaultMove {
    fn track(&self, window: &Range<u64>) -> io::Result<PageSet> {
        assert!(window.end - window.start <= HUGE, "a window has at most 2 MiB");
        self.exchange.page_map().watch(window.clone());
        let mut tracked = PageSet::default();
        self.exchange.scan.track(window.clone(), |run| note(&mut tracked, window, run))?;
        Ok(tracked)
    }

    fn written(&self, window: &Range<u64>) -> io::Result<(PageSet, PageSet)> {
        let mut written = PageSet::default();
        self.exchange.scan.written(window.clone(), |run| note(&mut written, window, run))?;
        // Read after the scan: a page that moved before the scan is in this set.
        Ok((written, self.exchange.page_map().moved_in_window()))
    }

    fn untrack(&self, window: &Range<u64>) {
        // If the kernel refuses (a mapping that changes or is gone), each page stays tracked until it is written.
        let _ = self.exchange.userfault.protect(window.clone(), false);
        self.exchange.page_map().watch(0..0);
    }
}
