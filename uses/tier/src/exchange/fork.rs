//! A forked child gets its own copies of the pages that are out.
#![allow(unsafe_code, reason = "moves pages of a running program and copies them while no other code can access them")]

use super::Exchange;
use crate::config::PAGE;
use crate::in_flight::{AddressOf, LOOK, MovingRun, Stage};
use crate::page_map::PageMap;
use crate::stats::Stats;
use rustix::io::Errno;
use telpher_os::Userfault;

impl Exchange {
    /// Gives a forked child copies of the pages that are out. Its mapping is its own, and the pages are missing there.
    pub(crate) fn give_to_child(&self, map: &mut PageMap, child: &Userfault) {
        #[cfg(test)]
        if self.faults.gives_nothing() {
            return;
        }
        let adjacent_by: [AddressOf; 3] = [|moving| moving.live, |moving| moving.taken, |moving| moving.from];
        let mut at = 0;
        while let Some(run) = map.in_flight.run(at, LOOK, Stage::Out, &adjacent_by) {
            let (MovingRun { live, taken, from, .. }, len) =
                (map.in_flight[run.start], map.in_flight.pages(&run) as u64 * PAGE);
            let mut given = give(child, live, from, len);
            if given == Given::default() && taken != live {
                // The parent forked and another thread then moved the mapping, but the event of the move was read
                // first.
                given = give(child, taken, from, len);
            }
            given.note(&mut map.stats);
            at = run.end;
        }
        for part in map.traps.parts() {
            give(child, part.live, part.slot, part.len).note(&mut map.stats);
        }
        map.stats.forks += 1;
    }
}

/// The outcome of copying pages to a forked child, in pages.
#[derive(PartialEq, Eq, Default)]
struct Given {
    given: u64,
    /// The child expects them, but there was no memory for them: it finds zeros.
    lost: u64,
}

impl Given {
    fn note(self, stats: &mut Stats) {
        stats.copied_to_children += self.given;
        stats.lost += self.lost;
    }
}

/// Gives a forked child copies of pages that the parent has out, where no thread writes them.
fn give(child: &Userfault, live: u64, slot: u64, len: u64) -> Given {
    let (mut done, mut most, mut pages) = (0, len, Given::default());
    while done < len {
        let part = most.min(len - done);
        // SAFETY: the address is empty in the child, which expects the parent's page: that page is in its slot, where
        // no thread writes it.
        let progress = unsafe { child.put_copies(live + done, slot + done, part) };
        done += progress.bytes;
        pages.given += progress.bytes / PAGE;
        match progress.error {
            None => {}
            Some(_) if progress.bytes > 0 => {}
            // The range spans several mappings, or one that is gone: each page is tried alone.
            Some(_) if part > PAGE => most = PAGE,
            Some(error) => {
                // The child has no such mapping, already has the page, or has died.
                pages.lost += u64::from(!matches!(error, Errno::NOENT | Errno::EXIST | Errno::SRCH));
                done += PAGE;
            }
        }
    }
    pages
}
