//! Assembles a file's entries into lines: a descriptor's submission and its end, a batch and its members.

use super::line::{DescriptorLine, DescriptorNumber, InvolvedLine, Line, MisuseLine, Origin};
use super::names::{self, Value};
use std::collections::BTreeMap;
use telpher_abi::{CompletionRecord, Descriptor, Offer};
use telpher_vdev_wire::event::{Finding, Injected, InvolvedDescriptor, ReportedTo, SubmitInstruction};
use telpher_vdev_wire::file_memory::{TraceEntry, TraceKind};

/// Submissions that may wait for the rest of their entries. Source: chosen; far more than a queue and its engines hold,
/// so only submissions with lost entries are given up.
const PENDING: usize = 8192;

/// The entries of a submission so far.
#[derive(Debug, Default)]
struct Pending {
    submitted: Option<TraceEntry>,
    ended: Option<TraceEntry>,
    members: Vec<TraceEntry>,
    /// Injected faults with the position in the batch plus one; 0 for the submission itself.
    injected: Vec<(u32, &'static str)>,
    /// Number of Retry answers, and the descriptor that got the first of them.
    retries: u64,
    refused: Option<TraceEntry>,
}

/// Assembles the entries of one open file into lines.
#[derive(Debug)]
pub(super) struct Assembler {
    queue: String,
    /// CLOCK_MONOTONIC at the start of the run.
    begin_ns: u64,
    pending: BTreeMap<u64, Pending>,
}

impl Assembler {
    pub(super) fn new(queue: String, begin_ns: u64) -> Self {
        Assembler { queue, begin_ns, pending: BTreeMap::new() }
    }

    fn origin(&self, entry: &TraceEntry) -> Origin {
        Origin {
            time_ns: entry.time_ns.saturating_sub(self.begin_ns),
            process: entry.process,
            thread: entry.thread,
            queue: self.queue.clone(),
        }
    }

    /// Adds an entry; appends the lines that it completes to `lines`. Ignores invalid entries.
    pub(super) fn take(&mut self, entry: &TraceEntry, lines: &mut Vec<Line>) {
        let number = entry.submission;
        let is = |kind: TraceKind| entry.kind == kind as u32;
        if is(TraceKind::Misuse) {
            let finding = Finding::from_entry(entry);
            lines.extend(finding.map(|finding| Line::Misuse(self.misuse(entry, &finding))));
            return;
        }
        let pending = self.pending.entry(number).or_default();
        if is(TraceKind::Injected) {
            let name = Injected::from_code(entry.code).map_or("unknown", Injected::name);
            let known = pending.injected.contains(&(entry.member, name));
            if !known {
                pending.injected.push((entry.member, name));
            }
        } else if is(TraceKind::Ended) && entry.member > 0 {
            pending.members.push(*entry);
        } else if is(TraceKind::Ended) {
            pending.ended = Some(*entry);
        } else if is(TraceKind::Submitted) {
            self.submitted(entry, lines);
        }
        let complete =
            self.pending.get(&number).is_some_and(|pending| pending.submitted.is_some() && pending.ended.is_some());
        if complete {
            self.write_lines(number, lines);
        }
        while self.pending.len() > PENDING {
            let Some(oldest) = self.pending.keys().next().copied() else { break };
            self.write_lines(oldest, lines);
        }
    }

    fn submitted(&mut self, entry: &TraceEntry, lines: &mut Vec<Line>) {
        let number = entry.submission;
        let pending = self.pending.entry(number).or_default();
        // After a Retry, the next descriptor gets the same number; it may be a different one.
        let other = pending.refused.filter(|refused| refused.descriptor != entry.descriptor);
        if let Some(refused) = other {
            let retries = std::mem::take(&mut pending.retries);
            pending.refused = None;
            let story = self.story(&refused, None, retries, vec![]);
            lines.push(Line::Descriptor(story));
        }
        let pending = self.pending.entry(number).or_default();
        match Offer::from_code(entry.answer) {
            Some(Offer::Retry) => {
                pending.retries += 1;
                // The time of the first try counts.
                pending.refused = pending.refused.or(Some(*entry));
            }
            Some(Offer::Lost) => {
                let retries = std::mem::take(&mut pending.retries);
                pending.refused = None;
                let story = self.story(entry, None, retries, vec![]);
                lines.push(Line::Descriptor(story));
            }
            Some(Offer::Taken) | None => {
                pending.refused = None;
                pending.submitted = Some(*entry);
            }
        }
    }

