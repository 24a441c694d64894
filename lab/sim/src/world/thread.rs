//! A thread of the workload: it prepares, submits and waits. It is a task in simulated time, so thousands of them are
//! cheap.

use super::arrivals::Pace;
use super::cycles::Cycles;
use super::descriptors::{self, PASID};
use super::device::Dsa;
use super::forecast::Forecast;
use super::program::Done;
use super::software::Task;
use super::timeline::TimeBreakdown;
use super::{Event, FlowOwner, RefusedWork, World, program};
use crate::picos::Picos;
use crate::places::BufferPlacement;
use crate::submission;
use crate::workload::{ExecutedBy, QueueId, Sizes, Stream, Wait};
use telpher_abi::registers::PortalKind;
use telpher_abi::{DESCRIPTOR_BYTES, Descriptor};
use telpher_model::{Identity, Submitter, Write};
use telpher_portal::Offer;

/// The times of one submission's stages.
#[derive(Clone, Copy, Debug, Default)]
struct Stamps {
    /// Its arrival.
    begun: Picos,
    /// The begin of its submission.
    sent: Picos,
    /// The queue took it.
    queued: Picos,
    /// An engine took it.
    taken: Picos,
    /// Its last byte so far.
    flowed: Picos,
    /// Time lost to missing pages: between resubmissions, and in the engine.
    resubmitted: Picos,
    paged: Picos,
}

/// A submission of a thread. It takes one line of the computer's cache: with many threads, hardly any line of a thread
/// is still in the fastest cache when it is used again.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Slot {
    stamps: Stamps,
    /// Its bytes.
    bytes: u64,
}

/// Core time of one submission of a thread.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// The library's time after the record of the slot's previous submission.
    complete: Picos,
    prepare: Picos,
    /// The fence before the instruction, until the core owns the prepared lines.
    fence: Picos,
    /// The system call before the instruction.
    call: Picos,
    /// The instruction, including the call, as far as known before the queue answers.
    instruct: Picos,
}

/// Buffers with new pages for each operation; `had` operations have used them.
#[derive(Clone, Copy, Debug)]
struct Fresh {
    src: u64,
    dst: u64,
    had: u64,
}

/// An operation that a core executes itself.
#[derive(Clone, Copy, Debug)]
struct Work {
    arrived: Picos,
    begun: Picos,
    bytes: u64,
    task: Task,
}

/// A thread. The fields that a submission uses come first, in as few lines of the computer's cache as possible.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Thread {
    /// The queue of its operations; `None` if the core executes them.
    queue: Option<QueueId>,
    costs: Costs,
    slots: Vec<Slot>,
    /// The descriptor of each slot; one descriptor for all slots if only their records differ.
    works: Vec<Descriptor>,
    free: Vec<u32>,
    /// Slots that were used before: all below this one.
    used: u32,
    /// Operations of a submission.
    members: u32,
    left: u64,
    /// Since when it waits for a record.
    waits: Option<Picos>,
    /// Since when it waits for a credit.
    blocked: Option<Picos>,
    /// Time in which it touched pages besides its work; its next step is delayed by it.
    touching: Picos,
    /// The forecast of its records, if it sleeps until then.
    forecast: Option<Box<Forecast>>,
    /// Submissions whose results do not count.
    warm_up: u64,
    /// Number of its load.
    pub(super) load: usize,
    wait: Wait,
    /// Each submission has a size of its own.
    mixed: bool,
    pub(super) timeline: TimeBreakdown,
    pace: Pace,
    /// Its buffers, if each operation has new pages.
    fresh: Option<Fresh>,
    /// The operation that its core executes now.
    work: Option<Work>,
    stream: Stream,
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

