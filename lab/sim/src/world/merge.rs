//! Partially written lines in memory: a device reads the bytes of them that it does not write, and its other writes
//! wait behind. If results go to the cache, the cache merges them, and nothing waits.
//!
//! A device merges one such line at a time, whichever engine writes it. The begin of a destination is known as soon as
//! its descriptor has left the front end, so the first line is merged while other engines' bytes flow. The last line is
//! merged only when its bytes have arrived, and until then the device writes nothing else.

use super::{EngineId, Event, World};
use crate::picos::Picos;
use telpher_abi::OperandId;
use telpher_model::Action;

/// Bytes of a line, and of half a line.
pub(super) const LINE: u64 = 64;
const HALF: u64 = LINE / 2;

impl World {
    /// For a descriptor that leaves the front end at `from`: returns when its bytes may flow, and the merge time of its
    /// last line.
    #[inline]
    pub(super) fn partial_lines(&mut self, device: u16, action: &Action, from: Picos) -> (Picos, Picos) {
        let written = action.ranges().filter(|range| range.write && range.operand == OperandId::Destination1);
        let (mut first, mut last) = (0, 0);
        for range in written {
            let end = range.address.wrapping_add(range.len);
            // If both ends are in one line, it is merged once.
            let one = range.address / LINE == end / LINE;
            (first, last) = (if one { 0 } else { range.address % LINE }, end % LINE);
        }
        if first | last == 0 {
            return (from, Picos::ZERO);
        }
        let costs = &self.machine.device;
        let time = |edge: u64| match edge {
            0 => Picos::ZERO,
            HALF => costs.half_line,
            _ => costs.partial_line,
        };
        let (first_time, last_time) = (time(first), time(last));
        let merging = &mut self.devices[usize::from(device)].merging;
        let mut flows = from;
        if first > 0 {
            flows = from.max(*merging) + first_time;
            *merging = flows;
        }
        (flows, last_time)
    }

    /// Schedules the merge of an engine's last line after all earlier merges.
    pub(super) fn merge_last(&mut self, at: EngineId, time: Picos) {
        let now = self.events.now();
        let dsa = &mut self.devices[usize::from(at.device)];
        let begin = now.max(dsa.merging);
        dsa.merging = begin + time;
        self.events.at(begin, Event::Merge { at, begins: true });
        self.events.at(begin + time, Event::Merge { at, begins: false });
    }

    /// A merge begins and blocks the device's writes, or ends.
    pub(super) fn merge(&mut self, at: EngineId, begins: bool) {
        let now = self.events.now();
        let write = self.devices[usize::from(at.device)].write;
        self.pipes.hold(now, write, begins);
        if !begins {
            self.flowed(at);
        }
    }
}