    /// Writes the remaining lines; no further entries follow.
    pub(super) fn finish(&mut self, lines: &mut Vec<Line>) {
        while let Some(number) = self.pending.keys().next().copied() {
            self.write_lines(number, lines);
        }
    }

    /// Writes all lines of a submission and forgets it.
    fn write_lines(&mut self, number: u64, lines: &mut Vec<Line>) {
        let Some(pending) = self.pending.remove(&number) else { return };
        let injected = |member: u32| -> Vec<String> {
            let own = pending.injected.iter().filter(|(whose, _)| *whose == member);
            own.map(|(_, name)| (*name).to_owned()).collect()
        };
        let begun = pending.submitted.or(pending.refused);
        if let Some(first) = begun.or(pending.ended) {
            let story = self.story(&first, pending.ended.as_ref(), pending.retries, injected(0));
            lines.push(Line::Descriptor(story));
        }
        for member in &pending.members {
            let first = TraceEntry { time_ns: begun.map_or(member.time_ns, |begun| begun.time_ns), ..*member };
            let story = self.story(&first, Some(member), 0, injected(member.member));
            lines.push(Line::Descriptor(DescriptorLine { how: None, ..story }));
        }
    }

    /// Builds a descriptor's line from its first entry, and its last if there is one.
    fn story(
        &self,
        first: &TraceEntry,
        last: Option<&TraceEntry>,
        retries: u64,
        injected: Vec<String>,
    ) -> DescriptorLine {
        let descriptor = Descriptor(first.descriptor);
        let submitted = first.kind == TraceKind::Submitted as u32;
        let mut story = DescriptorLine {
            origin: self.origin(first),
            which: which(first.submission, first.member),
            how: SubmitInstruction::from_code(first.code).filter(|_| submitted).map(|how| how.name().into()),
            operation: names::operation(descriptor.opcode()),
            operands: names::operands(&descriptor),
            flags: names::flags(descriptor.flags()),
            end: match Offer::from_code(first.answer) {
                Some(offer @ (Offer::Retry | Offer::Lost)) if submitted => offer.name().into(),
                _ => "not completed".into(),
            },
            retries,
            injected,
            ..DescriptorLine::default()
        };
        if let Some(last) = last {
            let record = CompletionRecord(last.record);
            story.end = ReportedTo::from_code(last.answer).map_or("unknown", ReportedTo::name).into();
            if last.answer != ReportedTo::Abandoned as u32 {
                story.status = Some(record.status_code());
                story.status_name = Some(names::status_byte(record.status_byte()));
                story.results = names::results(descriptor.opcode(), &record);
            }
            story.duration_ns = submitted_or_member(first, last).then(|| last.time_ns.saturating_sub(first.time_ns));
        }
        story
    }