/// Why a queue's device would refuse a descriptor; `None` if it would execute it. Without a record of its own, a single
/// descriptor is checked as if it had one.
fn refusal(devices: &[Dsa], queue: QueueId, work: &Descriptor, member: bool) -> Option<RefusedWork> {
    let model = &devices.get(usize::from(queue.device)).filter(|device| queue.wq < device.model.queues())?.model;
    let submitter = Submitter { pasid: Some(PASID), ..Submitter::default() };
    let work = if member { *work } else { work.with_record(record_of(0, 0)) };
    let refusal = model.refusal(queue.wq, submitter, &work, member)?;
    Some(RefusedWork { size: work.size(), refusal })
}

impl Thread {
    /// A thread without work.
    fn idle(stream: Stream, pace: Pace, load: usize) -> Self {
        let none = Picos::ZERO;
        Thread {
            stream,
            queue: None,
            costs: Costs { complete: none, prepare: none, fence: none, call: none, instruct: none },
            slots: Vec::new(),
            works: Vec::new(),
            free: Vec::new(),
            used: 0,
            members: stream.batch.max(1),
            left: 0,
            warm_up: 0,
            pace,
            wait: stream.wait,
            mixed: false,
            load,
            waits: None,
            blocked: None,
            touching: Picos::ZERO,
            work: None,
            fresh: None,
            forecast: None,
            timeline: TimeBreakdown::default(),
        }
    }

    /// The descriptor of a slot.
    #[inline]
    fn work(&self, number: u32, slot: u32) -> Descriptor {
        match self.works[..] {
            [one] => one.with_record(record_of(number, slot)),
            _ => self.works[slot as usize],
        }
    }
}

impl World {
    /// Adds a thread; it begins at once. Returns its number for [`timeline`](World::timeline).
    pub fn add(&mut self, stream: Stream) -> usize {
        let number = self.threads.len();
        let thread = u32::try_from(number).unwrap_or(u32::MAX);
        let mut pace = Pace::new(&stream, number);
        let queue = match stream.by {
            ExecutedBy::Device(queue) => Some(queue),
            ExecutedBy::Cpu => None,
            ExecutedBy::Mover(moves) => return self.add_mover_thread(stream, moves),
        };
        let (mut all_slots, mut works) = (Vec::new(), Vec::new());
        let mut fresh = None;
        let slots = if queue.is_some() { stream.depth } else { 0 };
        if queue.is_some() {
            let ring = u64::from(stream.depth) * u64::from(stream.batch.max(1));
            let ring = ring.saturating_mul(stream.size.into());
            let used = |place: BufferPlacement| if place.footprint == 0 { ring } else { place.footprint };
            let src = self.places.add_of(stream.src, used(stream.src));
            let dst = self.places.add_of(stream.dst, used(stream.dst));
            fresh = (!stream.src.present || !stream.dst.present).then_some(Fresh { src, dst, had: 0 });
            let mut checked = None;
            for slot in 0..slots {
                let record = record_of(thread, slot);
                let mut all = 0;
                let mut work = || {
                    let size = pace.size();
                    let work = descriptors::of(&stream, src, dst, size);
                    // A No-op and a Drain have no size.
                    all += u64::from(work.size());
                    let work = if descriptors::needs_record(stream.op) || fresh.is_some() {
                        work.with_record(record)
                    } else {
                        work
                    };
                    // Operations of a stream differ by their sizes only.
                    if checked.replace(size) != Some(size) && self.refusal.is_none() {
                        self.refusal = queue.and_then(|queue| refusal(&self.devices, queue, &work, stream.batch > 1));
                    }
                    work
                };
                let work = if stream.batch > 1 {
                    let members = (0..stream.batch).map(|_| work()).collect();
                    Descriptor::batch(self.places.add_list(stream.src, members), stream.batch).with_record(record)
                } else {
                    work().with_record(record)
                };
                all_slots.push(Slot { stamps: Stamps::default(), bytes: all });
                works.push(work);
            }
            if stream.batch <= 1 && stream.sizes == Sizes::NONE && fresh.is_none() {
                works.truncate(1);
            }
        }
        let library = self.machine.library.of(stream.library);
        let instructing = |queue| self.machine.submit.instructing(queue, stream.through);
        let (call, instruct) = queue.map(instructing).unwrap_or_default();
        let fence = if stream.cold_descriptors { self.machine.owning(stream.core, stream.batch) } else { Picos::ZERO };
        let prepare = self.machine.preparing(stream.library, stream.batch, slots);
        let costs = Costs { complete: library.complete, prepare, fence, call, instruct };
        let load = self.load();
        let forecast = queue.filter(|_| stream.wait == Wait::Sleep).map(|queue| Box::new(self.forecast(queue, slots)));
        self.threads.push(Thread {
            forecast,
            queue,
            costs,
            slots: all_slots,
            works,
            free: (0..slots).rev().collect(),
            left: stream.submissions,
            warm_up: stream.warm_up,
            mixed: stream.sizes != Sizes::NONE,
            fresh,
            ..Thread::idle(stream, pace, load)
        });
        self.events.after(Picos::ZERO, Event::Thread(thread));
        number
    }

