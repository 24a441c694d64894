//! Conversions between [`Opened`] and the device that it describes, and between that device's notices and [`Report`]s.
//! Host and guest use the same.

use crate::message::{DEDICATED, EQUAL_DELTA_OFFSETS, Opened, RESULT_MASK_BITS, Report, ReportKind};
use telpher_abi::registers::{DsaCap0, DsaCap1, DsaCap2, EngCap, GenCap, GrpCap, GrpCfg, IdCap, OpCap, WqCap, WqCfg};
use telpher_abi::{EventLogEntry, SwError};
use telpher_device::{Capabilities, QueueImage, ReplicaReport, Tolerances};

/// Commands 15 to 17: handles of windows, and cached bitmaps.
const WINDOW_COMMANDS: u64 = 0b111 << 15;

impl Opened {
    /// Capabilities of the device.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        // Without windows between processes, the copy of the device has no table of them.
        let has_windows = self.id_cap != 0;
        // The copy's table has an entry for each window that the process may use, with the process as single submitter.
        let id_cap = if has_windows { IdCap([self.id_cap]).with_single_submitter(true) } else { IdCap::default() };
        Capabilities {
            version: self.version,
            gen_cap: GenCap([self.gen_cap]).with_inter_domain(has_windows),
            wq_cap: WqCap([self.wq_cap]),
            grp_cap: GrpCap([self.grp_cap]),
            eng_cap: EngCap([self.eng_cap]),
            op_cap: OpCap(self.op_cap),
            // The host issues handles and reads no bitmaps.
            cmd_cap: self.cmd_cap & !WINDOW_COMMANDS,
            id_cap,
            dsa_cap_0: DsaCap0([self.dsa_cap[0]]),
            dsa_cap_1: DsaCap1([self.dsa_cap[1]]),
            dsa_cap_2: DsaCap2([self.dsa_cap[2]]),
            page_request_capacity: self.page_request_capacity,
            // Narrower in the device than in the message; a number that does not fit becomes the maximum, which the
            // model refuses.
            msix_entries: u16::try_from(self.msix_entries).unwrap_or(u16::MAX),
            counters: u8::try_from(self.counters).unwrap_or(u8::MAX),
            traffic_classes: u8::try_from(self.traffic_classes).unwrap_or(u8::MAX),
            tolerances: Tolerances {
                equal_delta_offsets: self.flags & EQUAL_DELTA_OFFSETS != 0,
                result_mask_bits: self.flags & RESULT_MASK_BITS != 0,
            },
        }
    }

    /// [`flags`](Opened::flags) for the tolerances of a device beyond the specification.
    #[must_use]
    pub fn tolerance_flags(tolerances: Tolerances) -> u32 {
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        flag(tolerances.equal_delta_offsets, EQUAL_DELTA_OFFSETS) | flag(tolerances.result_mask_bits, RESULT_MASK_BITS)
    }

    /// Registers of the queue.
    #[must_use]
    pub fn queue_image(&self) -> QueueImage {
        QueueImage {
            wq: self.wq,
            group: self.group,
            gen_cfg: self.gen_cfg,
            grp_cfg: GrpCfg(self.grp_cfg),
            wq_cfg: WqCfg(self.wq_cfg),
            event_log_entries: u16::try_from(self.event_log_entries).unwrap_or(u16::MAX),
        }
    }

    /// True for a queue with one client and posted writes.
    #[must_use]
    #[inline]
    pub fn is_dedicated(&self) -> bool {
        self.flags & DEDICATED != 0
    }

    /// Descriptors that may wait in the queue, of all processes together; 0 for a dedicated queue.
    #[must_use]
    pub fn threshold(&self) -> u32 {
        let config = WqCfg(self.wq_cfg);
        if self.is_dedicated() { 0 } else { config.threshold().min(config.size()).into() }
    }
}

impl Report {
    /// The report with its queue and address space, if it names any, replaced by those of an open file: a process may
    /// only report about its own descriptors.
    #[must_use]
    pub fn in_the_name_of(&self, opened: &Opened) -> Report {
        let mut report = *self;
        let wq = u8::try_from(opened.wq).unwrap_or(u8::MAX);
        let [a, b, c, d, ..] = self.words;
        if self.kind == ReportKind::SwError as u32 || self.kind == ReportKind::Halted as u32 {
            let mut error = SwError([a, b, c, d]);
            if error.wq_index_valid() {
                error = error.with_wq_index(wq);
            }
            if error.descriptor_valid() {
                error = error.with_pasid(opened.pasid);
            }
            report.words[..4].copy_from_slice(&error.0);
        } else {
            let mut entry = EventLogEntry(self.words);
            if entry.wq_index_valid() {
                entry = entry.with_wq_index(wq);
            }
            if entry.descriptor_valid() {
                entry = entry.with_pasid(opened.pasid);
            }
            report.words = entry.0;
        }
        report
    }

