//! A page leaves the program: it is moved into a slot of a pool.
#![allow(unsafe_code, reason = "moves pages of a running program and copies them while no other code can access them")]

use super::Exchange;
use crate::config::{HUGE, PAGE};
use crate::in_flight::{AddressOf, LOOK, NotTaken, Stage};
use crate::page_map::PageMap;
use crate::page_set::PageSet;
use rustix::io::Errno;
use telpher_os::Progress;

impl Exchange {
    /// Takes the planned pages out, as far as the kernel permits.
    pub(crate) fn take_out(&self) {
        #[cfg(test)]
        self.compare_too_early();
        self.after_events(|exchange, map| exchange.take_out_once(map, Stage::Busy));
        // Pages shared with a forked child can be taken out once one of the two processes has its own copy.
        if self.part_from_children() {
            self.after_events(|exchange, map| exchange.take_out_once(map, Stage::Unmoved(NotTaken::Pinned)));
        }
    }

    /// Returns true if events must be read first. A run with a busy page gets the stage `busy`: as a whole if it is
    /// tried again.
    fn take_out_once(&self, map: &mut PageMap, busy: Stage) -> bool {
        let adjacent_by: [AddressOf; 2] = [|moving| moving.live, |moving| moving.from];
        // Contiguous pages may belong to different mappings: after a refusal fewer pages are tried at once, and after a
        // success more again.
        let (mut at, mut most) = (0, LOOK);
        loop {
            // A huge page moves as a whole or not at all: in parts it would be split into small pages for nothing.
            let together = if map.in_flight.is_next_huge(at, Stage::Planned) { LOOK } else { most };
            let Some(run) = map.in_flight.run(at, together, Stage::Planned, &adjacent_by) else { return false };
            let (first, len) = (map.in_flight[run.start], map.in_flight.pages(&run) as u64 * PAGE);
            if first.huge && len < HUGE {
                run.clone().for_each(|at| map.in_flight[at].stage = Stage::Unmoved(NotTaken::Gone));
                at = run.end;
                continue;
            }
            // SAFETY: the slot is the exchange's own and empty; the pool is registered. The live page is in a range
            // that the heap has adopted (or was unmapped just now: then the kernel moves nothing). It comes back before
            // its owner can see another page there: a touch waits until then, because the fault handler fills no page
            // that is out.
            let Progress { error, .. } = unsafe { self.take(first.from, first.live, len) };
            let Some(error) = error else {
                map.order.is_quiet();
                map.went_out(run.clone());
                most = LOOK.min(most * 2);
                at = run.end;
                continue;
            };
            let out = self.what_went(first.live, first.from, len);
            let run = map.in_flight.singly(run);
            let (mut moved, mut blocked) = (0, 0);
            for at in run.clone() {
                if out.went.has(at - run.start) {
                    map.went_out(at..at + 1);
                    moved += 1;
                } else if out.blocked.has(at - run.start) {
                    map.in_flight[at].stage = Stage::Unmoved(NotTaken::Blocked);
                    blocked += 1;
                }
            }
            let all = moved == run.len();
            map.stats.misreported += u64::from(all && error != Errno::AGAIN);
            match error {
                // A mapping has changed, and the kernel waits until the event is read.
                Errno::AGAIN if moved == 0 => return true,
                _ if moved + blocked > 0 => {}
                _ if first.huge => {
                    let stage = match error {
                        Errno::BUSY => busy,
                        Errno::NOENT | Errno::EXIST => Stage::Unmoved(NotTaken::Gone),
                        _ => Stage::Unmoved(NotTaken::Unsupported),
                    };
                    run.clone().for_each(|at| map.in_flight[at].stage = stage);
                }
                Errno::NOENT | Errno::EXIST => map.in_flight[run.start].stage = Stage::Unmoved(NotTaken::Gone),
                Errno::BUSY if busy == Stage::Busy => run.clone().for_each(|at| map.in_flight[at].stage = busy),
                Errno::BUSY => map.in_flight[run.start].stage = busy,
                _ if run.len() > 1 => most = run.len() / 2,
                _ => map.in_flight[run.start].stage = Stage::Unmoved(NotTaken::Unsupported),
            }
            at = run.start;
        }
    }

    /// Gives this process its own copies of busy pages, without changing a byte. Returns true if there are any.
    fn part_from_children(&self) -> bool {
        let mut any = false;
        loop {
            let adjacent_by: [AddressOf; 1] = [|moving| moving.live];
            let run = {
                let mut map = self.page_map();
                let Some(run) = map.in_flight.run(0, LOOK, Stage::Busy, &adjacent_by) else { return any };
                run.clone().for_each(|at| map.in_flight[at].stage = Stage::Planned);
                map.in_flight[run.start].live..map.in_flight[run.end - 1].range().end
            };
            any = true;
            let len = usize::try_from(run.end - run.start).expect("a run");
            // SAFETY: no byte changes. If the mapping is gone, the kernel refuses; missing pages are filled as on any
            // touch.
            let _ = unsafe {
                let start = std::ptr::with_exposed_provenance_mut(usize::try_from(run.start).expect("an address"));
                rustix::mm::madvise(start, len, rustix::mm::Advice::LinuxPopulateWrite)
            };
        }
    }

    /// Returns which pages went to their slots, when the kernel says that not all did, and which could not.
    pub(super) fn what_went(&self, live: u64, slot: u64, len: u64) -> Out {
        let (there, still) = (self.in_place(slot..slot + len), self.in_place(live..live + len));
        let mut out = Out { went: PageSet::default(), blocked: PageSet::default() };
        for at in there.each() {
            if still.has(at) { out.blocked.insert(at) } else { out.went.insert(at) }
        }
        out
    }
}

/// The outcome of taking pages out.
pub(super) struct Out {
    pub(super) went: PageSet,
    /// Pages still in the program whose slots hold something else.
    pub(super) blocked: PageSet,
}