    /// Adds a thread whose operations a program executes and reports; returns its number.
    pub(super) fn add_account(&mut self, stream: Stream) -> usize {
        let (number, load) = (self.threads.len(), self.load());
        self.threads.push(Thread::idle(stream, Pace::new(&stream, number), load));
        number
    }

    /// An operation of such a thread is done.
    pub(super) fn account(&mut self, number: usize, Done { arrived, begun, bytes, .. }: Done, cycles: Cycles) {
        let now = self.events.now();
        let thread = &mut self.threads[number];
        let timeline = &mut thread.timeline;
        timeline.completed += 1;
        timeline.operations += 1;
        timeline.bytes += bytes;
        timeline.backlog += begun.since(arrived);
        timeline.process += now.since(begun);
        timeline.until = now;
        timeline.cycles = cycles;
        self.latencies[thread.load].add(now.since(arrived));
    }

    /// A thread continues with its work.
    pub(super) fn go_on(&mut self, number: u32) {
        if self.threads[number as usize].queue.is_some() {
            self.go_on_submitting(number);
        } else {
            self.go_on_working(number);
        }
    }

    /// A thread prepares and submits its next descriptor, or waits.
    fn go_on_submitting(&mut self, number: u32) {
        let now = self.events.now();
        let thread = &mut self.threads[number as usize];
        let Some(queue) = thread.queue else { return };
        if let Some(since) = thread.blocked.take() {
            thread.timeline.cycles.polling += now.since(since);
            thread.timeline.waiting += now.since(since);
        }
        let touching = std::mem::take(&mut thread.touching);
        if touching > Picos::ZERO {
            thread.timeline.cycles.busy += touching;
            self.events.at(now + touching, Event::Thread(number));
            return;
        }
        if thread.left == 0 {
            // Its last submission may end after it has seen its last record.
            thread.timeline.until = thread.timeline.until.max(now);
            // It waits for the last of them as for any other.
            thread.waits = (thread.free.len() < thread.slots.len()).then_some(now);
            return;
        }
        let arrived = match thread.pace.due(now) {
            Ok(since) => since,
            Err(at) => {
                thread.timeline.cycles.idle += at.since(now);
                self.events.at(at, Event::Thread(number));
                return;
            }
        };
        if thread.free.is_empty() {
            thread.waits = Some(now);
            return;
        }
        if !self.enter(queue, Event::Thread(number)) {
            self.threads[number as usize].blocked = Some(now);
            return;
        }
        let thread = &mut self.threads[number as usize];
        let Some(slot) = thread.free.pop() else { return };
        thread.left -= 1;
        thread.pace.advance();
        let costs = thread.costs;
        let stamps = &mut thread.slots[slot as usize].stamps;
        // The library first completes the slot's previous submission. Slots are used for the first time in their order.
        let begun = if slot < thread.used { now + costs.complete } else { now };
        thread.used = thread.used.max(slot + 1);
        let arrived = if thread.pace.is_open() { arrived } else { begun };
        (stamps.resubmitted, stamps.paged) = (Picos::ZERO, Picos::ZERO);
        stamps.begun = arrived;
        stamps.sent = begun + costs.prepare;
        let (mixed, fresh) = (thread.mixed, thread.fresh.is_some());
        if mixed {
            self.resize(number, slot);
        }
        if fresh {
            self.renew(number, slot);
        }
        let thread = &mut self.threads[number as usize];
        let (timeline, stamps) = (&mut thread.timeline, &thread.slots[slot as usize].stamps);
        timeline.backlog += begun.since(arrived);
        timeline.prepare += costs.prepare;
        timeline.submitting += costs.fence;
        let fenced = stamps.sent + costs.fence;
        timeline.cycles.busy += fenced.since(now);
        let at = fenced + costs.call + self.machine.submit.transit;
        if !queue.shared {
            timeline.submitting += costs.instruct;
            timeline.cycles.busy += costs.instruct;
            self.events.at(fenced + costs.instruct, Event::Thread(number));
        }
        self.events.at(at, Event::Portal { thread: number, slot });
    }

