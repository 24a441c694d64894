//! Submitters that a full shared queue refused, and that retry.
//!
//! A refused ENQCMD is executed again at once, so it reaches the portal once per instruction time. All attempts between
//! two descriptors that an engine takes have the same result; they are counted, not simulated. A refused submitter
//! retries at the first of its attempt times after a front end has looked for work.

use super::{Event, FlowOwner, World};
use crate::picos::Picos;

/// A submitter whose core only retries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rejected {
    device: u16,
    /// The thread or program.
    owner: FlowOwner,
    /// The event of its next attempt.
    again: Event,
    /// When it was refused.
    since: Picos,
    /// Core time of an attempt.
    cost: Picos,
    /// Time from one attempt to the next.
    period: Picos,
}

impl World {
    /// A full queue of this device refuses a submission of a thread or program. An attempt takes `cost` of its core's
    /// time, and the next one follows after `period`.
    pub(super) fn reject(&mut self, device: u16, owner: FlowOwner, again: Event, cost: Picos, period: Picos) {
        let since = self.events.now();
        self.rejected.push(Rejected { device, owner, again, since, cost, period: period.max(Picos(1)) });
    }

    /// A front end of this device has looked for work: there may be room.
    pub(super) fn may_have_room(&mut self, device: u16) {
        if self.rejected.is_empty() {
            return;
        }
        let now = self.events.now();
        let mut all = std::mem::take(&mut self.rejected);
        all.retain(|one| {
            if one.device == device {
                let attempts = now.since(one.since).0.div_ceil(one.period.0).max(1);
                self.count_refused(one.owner, attempts - 1, one.cost);
                self.events.at(one.since + one.period * attempts, one.again);
            }
            one.device != device
        });
        self.rejected = all;
    }

    /// Counts attempts that were not simulated.
    fn count_refused(&mut self, owner: FlowOwner, attempts: u64, cost: Picos) {
        let time = cost * attempts;
        match owner {
            FlowOwner::Thread(number) => {
                let timeline = &mut self.threads[number as usize].timeline;
                timeline.retries += attempts;
                timeline.submitting += time;
                timeline.cycles.busy += time;
            }
            FlowOwner::Program(number) => self.did(number, |cycles| cycles.busy += time),
            FlowOwner::Engine(_) => {}
        }
    }
}
