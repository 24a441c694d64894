//! A thread of the workload: prepares, submits, waits. A task in simulated time, so thousands cost little.

use super::descriptors::{self, descriptor};
use super::{Event, World, program};
use crate::places::Place;
use crate::ps::Ps;
use crate::vouch;
use crate::work::{Lane, Stream, Wait};
use telpher_abi::Descriptor;
use telpher_abi::Flags;
use telpher_abi::registers::PortalKind;
use telpher_model::{Identity, Response, Write};

/// Where time went, summed over submissions: the first six together are all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Submissions that were completed.
    pub completed: u64,
    /// Preparing descriptors.
    pub prepare: Ps,
    /// From the submitting instruction's begin to the queue's having taken the descriptor, retries included.
    pub submit: Ps,
    /// In the queue.
    pub queue: Ps,
    /// From the engine's taking it to its last byte: front end, list, the data paths of others, its own bytes.
    pub process: Ps,
    /// From the last byte to the written record.
    pub complete: Ps,
    /// From the written record to its being seen.
    pub notice: Ps,
    /// Submissions that a full queue sent back.
    pub retries: u64,
    /// Time in which the thread's core submitted.
    pub submitting: Ps,
    /// Time in which the thread had nothing to do but wait.
    pub waiting: Ps,
    /// When the last of them was seen.
    pub until: Ps,
}

impl Timeline {
    /// From the beginning of preparing to the record's being seen, summed.
    #[must_use]
    pub fn latency(&self) -> Ps {
        self.prepare + self.submit + self.queue + self.process + self.complete + self.notice
    }

    /// Takes in another thread's.
    pub fn add(&mut self, other: &Timeline) {
        self.completed += other.completed;
        self.prepare += other.prepare;
        self.submit += other.submit;
        self.queue += other.queue;
        self.process += other.process;
        self.complete += other.complete;
        self.notice += other.notice;
        self.retries += other.retries;
        self.submitting += other.submitting;
        self.waiting += other.waiting;
        self.until = self.until.max(other.until);
    }
}

/// Where one submission stands: when each stretch of its way began.
#[derive(Clone, Copy, Debug, Default)]
struct Stamps {
    /// Its preparation.
    begun: Ps,
    /// Its instruction.
    sent: Ps,
    /// Its queue took it.
    queued: Ps,
    /// An engine took it.
    taken: Ps,
    /// Its last byte, so far.
    flowed: Ps,
}

#[derive(Debug)]
pub(super) struct Thread {
    stream: Stream,
    lane: Lane,
    descriptors: Vec<Descriptor>,
    stamps: Vec<Stamps>,
    free: Vec<u32>,
    left: u64,
    /// Number of its load.
    load: usize,
    /// Since when it waits.
    waits: Option<Ps>,
    pub(super) timeline: Timeline,
}

/// Addresses of completion records: bit 62, the thread, the slot.
fn record_of(thread: u32, slot: u32) -> u64 {
    1 << 62 | u64::from(thread) << 30 | u64::from(slot) << 6
}

fn owner_of(record: u64) -> (u32, u32) {
    // Cannot lose bits: made of two such numbers.
    #[allow(clippy::cast_possible_truncation, reason = "masked")]
    ((record >> 30 & u64::from(u32::MAX)) as u32, (record >> 6 & 0xff_ffff) as u32)
}

impl World {
    /// Adds a thread whose work a device does; it begins at once.
    pub(super) fn add_submitter(&mut self, stream: Stream, lane: Lane) -> usize {
        let number = self.threads.len();
        let thread = u32::try_from(number).unwrap_or(u32::MAX);
        let ring = u64::from(stream.depth) * u64::from(stream.batch.max(1)) * u64::from(stream.size);
        let region = |place: Place| (place, if place.footprint == 0 { ring } else { place.footprint });
        let ((src, size_of_src), (dst, size_of_dst)) = (region(stream.src), region(stream.dst));
        let (src, dst) = (self.places.add_of(src, size_of_src), self.places.add_of(dst, size_of_dst));
        let work = descriptor(stream.op, src, dst, stream.size);
        let to_cache = if stream.cache_control { Flags::CACHE_CONTROL_1 } else { Flags::empty() };
        let work = work.with_flags(work.flags() | to_cache);
        let descriptors = (0..stream.depth).map(|slot| {
            let record = record_of(thread, slot);
            if stream.batch > 1 {
                let member = if descriptors::needs_record(stream.op) { work.with_record(record) } else { work };
                let list = self.places.add_list(stream.src, vec![member; stream.batch as usize]);
                Descriptor::batch(list, stream.batch).with_record(record)
            } else {
                work.with_record(record)
            }
        });
        let descriptors = descriptors.collect();
        let load = self.load();
        self.threads.push(Thread {
            descriptors,
            stamps: vec![Stamps::default(); stream.depth as usize],
            free: (0..stream.depth).rev().collect(),
            left: stream.submissions,
            load,
            waits: None,
            timeline: Timeline::default(),
            lane,
            stream,
        });
        self.agenda.after(Ps::ZERO, Event::Thread(thread));
        number
    }

