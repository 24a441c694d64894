//! Credits: what a dedicated queue has room for is known to its one client, who never overfills it (SPEC §3.3).

use super::{Event, World};
use crate::ps::Ps;
use crate::work::Lane;
use std::collections::VecDeque;

/// A dedicated queue as its client knows it.
#[derive(Debug, Default)]
pub(super) struct Credits {
    /// Entries that nobody has.
    left: u32,
    /// What happens when one is there again: who waits for it goes on.
    line: VecDeque<Event>,
    /// Time that descriptors of threads were in the queue, summed.
    waited: Ps,
}

impl Credits {
    pub(super) fn of(entries: u32) -> Self {
        Credits { left: entries, ..Credits::default() }
    }
}

impl World {
    /// Takes an entry of a queue, or stands in line for one: then `again` happens. A shared queue answers for itself.
    #[inline]
    pub(super) fn enter(&mut self, lane: Lane, again: Event) -> bool {
        if lane.shared {
            return true;
        }
        let Some(credits) = self.credits_of(lane) else { return true };
        let room = credits.left > 0;
        if room {
            credits.left -= 1;
        } else {
            credits.line.push_back(again);
        }
        room
    }

    /// The same for who does not wait.
    pub(super) fn try_enter(&mut self, lane: Lane) -> bool {
        if lane.shared {
            return true;
        }
        match self.credits_of(lane) {
            Some(credits) if credits.left == 0 => false,
            Some(credits) => {
                credits.left -= 1;
                true
            }
            None => true,
        }
    }

    /// Gives an entry back: its record is written.
    #[inline]
    pub(super) fn leave(&mut self, lane: Lane) {
        if lane.shared {
            return;
        }
        let Some(credits) = self.credits_of(lane) else { return };
        credits.left += 1;
        if let Some(next) = credits.line.pop_front() {
            self.agenda.after(self.machine.wait.poll, next);
        }
    }

    /// A thread's descriptor was in a queue for so long.
    #[inline]
    pub(super) fn waited_in(&mut self, lane: Lane, time: Ps) {
        if let Some(credits) = self.credits_of(lane) {
            credits.waited += time;
        }
    }

    /// Time that threads' descriptors were in a queue, summed.
    pub(crate) fn waited(&self, device: usize, wq: usize) -> Ps {
        self.credits.get(device).and_then(|of| of.get(wq)).map_or(Ps::ZERO, |credits| credits.waited)
    }

    fn credits_of(&mut self, lane: Lane) -> Option<&mut Credits> {
        self.credits.get_mut(usize::from(lane.device))?.get_mut(lane.wq)
    }
}
