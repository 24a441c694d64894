//! The group arbiter: chooses the queue whose oldest descriptor an engine gets next. Source: SPEC §4.1; weighted round
//! robin by credits.
//!
//! A queue's credit is its priority. In each pass a queue with credit gets one descriptor served. When every waiting
//! queue is out of credit, all credits of the group are renewed. Empty queues cost nothing and keep their credit, so
//! none starves: any waiting queue is served within one renewal, that is within the sum of the group's priorities.

use crate::capabilities::MAX_WQS;
use crate::device::Device;
use crate::in_progress::EngineLane;
use crate::interrupt::Interrupt;
use crate::sync::{TryLock, Word};
use crate::wq::Entry;
use telpher_abi::registers::{DeviceState, IntCause};
use telpher_abi::{Descriptor, Opcode};

/// One group's arbiter.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Group {
    /// The lock for arbitrating, and for removing waiting descriptors.
    pub(crate) lock: TryLock,
    /// Queues of the group, one bit each; set by Enable Device.
    pub(crate) wqs: Word,
    /// The queue to check first.
    cursor: Word,
    /// Credit left, by queue.
    credit: [Word; MAX_WQS],
    /// Priority, by queue; set by Enable WQ.
    pub(crate) priority: [Word; MAX_WQS],
}

impl Group {
    /// Renews all credits; called when the configuration changes.
    pub(crate) fn renew(&self) {
        for (credit, priority) in self.credit.iter().zip(&self.priority) {
            credit.set(priority.get());
        }
    }

    /// Chooses among the waiting queues (a bit each) by credit, and uses up one credit.
    fn choose(&self, waiting: u64) -> usize {
        let cursor = self.cursor.get() % MAX_WQS as u64;
        for renewed in [false, true] {
            if renewed {
                self.renew();
            }
            // Rotating by the cursor makes trailing_zeros visit the queues round robin.
            let mut candidates = waiting >> cursor | waiting << (MAX_WQS as u64 - cursor);
            candidates &= (1 << MAX_WQS) - 1;
            while candidates != 0 {
                let wq = (u64::from(candidates.trailing_zeros()) + cursor) % MAX_WQS as u64;
                #[allow(clippy::cast_possible_truncation, reason = "below MAX_WQS")]
                let credit = &self.credit[wq as usize];
                if credit.get() > 0 {
                    credit.set(credit.get() - 1);
                    self.cursor.set((wq + 1) % MAX_WQS as u64);
                    #[allow(clippy::cast_possible_truncation, reason = "below MAX_WQS")]
                    return wq as usize;
                }
                candidates &= candidates - 1;
            }
        }
        // Unreachable with validated priorities (at least 1). If shared state was corrupted, the order is simply by
        // number.
        waiting.trailing_zeros() as usize
    }
}

/// Returns the indices of the set bits below [`MAX_WQS`].
#[inline]
pub(crate) fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    set &= (1 << MAX_WQS) - 1;
    std::iter::from_fn(move || {
        let bit = set.trailing_zeros() as usize;
        (set != 0).then(|| {
            set &= set - 1;
            bit
        })
    })
}

/// An arbiter's answer to an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pick {
    /// A descriptor of this queue.
    Entry(usize, Entry),
    /// No descriptor waits.
    Nothing,
    /// Another engine is asking, or a descriptor is being submitted: ask again.
    Again,
}

impl Device {
    /// True if the limit of a group on work descriptors in progress lets an engine take another one. The caller holds
    /// the group's lock. Source: SPEC ENGCAP and GRPCFG, work descriptors in progress.
    #[inline]
    fn has_room(&self, group: usize, engine: usize) -> bool {
        // The code is in bits 353:352 of the configuration.
        let code = self.grpcfg[group][5].get() >> (352 - 320) & 3;
        let all = self.capabilities.eng_cap.work_descriptors();
        self.has_lanes_for(engine, all, code) || self.is_below_limit(engine, all, code, EngineLane::is_taken)
    }

    /// The same for batches. The descriptors of a batch in progress are work descriptors.
    #[inline]
    fn has_room_for_batch(&self, group: usize, engine: usize) -> bool {
        // The code is in bits 357:356 of the configuration.
        let code = self.grpcfg[group][5].get() >> (356 - 320) & 3;
        let all = self.capabilities.eng_cap.batch_descriptors();
        self.has_lanes_for(engine, all, code) || self.is_below_limit(engine, all, code, EngineLane::is_taken_by_batch)
    }

    /// True if no limit needs to be compared: the group sets none of its own, and the engine has no more lanes than it
    /// can have in progress. ENGCAP's fields are undefined without limits of groups (SPEC ENGCAP), so 0 states nothing.
    #[inline]
    fn has_lanes_for(&self, engine: usize, all: u8, code: u64) -> bool {
        code == 0 && self.lanes_used[engine].get() <= all.into() || all == 0
    }

