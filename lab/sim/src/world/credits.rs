//! Credits: a dedicated queue has one client, which counts free entries and never overfills it (SPEC §3.3).

use super::{Event, World};
use crate::picos::Picos;
use crate::workload::QueueId;
use std::collections::VecDeque;

/// A dedicated queue as its client sees it.
#[derive(Debug, Default)]
pub(super) struct Credits {
    /// Free entries.
    left: u32,
    /// Events of waiting clients, one for each entry that becomes free.
    line: VecDeque<Event>,
    /// Total time of threads' descriptors in the queue.
    waited: Picos,
}

impl Credits {
    pub(super) fn of(entries: u32) -> Self {
        Credits { left: entries, ..Credits::default() }
    }
}

impl World {
    /// Takes an entry of a queue and returns true, or schedules `again` for when one is free. A shared queue answers
    /// submissions itself, so this always succeeds.
    #[inline]
    pub(super) fn enter(&mut self, lane: QueueId, again: Event) -> bool {
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

    /// Like `enter`, without waiting.
    pub(super) fn try_enter(&mut self, lane: QueueId) -> bool {
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

    /// Frees an entry: its record is written.
    #[inline]
    pub(super) fn leave(&mut self, lane: QueueId) {
        if lane.shared {
            return;
        }
        let Some(credits) = self.credits_of(lane) else { return };
        credits.left += 1;
        if let Some(next) = credits.line.pop_front() {
            self.events.after(self.machine.wait.poll, next);
        }
    }

    /// Adds the time of a thread's descriptor in a queue.
    #[inline]
    pub(super) fn waited_in(&mut self, lane: QueueId, time: Picos) {
        if let Some(credits) = self.credits_of(lane) {
            credits.waited += time;
        }
    }

    /// Total time of threads' descriptors in a queue.
    pub(crate) fn waited(&self, device: usize, wq: usize) -> Picos {
        self.credits.get(device).and_then(|of| of.get(wq)).map_or(Picos::ZERO, |credits| credits.waited)
    }

    fn credits_of(&mut self, lane: QueueId) -> Option<&mut Credits> {
        self.credits.get_mut(usize::from(lane.device))?.get_mut(lane.wq)
    }
}
