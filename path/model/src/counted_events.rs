//! Performance events, answered from the totals of open files, which count always. The device's own counters need a
//! configuration in each process that has a queue open.

use crate::capabilities::MAX_ENGINES;
use crate::counts::{QueueTotals, STATUSES, Totals};
use telpher_abi::perfmon::{Event, PmuConfig};
use telpher_abi::{Opcode, Status};

/// The totals of the open files of a queue, or of one of them.
#[derive(Clone, Copy, Debug)]
pub struct QueueCounts<'a> {
    /// The totals.
    pub totals: &'a Totals,
    /// The queue.
    pub wq: u32,
    /// It is a dedicated queue.
    pub dedicated: bool,
}

/// Returns true if the totals answer this event. They do not know translations, records, interrupts, sizes, bitmaps,
/// fences and overlapping moves.
#[must_use]
pub fn is_counted(event: Event) -> bool {
    is_of_operation(event)
        || [
            Event::SWQ_LIMITED_ACCEPTED,
            Event::SWQ_LIMITED_RETRY,
            Event::SWQ_UNLIMITED_ACCEPTED,
            Event::SWQ_UNLIMITED_RETRY,
            Event::DWQ_ACCEPTED,
            Event::DWQ_FULL,
            Event::INPUT_32B,
            Event::OUTPUT_32B,
            Event::FROM_BATCH,
            Event::FROM_WQ,
            Event::TRANSLATION_FAULT,
            Event::PAGE_REQUEST_OK,
            Event::PARTIAL,
            Event::ERROR,
            Event::SUCCESS,
        ]
        .contains(&event)
}

fn is_of_operation(event: Event) -> bool {
    Opcode::ALL.iter().any(|opcode| Event::of_operation(*opcode) == Some(event))
}

/// Returns the events of a configuration of a device of this version; `None` if the totals do not answer all of them.
#[must_use]
pub fn events_of(config: &PmuConfig, version: u32) -> Option<Vec<Event>> {
    let bits = (0..u32::BITS).map(|bit| 1 << bit).filter(|bit| config.events & bit != 0);
    let events: Vec<Event> = bits.map(|bit| Event { category: config.category, bit }).collect();
    let is_known = |event: &Event| is_counted(*event) && event.since() <= version;
    // The totals do not tell sizes apart.
    let has_all = !events.is_empty() && events.iter().all(is_known) && config.sizes == 0;
    has_all.then_some(events)
}