    /// Compares with all, half, a quarter or an eighth of what the engine can have in progress, but one at least. If
    /// the device has no limits of groups, the code counts as 0: all that the engine can have in progress.
    #[cold]
    fn is_below_limit(&self, engine: usize, all: u8, code: u64, counts: impl Fn(&EngineLane) -> bool) -> bool {
        let code = if self.capabilities.grp_cap.progress_limits() { code } else { 0 };
        let limit = usize::from(all >> code).max(1);
        self.lanes[engine].iter().filter(|lane| counts(&lane.0)).count() < limit
    }

    /// Takes the next descriptor of a group for an engine. `mark` marks it as in progress before the lock is released,
    /// so that a Drain taken next cannot miss it.
    #[inline]
    pub(crate) fn pick(
        &self,
        group: usize,
        (engine, lane): (usize, usize),
        into: &mut Descriptor,
        mark: impl FnOnce(usize, &Entry, bool),
    ) -> Pick {
        let arbiter = &self.groups[group].0;
        let members = arbiter.wqs.get();
        if !self.any_occupied(members) {
            return Pick::Nothing;
        }
        let take = || {
            let lanes = lane as u64 + 1;
            if self.lanes_used[engine].get() < lanes {
                self.lanes_used[engine].set(lanes);
            }
            if !self.has_room(group, engine) {
                return Pick::Nothing;
            }
            let takes_batches = self.has_room_for_batch(group, engine);
            let (mut ready, mut withheld) = (0, false);
            for wq in bits(members) {
                let queue = &self.wqs[wq];
                let slots = self.slots_of(queue);
                let is_ready = queue.ring.is_ready(slots);
                let is_withheld = !takes_batches && is_ready && queue.ring.begins_with_batch(slots);
                ready |= u64::from(is_ready && !is_withheld) << wq;
                withheld |= is_withheld;
            }
            if ready == 0 {
                return if withheld { Pick::Nothing } else { Pick::Again };
            }
            // A group with one queue needs no choice; credit matters only beside other queues.
            let wq = if members.is_power_of_two() { members.trailing_zeros() as usize } else { arbiter.choose(ready) };
            let queue = &self.wqs[wq];
            match queue.ring.pop(self.slots_of(queue), into) {
                Some(entry) => {
                    mark(wq, &entry, into.opcode() == Opcode::Batch);
                    Pick::Entry(wq, entry)
                }
                None => Pick::Again,
            }
        };
        match self.general.state.take(&arbiter.lock, take) {
            None => Pick::Again,
            Some(None) => Pick::Nothing,
            Some(Some(pick)) => pick,
        }
    }

    #[inline]
    fn any_occupied(&self, members: u64) -> bool {
        bits(members).any(|wq| self.wqs[wq].ring.occupancy() != 0)
    }

    /// Raises the occupancy interrupt if it is enabled and the queue falls to its limit by losing this entry. The
    /// caller holds the group's lock, so no two engines cross the limit together. Source: SPEC register WQCFG.
    #[inline]
    pub(crate) fn occupancy_fell(&self, wq: usize, entry: &Entry) {
        let controls = self.wqcfg[wq][2].get();
        // Interrupt enable is bit 176 of the configuration, the limit bits 175:160.
        if controls >> (176 - 128) & 1 == 1 {
            let left = self.wqs[wq].ring.tail_position().saturating_sub(entry.position.saturating_add(1));
            if left == controls >> (160 - 128) & 0xffff {
                self.raise_occupancy(wq);
            }
        }
    }

    #[cold]
    fn raise_occupancy(&self, wq: usize) {
        // Interrupt generated is bit 208; a new interrupt waits until software has cleared the last.
        if self.wqcfg[wq][3].or(1 << (208 - 192)) >> (208 - 192) & 1 == 1 {
            return;
        }
        let config = self.wq_cfg(wq);
        let (ims, index) = (config.occupancy_table(), config.occupancy_handle());
        if !ims && index == 0 {
            self.cause(IntCause::OCCUPANCY, |_| true);
        } else {
            self.deliver(Interrupt { ims, index });
        }
    }

    /// True if a descriptor waits (or is being submitted) for an engine of the group. A consumer that is about to sleep
    /// executes a sequentially consistent fence before this check, and a submitter after its submission.
    #[must_use]
    pub fn group_has_work(&self, group: usize) -> bool {
        self.state() != DeviceState::Halted
            && self.groups.get(group).is_some_and(|group| self.any_occupied(group.0.wqs.get()))
    }
}
