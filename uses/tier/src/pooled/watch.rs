//! Looks at pages by the userfaultfd that moves them: a second one could not have the same mapping.

use super::Pooled;
use crate::book::ALOFT;
use crate::config::{HUGE, PAGE};
use crate::heat::{NO_TIER, WHOLE};
use crate::marks::Marks;
use crate::way::Watch;
use std::io;
use std::ops::Range;
use telpher_os::{PageRun, UserfaultFeatures};

/// Notes which pages of a window a run is of.
fn note(marks: &mut Marks, window: &Range<u64>, run: PageRun) {
    let first = (run.start - window.start) / PAGE;
    (first..first + run.pages()).for_each(|at| marks.mark(usize::try_from(at).expect("in a window")));
}

impl Pooled {
    /// The kernel tracks writes.
    pub(super) fn tracks(&self) -> bool {
        self.exchange.userfault.features().has(UserfaultFeatures::TRACK_WRITES)
    }

    pub(super) fn tiers_of(&self, first: u64, tiers: &mut [u8]) -> io::Result<()> {
        self.exchange.book().tiers(first, [NO_TIER, ALOFT], tiers);
        let end = first + tiers.len() as u64 * PAGE;
        let place = |address: u64| usize::try_from((address - first) / PAGE).expect("in the row");
        // What lies between those that are there is not, but for what is out.
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
        // After the look: a page that went away and came back before it is among these.
        Ok((written, self.exchange.book().moved_in_window()))
    }

    fn untrack(&self, window: &Range<u64>) {
        // A refusal (a mapping that changes or is gone) leaves pages tracked, each until it is written.
        let _ = self.exchange.userfault.protect(window.clone(), false);
        self.exchange.book().watch(0..0);
    }
}
