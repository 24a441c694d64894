//! Updates the performance counters for an engine, while any of them counts. Source: SPEC ch. 6.

use super::{Engine, Outcome, Work};
use crate::action::Action;
use crate::device::Device;
use telpher_abi::perfmon::Event;
use telpher_abi::{OperandId, Status};

impl Engine {
    #[cold]
    pub(super) fn count_dispatch(&self, device: &Device) {
        let Work { descriptor, origin, .. } = &self.work;
        if let Some(event) = Event::of_operation(descriptor.opcode()) {
            device.count(event, 1, Some(origin.wq), Some(self.index), Some(descriptor.size().into()));
        }
    }

    /// Counts data after an action was executed: bytes in units of 32, page requests, translations.
    #[cold]
    pub(super) fn count_execution(&self, device: &Device, outcome: &Outcome) {
        let (wq, engine) = (Some(self.work.origin.wq), Some(self.index));
        let size = Some(u64::from(self.work.descriptor.size()));
        let faulted = outcome.record.status().is_page_fault();
        let share = |len: u64| if faulted { len.min(outcome.record.bytes_completed().into()) } else { len };
        let (mut input, mut output) = (0, 0);
        for range in self.action.ranges() {
            let units = share(range.len).div_ceil(32);
            if range.write {
                output += units;
            } else {
                input += units;
            }
            let event = match range.operand {
                OperandId::Source1 => Some(Event::READS_SOURCE_1),
                OperandId::Source2 => Some(Event::READS_SOURCE_2),
                OperandId::Destination1 => Some(Event::WRITES_DESTINATION_1),
                OperandId::Destination2 => Some(Event::WRITES_DESTINATION_2),
                _ => None,
            };
            if let Some(event) = event {
                device.count(event, 1, wq, engine, size);
            }
            device.count(Event::TRANSLATED, 1, wq, engine, size);
        }
        if let Action::Move { src, dst, len, .. } = self.action
            && src.abs_diff(dst) < len
        {
            device.count(Event::OVERLAPPING_MOVE, 1, wq, engine, size);
        }
        device.count(Event::INPUT_32B, input, wq, engine, size);
        device.count(Event::OUTPUT_32B, output, wq, engine, size);
        device.count(Event::PAGE_REQUEST_OK, outcome.pages_granted.into(), wq, engine, size);
        device.count(Event::PAGE_REQUEST_INVALID, outcome.pages_refused.into(), wq, engine, size);
        if faulted {
            device.count(Event::TRANSLATION_FAULT, 1, wq, engine, size);
        }
    }

    /// Counts a bit of a submitter bitmap that was read in memory, and not in the cache.
    pub(super) fn count_bitmap_read(&self, device: &Device, is_set: bool) {
        let event = if is_set { Event::BITMAP_GRANTED } else { Event::BITMAP_DENIED };
        device.count(event, 1, Some(self.work.origin.wq), Some(self.index), None);
    }

    /// Counts a member of a batch with a fence.
    pub(super) fn count_fence(&self, device: &Device, passes: bool) {
        let event = if passes { Event::FENCE_PASSED } else { Event::FENCE_ABANDONED };
        device.count(event, 1, Some(self.work.origin.wq), Some(self.index), None);
    }

    #[cold]
    pub(super) fn count_completion(&self, device: &Device, status: Status) {
        let event = match status {
            Status::Success | Status::SuccessPredicateFalse => Event::SUCCESS,
            Status::PageFault | Status::PageFaultRefused | Status::BatchPageFault => Event::PARTIAL,
            _ => Event::ERROR,
        };
        device.count(event, 1, Some(self.work.origin.wq), Some(self.index), None);
    }
}