    /// A descriptor reaches a portal.
    pub(super) fn portal(&mut self, number: u32, slot: u32) {
        let thread = &self.threads[number as usize];
        let Some(queue) = thread.queue else { return };
        // A full queue refuses it, whatever it is.
        let full = queue.shared && self.is_full(queue);
        let descriptor = if full { Descriptor::nop() } else { thread.work(number, slot) };
        let offer = if full { Offer::Retry } else { self.offer(queue, descriptor) };
        if queue.shared {
            let thread = &mut self.threads[number as usize];
            let Costs { call, instruct, .. } = thread.costs;
            let transit = self.machine.submit.transit;
            let back = instruct.since(call + transit);
            thread.timeline.submitting += instruct;
            thread.timeline.cycles.busy += instruct;
            if offer == Offer::Retry {
                thread.timeline.retries += 1;
                let again = Event::Portal { thread: number, slot };
                self.reject(queue, FlowOwner::Thread(number), again, instruct, back + call + transit);
            } else {
                self.events.after(back, Event::Thread(number));
                self.admitted(queue, FlowOwner::Thread(number));
            }
        }
        if offer == Offer::Taken {
            let thread = &mut self.threads[number as usize];
            let stamps = &mut thread.slots[slot as usize].stamps;
            stamps.queued = self.events.now();
            if let Some(forecast) = &mut thread.forecast {
                forecast.sent(slot, &descriptor, stamps.sent);
            }
            self.wake(queue.device, queue.wq);
        }
    }

    /// A thread's core executes its next operation.
    fn go_on_working(&mut self, number: u32) {
        let now = self.events.now();
        let thread = &mut self.threads[number as usize];
        if thread.left == 0 {
            return;
        }
        let arrived = match thread.pace.due(now) {
            Ok(since) => since,
            Err(at) => {
                thread.timeline.cycles.idle += at.since(now);
                self.events.at(at, Event::Thread(number));
                return;
            }
        };
        thread.left -= 1;
        thread.pace.advance();
        let stream = &thread.stream;
        let bytes = u64::from(thread.pace.size());
        let Stream { op, core, src, dst, walk, .. } = *stream;
        thread.timeline.backlog += now.since(arrived);
        let task = self.task(core, op, bytes, [src, dst], walk);
        self.threads[number as usize].work = Some(Work { arrived, begun: now, bytes, task });
        self.begin_task(task, FlowOwner::Thread(number), Event::Worked(number));
    }

