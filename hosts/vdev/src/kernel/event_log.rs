//! A device's event log as the driver keeps it: its size, and the latest entries for `event_log` in debugfs. Entries
//! have 64 bytes, as those of all presets.

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

    /// The text in debugfs, as the driver prints it: from the oldest entry on, without the one at the tail, all marked
    /// as processed. Source: K612 `debugfs.c`, debugfs_evl_show.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("Event Log head {0} tail {0} interrupt pending 0\n\n", self.tail);
        let shown = self.entries.iter().filter(|(position, entry)| *position != self.tail && entry.descriptor_valid());
        for (number, (position, entry)) in shown.enumerate() {
            print(&mut text, number, *position, *entry);
        }
        text
    }
}

/// A number as `%#x` of the kernel prints it: a zero has no prefix.
fn hex(number: u64) -> String {
    if number == 0 { "0".into() } else { format!("{number:#x}") }
}

/// Prints an entry. Source: K612 `debugfs.c`, dump_event_entry.
fn print(text: &mut String, number: usize, position: u32, entry: EventLogEntry) {
    let record = entry.record();
    let bit = u8::from;
    let lines = [
        format!("Event Log entry {number} (real index {position}) processed: 1"),
        format!("desc valid {} wq idx valid {}", bit(entry.descriptor_valid()), bit(entry.wq_index_valid())),
        format!(
            "batch {} fault rw {} priv {} error 0x{:x}",
            bit(entry.batch_member()),
            bit(entry.write()),
            bit(entry.privileged()),
            entry.error_code()
        ),
        format!(
            "wq idx {} op {} pasid {} batch idx {}",
            entry.wq_index(),
            hex(entry.operation().into()),
            entry.pasid(),
            entry.batch_index()
        ),
        format!("fault addr {}", hex(entry.address())),
        format!(
            "status {} result {} fault_info {} bytes_completed {}",
            hex(record.0[0] & 0xff),
            hex((record.0[0] >> 8) & 0xff),
            hex((record.0[0] >> 16) & 0xff),
            record.bytes_completed()
        ),
        format!("fault addr {} inv flags {}", hex(record.fault_address()), hex(record.invalid_flags().into())),
        String::new(),
    ];
    let words = entry.0.iter().enumerate().map(|(at, word)| format!("entry[{at}] = {}", hex(*word)));
    for line in lines.into_iter().chain(words).chain([String::new()]) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{line}");
    }
}

/// True for an entry about a faulted completion record, which the driver writes for the device and counts. Source:
/// batch-and-ordering §7.1.
pub(crate) fn is_record_fault(entry: EventLogEntry) -> bool {
    Status::from_code(entry.error_code()) == Status::CompletionRecordFault
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_abi::CompletionRecord;

    #[test]
    fn the_text_is_that_of_the_driver() {
        let record = CompletionRecord([0x1a | (5 << 16) | (7 << 32), 0x2000, 0, 0]);
        let entry = EventLogEntry::default()
            .with_descriptor_valid(true)
            .with_wq_index_valid(true)
            .with_write(true)
            .with_error_code(0x1a)
            .with_wq_index(2)
            .with_operation(3)
            .with_pasid(9)
            .with_address(0x1000)
            .with_record(record);
        let mut log = EventLog::default();
        // The driver leaves out what is not valid.
        log.append(EventLogEntry::default());
        log.append(entry);
        let [word, operand, address] = [entry.0[0], entry.0[1], entry.0[2]].map(hex);
        let expected = format!(
            "Event Log head 2 tail 2 interrupt pending 0\n\n\
             Event Log entry 0 (real index 1) processed: 1\n\
             desc valid 1 wq idx valid 1\n\
             batch 0 fault rw 1 priv 0 error 0x1a\n\
             wq idx 2 op 0x3 pasid 9 batch idx 0\n\
             fault addr 0x1000\n\
             status 0x1a result 0 fault_info 0x5 bytes_completed 7\n\
             fault addr 0x2000 inv flags 0\n\n\
             entry[0] = {word}\nentry[1] = {operand}\nentry[2] = {address}\nentry[3] = 0\n\
             entry[4] = 0x70005001a\nentry[5] = 0x2000\nentry[6] = 0\nentry[7] = 0\n\n"
        );
        assert_eq!(log.text(), expected);
        // A full ring shows all but the entry that is overwritten next, the oldest one first.
        (0..MIN_ENTRIES).for_each(|_| log.append(entry));
        let text = log.text();
        assert_eq!(text.matches("desc valid 1").count(), MIN_ENTRIES as usize - 1);
        let first = text.lines().nth(2).unwrap();
        assert_eq!(first, "Event Log entry 0 (real index 3) processed: 1");
    }
}