    /// A thread prepares and submits its next descriptor, or waits.
    pub(super) fn go_on(&mut self, number: u32) {
        let now = self.agenda.now();
        let machine = &self.machine;
        let thread = &mut self.threads[number as usize];
        if let Some(since) = thread.waits.take() {
            thread.timeline.waiting += now.since(since);
        }
        if thread.left == 0 {
            // The last of them is waited for like any other.
            thread.waits = (thread.free.len() < thread.descriptors.len()).then_some(now);
            return;
        }
        let Some(slot) = thread.free.pop() else {
            thread.waits = Some(now);
            return;
        };
        thread.left -= 1;
        let stream = &thread.stream;
        let prepare = if stream.batch > 1 {
            machine.library.prepare_member * u64::from(stream.batch)
        } else {
            machine.library.prepare
        };
        thread.stamps[slot as usize].begun = now;
        thread.stamps[slot as usize].sent = now + prepare;
        thread.timeline.prepare += prepare;
        self.agenda.after(prepare + machine.submit.transit, Event::Portal { thread: number, slot });
        if !thread.lane.shared {
            thread.timeline.submitting += machine.submit.movdir;
            self.agenda.after(prepare + machine.submit.movdir, Event::Thread(number));
        }
    }

    /// 64 bytes reach a portal.
    pub(super) fn portal(&mut self, number: u32, slot: u32) {
        let thread = &self.threads[number as usize];
        let Lane { device, wq, shared } = thread.lane;
        let descriptor = thread.descriptors[slot as usize];
        let response = self.offer(Lane { device, wq, shared }, descriptor);
        let thread = &mut self.threads[number as usize];
        if shared {
            let submit = &self.machine.submit;
            let back = submit.enqcmd.since(submit.transit);
            thread.timeline.submitting += submit.enqcmd;
            if response == Response::Retry {
                thread.timeline.retries += 1;
                self.agenda.after(back + submit.transit, Event::Portal { thread: number, slot });
            } else {
                self.agenda.after(back, Event::Thread(number));
            }
        }
        if response == Response::Accepted {
            thread.stamps[slot as usize].queued = self.agenda.now();
            self.wake(device, wq);
        }
    }

    /// 64 bytes for a queue, and what it says.
    pub(super) fn offer(&mut self, lane: Lane, descriptor: Descriptor) -> Response {
        let write =
            if lane.shared { Write::Deferrable(Identity { pasid: 1, privileged: false }) } else { Write::Posted };
        let model = &self.devices[usize::from(lane.device)].model;
        model.submit(lane.wq, PortalKind::LimitedMsix, write, &vouch::submission(descriptor))
    }

    /// An engine took the descriptor with this record.
    pub(super) fn taken(&mut self, record: u64) {
        let now = self.agenda.now();
        if let Some(stamps) = self.stamps(record) {
            stamps.taken = now;
        }
    }

    /// The last byte of the descriptor with this record, or of one of its members, has gone.
    pub(super) fn flowed_of(&mut self, record: u64) {
        let now = self.agenda.now();
        if let Some(stamps) = self.stamps(record) {
            stamps.flowed = now;
        }
    }

    fn stamps(&mut self, record: u64) -> Option<&mut Stamps> {
        if program::is_program(record) {
            return None;
        }
        let (number, slot) = owner_of(record);
        self.threads.get_mut(number as usize)?.stamps.get_mut(slot as usize)
    }

    /// A completion record was written.
    pub(super) fn recorded(&mut self, record: u64) {
        let now = self.agenda.now();
        if program::is_program(record) {
            return self.program_recorded(record);
        }
        let (number, slot) = owner_of(record);
        let Some(thread) = self.threads.get_mut(number as usize) else { return };
        let wait = &self.machine.wait;
        let notice = match thread.stream.wait {
            Wait::Poll => wait.poll,
            Wait::Umwait | Wait::Sleep => wait.poll + wait.umwait,
            Wait::Interrupt => wait.interrupt,
        };
        let seen = now + notice;
        thread.free.push(slot);
        thread.timeline.completed += 1;
        let Stamps { begun, sent, queued, taken, flowed } = thread.stamps[slot as usize];
        self.latencies[thread.load].add(seen.since(begun));
        thread.timeline.submit += queued.since(sent);
        thread.timeline.queue += taken.since(queued);
        thread.timeline.process += flowed.since(taken);
        thread.timeline.complete += now.since(flowed);
        thread.timeline.notice += notice;
        thread.timeline.until = thread.timeline.until.max(seen);
        if thread.waits.is_some() {
            self.agenda.at(seen + self.machine.library.complete, Event::Thread(number));
        }
    }
}