    /// The last byte of a thread's own operation has flowed.
    pub(super) fn thread_flowed(&mut self, number: u32) {
        if let Some(work) = &self.threads[number as usize].work {
            self.task_flowed(work.task, Event::Worked(number));
        }
    }

    /// A thread's core has finished an operation.
    pub(super) fn worked(&mut self, number: u32) {
        let now = self.events.now();
        let thread = &mut self.threads[number as usize];
        let Some(Work { arrived, begun, bytes, .. }) = thread.work.take() else { return };
        let timeline = &mut thread.timeline;
        timeline.completed += 1;
        timeline.operations += 1;
        timeline.bytes += bytes;
        timeline.process += now.since(begun);
        timeline.cycles.busy += now.since(begun);
        timeline.until = now;
        self.latencies[thread.load].add(now.since(arrived));
        self.go_on_working(number);
    }

    /// Offers a descriptor to a queue; returns the queue's answer.
    pub(super) fn offer(&mut self, queue: QueueId, descriptor: Descriptor) -> Offer {
        let write =
            if queue.shared { Write::Deferrable(Identity { pasid: PASID, privileged: false }) } else { Write::Posted };
        let model = &self.devices[usize::from(queue.device)].model;
        model.submit(queue.wq, PortalKind::LimitedMsix, write, &submission::submission(descriptor))
    }

    /// An engine took the descriptor with this record.
    pub(super) fn taken(&mut self, record: u64) {
        let now = self.events.now();
        if let Some(stamps) = self.stamps(record) {
            stamps.taken = now;
        }
    }

    /// The last byte of the descriptor with this record, or of one of its members, has flowed.
    pub(super) fn flowed_of(&mut self, record: u64) {
        let now = self.events.now();
        if let Some(stamps) = self.stamps(record) {
            stamps.flowed = now;
        }
    }

    fn stamps(&mut self, record: u64) -> Option<&mut Stamps> {
        if program::is_program(record) {
            return None;
        }
        let (number, slot) = owner_of(record);
        Some(&mut self.threads.get_mut(number as usize)?.slots.get_mut(slot as usize)?.stamps)
    }

    /// Draws new sizes for the operations of a slot.
    fn resize(&mut self, number: u32, slot: u32) {
        let thread = &mut self.threads[number as usize];
        let (work, bytes) = (&mut thread.works[slot as usize], &mut thread.slots[slot as usize].bytes);
        *bytes = 0;
        let mut resized = |work: &Descriptor| {
            let size = if work.size() == 0 { 0 } else { thread.pace.size() };
            *bytes += u64::from(size);
            work.with_size(size)
        };
        if thread.stream.batch <= 1 {
            *work = resized(work);
            return;
        }
        let (list, batch, record) = (work.src(), u64::from(thread.stream.batch), work.completion_address());
        let members = (0..batch).filter_map(|index| self.places.descriptor(list + index * DESCRIPTOR_BYTES));
        let members: Vec<Descriptor> = members.map(resized).collect();
        let list = self.places.list_again(Some(list), thread.stream.src, members);
        *work = Descriptor::batch(list, thread.stream.batch).with_record(record);
    }

    /// Moves the operations of a slot to untouched pages.
    fn renew(&mut self, number: u32, slot: u32) {
        let thread = &mut self.threads[number as usize];
        let Some(fresh) = &mut thread.fresh else { return };
        let (batch, first) = (thread.stream.batch.max(1), fresh.had);
        fresh.had += u64::from(batch);
        let Fresh { src, dst, .. } = *fresh;
        let work = &mut thread.works[slot as usize];
        if batch == 1 {
            *work = descriptors::moved(work, &thread.stream, [src, dst], first);
            return;
        }
        let list = work.src();
        let members = (0..u64::from(batch)).filter_map(|index| {
            let member = self.places.descriptor(list + index * DESCRIPTOR_BYTES)?;
            Some(descriptors::moved(member, &thread.stream, [src, dst], first + index))
        });
        let members = members.collect();
        let (record, place) = (work.completion_address(), thread.stream.src);
        let list = self.places.list_again(Some(list), place, members);
        *work = Descriptor::batch(list, batch).with_record(record);
    }