impl QueueCounts<'_> {
    /// Returns how often an event happened in the queue. `engines` are those that count, one bit each; 0 for all. Like
    /// the device, it counts submissions whatever engine executes them.
    #[must_use]
    pub fn event(&self, event: Event, engines: u8) -> u64 {
        let wq = self.wq as usize;
        let submitted = |dedicated: bool, number: u64| if self.dedicated == dedicated { number } else { 0 };
        let all = || self.totals.queue(wq);
        match event {
            // Programs and the driver map the limited portal only. Source: K612 cdev.c, idxd_cdev_mmap; device.c.
            Event::SWQ_LIMITED_ACCEPTED => submitted(false, all().descriptors),
            Event::SWQ_LIMITED_RETRY => submitted(false, self.totals.retries(wq)),
            Event::DWQ_ACCEPTED => submitted(true, all().descriptors),
            Event::DWQ_FULL => submitted(true, self.totals.lost(wq)),
            _ => (0..MAX_ENGINES)
                .filter(|engine| engines == 0 || u32::from(engines) >> engine & 1 != 0)
                .fold(0, |sum: u64, engine| sum.saturating_add(self.event_in_engine(event, engine))),
        }
    }

    fn event_in_engine(&self, event: Event, engine: usize) -> u64 {
        let queue: QueueTotals = self.totals.queue_in_engine(self.wq as usize, engine);
        let of_statuses = |counts: &dyn Fn(Status) -> bool| {
            let codes = (0..STATUSES).filter_map(|code| u8::try_from(code).ok());
            codes
                .filter(|code| counts(Status::from_code(*code)))
                .fold(0, |sum: u64, code| sum.saturating_add(self.totals.status_in_engine(code, engine)))
        };
        let is_partial = |status: Status| status.is_page_fault() || status == Status::BatchPageFault;
        let is_success = |status: Status| matches!(status, Status::Success | Status::SuccessPredicateFalse);
        match event {
            Event::INPUT_32B => queue.read_units,
            Event::OUTPUT_32B => queue.written_units,
            Event::FROM_BATCH => queue.members,
            Event::FROM_WQ => queue.descriptors,
            Event::TRANSLATION_FAULT => queue.faults,
            Event::PAGE_REQUEST_OK => queue.pages,
            Event::PARTIAL => of_statuses(&is_partial),
            Event::SUCCESS => of_statuses(&is_success),
            // Status 0 is that of abandoned descriptors.
            Event::ERROR => of_statuses(&|status| status != Status::None && !is_partial(status) && !is_success(status)),
            event if is_of_operation(event) => (0..=63)
                .filter(|code| Event::of_operation(Opcode::from_code(*code)) == Some(event))
                .fold(0, |sum: u64, code| sum.saturating_add(self.totals.operation_in_engine(code, engine))),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::DeviceCounts;
    use telpher_portal::Offer;

    #[test]
    fn an_answer_counts_for_the_mode_of_its_queue() {
        let counts = DeviceCounts::default();
        for offer in [Offer::Retry, Offer::Retry, Offer::Lost] {
            counts.offered(1, offer);
        }
        let totals = counts.totals();
        let of = |wq, dedicated, event| QueueCounts { totals: &totals, wq, dedicated }.event(event, 0);
        assert_eq!(of(1, false, Event::SWQ_LIMITED_RETRY), 2);
        assert_eq!(of(1, true, Event::SWQ_LIMITED_RETRY), 0);
        assert_eq!((of(1, true, Event::DWQ_FULL), of(1, false, Event::DWQ_FULL)), (1, 0));
        assert_eq!(of(0, false, Event::SWQ_LIMITED_RETRY), 0);
    }

    #[test]
    fn what_the_totals_do_not_know_is_refused() {
        let of = |category, events, sizes, version| {
            events_of(&PmuConfig { category, events, sizes, ..PmuConfig::default() }, version)
        };
        assert_eq!(of(3, 0x9, 0, 0x100).map(|events| events.len()), Some(2));
        for (category, events, sizes) in [(4, 0x20, 0), (4, 0x30, 0), (2, 0x1, 0), (3, 0, 0), (3, 0x9, 1), (7, 1, 0)] {
            assert_eq!(of(category, events, sizes, 0x300), None, "{category} {events:#x} {sizes}");
        }
        // Bitmaps, second operands; fences and overlapping moves.
        for (category, events) in [(1, 0x40), (1, 0x80), (1, 0x200), (3, 0x200_0000), (3, 0x800_0000)] {
            assert_eq!(of(category, events, 0, 0x300), None, "{category} {events:#x}");
        }
    }

    #[test]
    fn operations_of_later_versions_are_events_of_devices_that_have_them() {
        let of = |category, events, version| {
            events_of(&PmuConfig { category, events, ..PmuConfig::default() }, version).is_some()
        };
        let has = |category, events| [0x100, 0x200, 0x300].map(|version| of(category, events, version));
        assert_eq!(has(3, 0x1_0000), [true; 3], "Cache Flush");
        assert_eq!(has(3, 0x6_0000), [false, true, true], "Translation Fetch and DIX Generate");
        assert_eq!(has(5, 0x40f), [false, true, true], "between domains");
        assert_eq!(has(5, 0x3_f800), [false, false, true], "of arrays");
        assert_eq!(has(5, 0xc00), [false, false, true], "of both versions");
        assert_eq!(has(5, 0x10), [false; 3], "no operation");
    }

    #[test]
    fn every_operation_is_answered_by_its_event_only() {
        for opcode in Opcode::ALL {
            let counts = DeviceCounts::default();
            counts.ended(1, 2, false, opcode.code(), telpher_abi::StatusByte::new(Status::Success));
            let totals = counts.totals();
            let of = |event| QueueCounts { totals: &totals, wq: 2, dedicated: true }.event(event, 0);
            let operations = Event::named().map(|(_, event)| event).filter(|event| is_of_operation(*event));
            let counted: Vec<Event> = operations.filter(|event| of(*event) != 0).collect();
            assert_eq!(counted, [Event::of_operation(*opcode).unwrap()], "{opcode}");
        }
    }
}
