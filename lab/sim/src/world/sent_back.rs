//! Who was sent back by a full shared queue, and asks again and again.
//!
//! An ENQCMD that is refused is executed anew at once, so it reaches the portal once in the time that one takes. Between two descriptors that
//! an engine takes, all these attempts end alike; they are counted, not played. Who was sent back asks in earnest at the first of its own
//! times from the moment on at which a front end has looked for work.

use super::{Event, Whose, World};
use crate::ps::Ps;

/// Somebody whose core does nothing but ask.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentBack {
    device: u16,
    /// A thread or a program.
    whose: Whose,
    /// What asks for it.
    again: Event,
    /// When it was sent back.
    since: Ps,
    /// Time of an attempt that its core is busy for.
    cost: Ps,
    /// Time from one attempt to the next.
    period: Ps,
}

impl World {
    /// A full queue of this device sends back what a thread or a program has brought to it. An attempt keeps its core busy for `cost`, and
    /// the next one comes after `period`.
    pub(super) fn send_back(&mut self, device: u16, whose: Whose, again: Event, cost: Ps, period: Ps) {
        let since = self.agenda.now();
        self.sent_back.push(SentBack { device, whose, again, since, cost, period: period.max(Ps(1)) });
    }

    /// A front end of this device has looked for work: there may be room.
    pub(super) fn may_have_room(&mut self, device: u16) {
        if self.sent_back.is_empty() {
            return;
        }
        let now = self.agenda.now();
        let mut all = std::mem::take(&mut self.sent_back);
        all.retain(|one| {
            if one.device == device {
                let attempts = now.since(one.since).0.div_ceil(one.period.0).max(1);
                self.count_refused(one.whose, attempts - 1, one.cost);
                self.agenda.at(one.since + one.period * attempts, one.again);
            }
            one.device != device
        });
        self.sent_back = all;
    }

    /// Attempts that nobody played.
    fn count_refused(&mut self, whose: Whose, attempts: u64, cost: Ps) {
        let time = cost * attempts;
        match whose {
            Whose::Thread(number) => {
                let timeline = &mut self.threads[number as usize].timeline;
                timeline.retries += attempts;
                timeline.submitting += time;
                timeline.cycles.busy += time;
            }
            Whose::Program(number) => self.did(number, |cycles| cycles.busy += time),
            Whose::Engine(_) => {}
        }
    }
}