    /// Adds the time that a submission lost to missing pages: before it was resubmitted, or in an engine.
    pub(super) fn lost(&mut self, record: u64, resubmitted: bool, time: Picos) {
        let now = self.events.now();
        if let Some(stamps) = self.stamps(record) {
            if resubmitted {
                (stamps.resubmitted, stamps.queued) = (stamps.resubmitted + now.since(stamps.queued), now);
            } else {
                stamps.paged += time;
            }
        }
    }

    /// The thread or program with this record touches pages for `time`. Returns its queue.
    pub(super) fn touches(&mut self, record: u64, time: Picos) -> Option<QueueId> {
        if program::is_program(record) {
            return self.program_touches(record, time);
        }
        let thread = self.threads.get_mut(owner_of(record).0 as usize)?;
        match &mut thread.waits {
            // It does not wait during that time.
            Some(since) => {
                *since += time;
                thread.timeline.cycles.busy += time;
            }
            None => thread.touching += time,
        }
        thread.queue
    }

    /// A completion record was written.
    pub(super) fn recorded(&mut self, record: u64) {
        let now = self.events.now();
        if program::is_program(record) {
            return self.program_recorded(record);
        }
        let (number, slot) = owner_of(record);
        let Some(thread) = self.threads.get_mut(number as usize) else { return };
        let (wait, timeline) = (&self.machine.wait, &mut thread.timeline);
        let seen = match thread.waits.take() {
            Some(since) => {
                let cycles = &mut timeline.cycles;
                let seen = match &mut thread.forecast {
                    Some(forecast) => forecast.sleep(cycles, wait, slot, since, now),
                    None => cycles.wait(wait, thread.wait, since, now),
                };
                timeline.waiting += seen.since(since);
                self.events.at(seen, Event::Thread(number));
                seen
            }
            // A busy thread polls when it comes by; often enough for its records.
            None => now + wait.poll,
        };
        thread.free.push(slot);
        let Slot { stamps, bytes } = &thread.slots[slot as usize];
        let Stamps { begun, sent, queued, taken, flowed, resubmitted, paged } = *stamps;
        // No engine takes a refused descriptor, and no byte of it flows.
        let taken = taken.max(queued);
        let flowed = flowed.max(taken);
        let asked = self.machine.translation.miss.min(now.since(flowed));
        timeline.completed += 1;
        // What flowed during the warm-up does not count, or a rate could exceed that of the device.
        let (flow, before) = (flowed.since(taken), timeline.from.since(taken));
        let counted = |all: u64| match before {
            Picos::ZERO => all,
            before if before >= flow => 0,
            // Cannot fail: at most `all`.
            before => {
                u64::try_from(u128::from(all) * u128::from(flow.since(before).0) / u128::from(flow.0)).unwrap_or(all)
            }
        };
        timeline.operations += counted(u64::from(thread.members));
        timeline.bytes += counted(*bytes);
        timeline.submit += queued.since(sent).since(resubmitted);
        timeline.queue += taken.since(queued);
        timeline.translate += resubmitted + paged + asked;
        timeline.process += flowed.since(taken).since(paged);
        timeline.complete += now.since(flowed).since(asked);
        timeline.notice += seen.since(now);
        timeline.until = timeline.until.max(seen);
        if thread.warm_up > 0 {
            thread.warm_up -= 1;
            if thread.warm_up == 0 {
                *timeline = TimeBreakdown { from: seen, until: seen, ..TimeBreakdown::default() };
            }
        } else {
            self.latencies[thread.load].add(seen.since(begun));
        }
        if let Some(queue) = thread.queue {
            self.waited_in(queue, taken.since(queued));
            self.leave(queue);
        }
    }
}
