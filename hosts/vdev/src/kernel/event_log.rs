//! A device's event log as the driver keeps it: its size, and the latest entries for `event_log` in debugfs.

use std::collections::VecDeque;
use std::fmt::Write as _;
use telpher_abi::{EventLogEntry, Status};

/// Fewest entries. Source: K612 `idxd.h`, IDXD_EVL_SIZE_MIN.
pub(crate) const MIN_ENTRIES: u32 = 64;
/// Most entries. Source: K612 `idxd.h`, IDXD_EVL_SIZE_MAX.
pub(crate) const MAX_ENTRIES: u32 = 65_535;

/// The event log of one device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EventLog {
    /// Entries of the ring; the value of `event_log_size`.
    pub(crate) size: u32,
    /// Position of the next entry.
    tail: u32,
    entries: VecDeque<(u32, EventLogEntry)>,
}

impl Default for EventLog {
    fn default() -> Self {
        EventLog { size: MIN_ENTRIES, tail: 0, entries: VecDeque::new() }
    }
}

impl EventLog {
    /// Clears the log, as enabling the device does.
    pub(crate) fn restart(&mut self) {
        self.tail = 0;
        self.entries.clear();
    }

    /// Appends an entry; overwrites the oldest if the ring is full, because the driver has always processed all
    /// entries.
    pub(crate) fn append(&mut self, entry: EventLogEntry) {
        self.entries.push_back((self.tail, entry));
        while self.entries.len() > self.size as usize {
            self.entries.pop_front();
        }
        self.tail = (self.tail + 1) % self.size.max(1);
    }

    /// The text in debugfs: the ring's head and tail, then one line per entry, all marked as processed.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("Event Log head {0} tail {0} interrupt pending 0\n\n", self.tail);
        for (position, entry) in &self.entries {
            let code = Status::from_code(entry.error_code());
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "entry {position} (processed): error {:#04x} ({}) wq {} pasid {} \
                 operation {:#04x} batch member {} index {} address {:#x}",
                entry.error_code(),
                code.meaning(),
                entry.wq_index(),
                entry.pasid(),
                entry.operation(),
                u8::from(entry.batch_member()),
                entry.batch_index(),
                entry.address(),
            );
        }
        text
    }
}

/// True for an entry about a faulted completion record, which the driver writes for the device and counts. Source:
/// batch-and-ordering §7.1.
pub(crate) fn is_record_fault(entry: EventLogEntry) -> bool {
    Status::from_code(entry.error_code()) == Status::CompletionRecordFault
}
