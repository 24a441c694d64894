//! Missing pages: an engine requests them from the system and waits, or reports them, and software touches them.

use super::descriptors::rest_of;
use super::{EngineId, Event, World};
use crate::picos::Picos;
use crate::places::{BufferPlacement, SimulatedMemory};
use crate::workload::QueueId;
use std::collections::BTreeMap;
use telpher_abi::{CompletionRecord, Descriptor, Flags, Status, StatusByte};
use telpher_model::{Action, Outcome};
use telpher_portal::Offer;

/// A descriptor that an engine could not finish.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unfinished {
    work: Descriptor,
    /// Bytes that are done.
    pub(super) done: u64,
    /// First byte that was missing.
    address: u64,
    write: bool,
}

impl Unfinished {
    /// The progress of an action whose pages are partly missing, without Block On Fault; `None` if none is missing.
    pub(super) fn of(places: &SimulatedMemory, action: &Action, work: &Descriptor) -> Option<Self> {
        let missing = action.ranges().filter_map(|range| {
            let address = places.first_missing(range.address, range.len)?;
            Some(Unfinished { work: *work, done: address - range.address, address, write: range.write })
        });
        missing.min_by_key(|missing| missing.done)
    }

    /// The contents of its record.
    pub(super) fn outcome(&self) -> Outcome {
        let record = CompletionRecord::new(StatusByte::fault(Status::PageFault, self.write))
            .with_bytes_completed(u32::try_from(self.done).unwrap_or(u32::MAX))
            .with_fault_address(self.address);
        Outcome { record, ..Outcome::of(Status::PageFault) }
    }
}

/// Software that completes what devices could not finish.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// Descriptors to resubmit, by number; each is kept until its queue has taken it.
    again: Vec<Option<(QueueId, Descriptor)>>,
    /// When each thread (by its records) has touched its last page.
    busy: BTreeMap<u64, Picos>,
}

impl World {
    /// Counts the missing pages of an action, and marks them as present.
    pub(super) fn missing(&mut self, action: &Action) -> u32 {
        let missing: u64 = action.ranges().map(|range| self.places.touch(range.address, range.len)).sum();
        u32::try_from(missing).unwrap_or(u32::MAX)
    }

    /// The system brings the pages that an engine requests, one after the other, after those that other engines
    /// requested before.
    pub(super) fn ask_for_pages(&mut self, at: EngineId, pages: u32, owner: u64) {
        let now = self.events.now();
        let dsa = &mut self.devices[usize::from(at.device)];
        let there = now.max(dsa.paging) + self.machine.translation.page_request * u64::from(pages);
        dsa.paging = there;
        dsa.pes[usize::from(at.engine)].first_has_pages(there);
        self.events.at(there, Event::Data(at));
        self.lost(owner, false, there.since(now));
    }

    /// A record reports missing pages: a core touches them, one for each descriptor, and submits the rest.
    pub(super) fn repair(&mut self, record: u64, unfinished: &[Unfinished]) {
        let now = self.events.now();
        // Two descriptors may miss the same page.
        let pages = unfinished.iter().filter(|it| self.places.touch(it.address, 1) > 0).count() as u64;
        let time = self.machine.translation.touch * pages + self.machine.library.raw.prepare;
        // Repairs of several records of one thread follow each other.
        let thread = record >> 30;
        let begin = self.repairs.busy.get(&thread).copied().unwrap_or_default().max(now + self.machine.wait.poll);
        let over = begin + time;
        self.repairs.busy.insert(thread, over);
        let Some(queue) = self.touches(record, time) else { return };
        let rest: Vec<Descriptor> = unfinished.iter().map(|it| rest_of(&it.work, it.done)).collect();
        let work = match rest[..] {
            [one] => one.with_record(record).with_flags(one.with_record(record).flags().difference(Flags::FENCE)),
            _ => {
                let members = u32::try_from(rest.len()).unwrap_or(u32::MAX);
                Descriptor::batch(self.places.add_list(BufferPlacement::on(0), rest), members).with_record(record)
            }
        };
        let again = &mut self.repairs.again;
        let number = again.iter().position(Option::is_none).unwrap_or(again.len());
        match again.get_mut(number) {
            Some(free) => *free = Some((queue, work)),
            None => again.push(Some((queue, work))),
        }
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        self.events.at(over + self.machine.submit.transit, Event::Again(number));
    }

    /// A repaired descriptor reaches its queue again.
    pub(super) fn submit_again(&mut self, number: u32) {
        let Some((queue, work)) = self.repairs.again[number as usize] else { return };
        if self.offer(queue, work) == Offer::Retry {
            self.events.after(self.machine.submit.enqcmd, Event::Again(number));
            return;
        }
        self.repairs.again[number as usize] = None;
        self.lost(work.completion_address(), true, Picos::ZERO);
        self.wake(queue.device, queue.wq);
    }
}