    fn misuse(&self, entry: &TraceEntry, finding: &Finding) -> MisuseLine {
        let involved = |descriptor: &InvolvedDescriptor| InvolvedLine {
            which: which(descriptor.submission, descriptor.member),
            operand: names::operand(descriptor.operand),
            descriptor: names::call_of(&Descriptor(descriptor.descriptor)),
        };
        MisuseLine {
            origin: self.origin(entry),
            misuse: finding.misuse.name().into(),
            address: Value::Hex(finding.address),
            len: Value::Count(finding.len),
            latest: involved(&finding.latest),
            other: finding.other.as_ref().map(involved),
        }
    }
}

/// True if the times of the two entries give a duration; an end without a submission gives none.
fn submitted_or_member(first: &TraceEntry, last: &TraceEntry) -> bool {
    first.kind == TraceKind::Submitted as u32 || first.time_ns != last.time_ns
}

fn which(submission: u64, member: u32) -> DescriptorNumber {
    DescriptorNumber { submission, member: member.checked_sub(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telpher_abi::StatusByte;

    fn submitted(submission: u64, offer: Offer, descriptor: Descriptor) -> TraceEntry {
        TraceEntry {
            time_ns: 1000 * submission,
            submission,
            kind: TraceKind::Submitted as u32,
            process: 1,
            thread: 2,
            code: SubmitInstruction::Enqcmd as u32,
            answer: offer as u32,
            descriptor: descriptor.0,
            ..TraceEntry::EMPTY
        }
    }

    fn ended(submission: u64, member: u32, written: ReportedTo, status: u8, descriptor: Descriptor) -> TraceEntry {
        TraceEntry {
            time_ns: 1000 * submission + 250 * (u64::from(member) + 1),
            submission,
            kind: TraceKind::Ended as u32,
            process: 1,
            thread: 3,
            answer: written as u32,
            member,
            descriptor: descriptor.0,
            record: CompletionRecord::new(StatusByte(status)).0,
            ..TraceEntry::EMPTY
        }
    }

    fn lines(entries: &[TraceEntry]) -> Vec<String> {
        let mut assembler = Assembler::new("wq0.0".into(), 0);
        let mut lines = Vec::new();
        for entry in entries {
            assembler.take(entry, &mut lines);
        }
        lines.push(Line::Lost(super::super::line::LostLine::default()));
        assembler.finish(&mut lines);
        let split = |line: &Line| line.to_string().split_once(" #").map_or("--".into(), |(_, rest)| rest.to_owned());
        lines.iter().map(split).collect()
    }

    #[test]
    fn an_end_before_its_submission_waits_for_it() {
        let nop = Descriptor::nop();
        let written = lines(&[
            ended(1, 0, ReportedTo::Record, 1, nop),
            submitted(1, Offer::Taken, nop),
            submitted(2, Offer::Taken, nop),
            ended(2, 0, ReportedTo::NotRequested, 1, nop),
        ]);
        assert_eq!(
            written,
            ["1 enqcmd nop() = 0x01 success <0.250us>", "2 enqcmd nop() = 0x01 success (no record) <0.250us>", "--"]
        );
    }

    #[test]
    fn members_follow_their_batch() {
        let (batch, nop) = (Descriptor::batch(0x40, 2), Descriptor::nop());
        let written = lines(&[
            submitted(1, Offer::Taken, batch),
            ended(1, 1, ReportedTo::NotRequested, 1, nop),
            ended(1, 2, ReportedTo::Record, 0x20, nop),
            ended(1, 0, ReportedTo::Record, 5, batch),
        ]);
        assert_eq!(
            written,
            [
                "1 enqcmd batch(list=0x40, count=2) = 0x05 batch-fail members=0 <0.250us>",
                "1[0] nop() = 0x01 success (no record) <0.500us>",
                "1[1] nop() = 0x20 hardware-read-error <0.750us>",
                "--"
            ]
        );
    }

    #[test]
    fn retries_are_counted_until_the_queue_accepts_the_descriptor_or_the_program_gives_up() {
        let (nop, drain) = (Descriptor::nop(), Descriptor::drain());
        let written = lines(&[
            submitted(1, Offer::Retry, nop),
            submitted(1, Offer::Retry, nop),
            submitted(1, Offer::Taken, nop),
            ended(1, 0, ReportedTo::Record, 1, nop),
            submitted(2, Offer::Retry, nop),
            submitted(2, Offer::Taken, drain),
            ended(2, 0, ReportedTo::Record, 1, drain),
            submitted(3, Offer::Lost, nop),
            submitted(3, Offer::Retry, nop),
        ]);
        assert_eq!(
            written,
            [
                "1 enqcmd nop() = 0x01 success <0.250us> retries=2",
                "2 enqcmd nop() = (retry) retries=1",
                "2 enqcmd drain() = 0x01 success <0.250us>",
                "3 enqcmd nop() = (lost)",
                "--",
                "3 enqcmd nop() = (retry) retries=1",
            ]
        );
    }

    #[test]
    fn unfinished_and_incomplete_submissions_are_written_at_the_end() {
        let nop = Descriptor::nop();
        let injected = |member| TraceEntry {
            submission: 7,
            kind: TraceKind::Injected as u32,
            code: Injected::Lose as u32,
            member,
            ..TraceEntry::EMPTY
        };
        let written = lines(&[
            submitted(7, Offer::Taken, nop),
            injected(0),
            injected(0),
            ended(8, 0, ReportedTo::Abandoned, 0, nop),
            TraceEntry { kind: 99, ..TraceEntry::EMPTY },
        ]);
        assert_eq!(written, ["--", "7 enqcmd nop() = (not completed) injected=lose", "8 nop() = (abandoned)"]);
    }

    #[test]
    fn incomplete_submissions_are_not_kept_forever() {
        let mut assembler = Assembler::new("wq0.0".into(), 0);
        let mut lines = Vec::new();
        for n in 0..20_000 {
            assembler.take(&submitted(n, Offer::Taken, Descriptor::nop()), &mut lines);
        }
        assert_eq!(lines.len(), 20_000 - PENDING);
    }
}