    /// Reports a notice to the driver: one report, and a second one if the record of an event log entry could not be
    /// written.
    pub fn of(notice: &ReplicaReport, mut send: impl FnMut(&Report)) {
        let mut report = |kind: ReportKind, words: &[u64]| {
            let mut report = Report { kind: kind as u32, ..Report::default() };
            report.words[..words.len()].copy_from_slice(words);
            send(&report);
        };
        match notice {
            ReplicaReport::Error(error) => report(ReportKind::SwError, &error.0),
            ReplicaReport::Halt(error) => report(ReportKind::Halted, &error.0),
            ReplicaReport::Logged { entry, settled } => {
                report(ReportKind::EventLog, &entry.0);
                if !settled {
                    report(ReportKind::EventLogFailed, &entry.0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_too_large_for_a_device_become_the_maximum() {
        let opened = Opened { msix_entries: 1 << 20, counters: 300, traffic_classes: 300, ..Opened::default() };
        let capabilities = Opened { event_log_entries: 1 << 20, ..opened }.capabilities();
        assert_eq!((capabilities.msix_entries, capabilities.counters), (u16::MAX, u8::MAX));
        assert_eq!(capabilities.traffic_classes, u8::MAX);
        assert_eq!(Opened { event_log_entries: 1 << 20, ..opened }.queue_image().event_log_entries, u16::MAX);
    }

    #[test]
    fn a_report_is_attributed_to_the_queue_and_address_space_of_its_file() {
        let opened = Opened { wq: 3, pasid: 7, ..Opened::default() };
        let report = |kind: ReportKind, words: &[u64]| {
            let mut report = Report { kind: kind as u32, ..Report::default() };
            report.words[..words.len()].copy_from_slice(words);
            report.in_the_name_of(&opened)
        };
        let error = SwError::default().with_valid(true).with_error_code(0x1a).with_wq_index(1).with_pasid(99);
        let named = error.with_wq_index_valid(true).with_descriptor_valid(true);
        let SwError(words) = named.with_wq_index(3).with_pasid(7);
        assert_eq!(report(ReportKind::SwError, &named.0).words[..4], words);
        assert_eq!(report(ReportKind::SwError, &error.0).words[..4], error.0, "a report without names is unchanged");
        let entry = EventLogEntry::default().with_wq_index_valid(true).with_descriptor_valid(true).with_wq_index(1);
        for kind in [ReportKind::EventLog, ReportKind::EventLogFailed] {
            assert_eq!(report(kind, &entry.0).words, entry.with_wq_index(3).with_pasid(7).0);
        }
    }

    #[test]
    fn tolerances_survive_the_wire() {
        for (equal_delta_offsets, result_mask_bits) in [(false, false), (false, true), (true, false), (true, true)] {
            let tolerances = Tolerances { equal_delta_offsets, result_mask_bits };
            let opened = Opened { flags: DEDICATED | Opened::tolerance_flags(tolerances), ..Opened::default() };
            assert_eq!((opened.capabilities().tolerances, opened.is_dedicated()), (tolerances, true));
        }
    }

    #[test]
    fn a_threshold_beyond_the_queue_is_its_size_and_a_dedicated_queue_has_none() {
        let wq_cfg = |threshold| WqCfg::default().with_size(8).with_threshold(threshold).0;
        let threshold = |threshold, flags| Opened { wq_cfg: wq_cfg(threshold), flags, ..Opened::default() }.threshold();
        assert_eq!([threshold(6, 0), threshold(9, 0), threshold(6, DEDICATED)], [6, 8, 0]);
    }

    #[test]
    fn an_entry_without_a_written_record_is_reported_twice() {
        let sent = |notice| {
            let mut sent = Vec::new();
            Report::of(&notice, |report| sent.push((report.kind, report.words)));
            sent
        };
        let entry = EventLogEntry([1, 2, 3, 4, 5, 6, 7, 8]);
        let (log, failed) = (ReportKind::EventLog as u32, ReportKind::EventLogFailed as u32);
        assert_eq!(sent(ReplicaReport::Logged { entry, settled: true }), [(log, entry.0)]);
        assert_eq!(sent(ReplicaReport::Logged { entry, settled: false }), [(log, entry.0), (failed, entry.0)]);
        let error = SwError([1, 2, 3, 4]);
        let words = [1, 2, 3, 4, 0, 0, 0, 0];
        assert_eq!(sent(ReplicaReport::Error(error)), [(ReportKind::SwError as u32, words)]);
        assert_eq!(sent(ReplicaReport::Halt(error)), [(ReportKind::Halted as u32, words)]);
    }
}
