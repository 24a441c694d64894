//! What a run did, in numbers: descriptors by operation, status and size, faults, retries, bytes.

use crate::trace::Line;
use crate::trace::line::DescriptorLine;
use crate::trace::names::{self, Value};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use telpher_abi::{Opcode, Status};
use telpher_vdev_wire::event::{Injected, Misuse};
use telpher_vdev_wire::file_memory::Statistics;

/// The numbers of one operation.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Operation {
    /// Descriptors by their end: a status, or `no record` if no record was written.
    pub ends: BTreeMap<String, u64>,
    /// Descriptors by the number of bits of their size; 0 for none.
    pub sizes: BTreeMap<u32, u64>,
    /// Bytes completed.
    pub bytes: u64,
}

/// The numbers of a run, or of a trace.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Summary {
    /// By operation.
    pub operations: BTreeMap<String, Operation>,
    /// Times a queue was opened.
    pub files: u64,
    /// Processes that opened a queue.
    pub processes: BTreeSet<u32>,
    /// Submissions answered by Retry.
    pub retries: u64,
    /// Posted submissions that were lost.
    pub dropped: u64,
    /// Page faults.
    pub faults: u64,
    /// Instructions emulated by a trap.
    pub traps: u64,
    /// Instructions emulated at a rewritten site.
    pub calls: u64,
    /// Events missing from the trace.
    pub lost_events: u64,
    /// Findings of the check.
    pub misuse: BTreeMap<String, u64>,
    /// Injected faults, by name.
    pub injected: BTreeMap<String, u64>,
}

fn value(counter: &AtomicU64) -> u64 {
    // Relaxed: publishes no other data; the caller has seen the release of the file.
    counter.load(Ordering::Relaxed)
}

/// Adds a number that a guest may have written, so it may have any value.
fn add(sum: &mut u64, number: u64) {
    *sum = sum.saturating_add(number);
}

impl Summary {
    /// Adds the numbers of an open file; returns the number of events missing from its trace.
    pub fn add(&mut self, statistics: &Statistics) -> u64 {
        for code in 0..64_u8 {
            let row = usize::from(code);
            let ends = statistics.outcomes[row].iter().zip(0_u8..).map(|(number, status)| (value(number), status));
            let sizes = statistics.sizes[row].iter().zip(0..).map(|(number, bits)| (value(number), bits));
            let mut operation = Operation { bytes: value(&statistics.bytes[row]), ..Operation::default() };
            for (number, status) in ends.filter(|(number, _)| *number > 0) {
                operation.ends.insert(end_of(Status::from_code(status)), number);
            }
            for (number, bits) in sizes.filter(|(number, _)| *number > 0) {
                operation.sizes.insert(bits, number);
            }
            if operation != Operation::default() {
                self.operation(&names::operation(Opcode::from_code(code))).merge(&operation);
            }
        }
        let Statistics { retries, dropped, faults, traps, calls, lost, .. } = statistics;
        add(&mut self.retries, value(retries));
        add(&mut self.dropped, value(dropped));
        add(&mut self.faults, value(faults));
        add(&mut self.traps, value(traps));
        add(&mut self.calls, value(calls));
        add(&mut self.lost_events, value(lost));
        value(lost)
    }

    /// Adds a line of a trace.
    pub fn add_line(&mut self, line: &Line) {
        self.processes.insert(line.origin().process);
        match line {
            Line::Descriptor(story) => self.add_story(story),
            Line::Misuse(line) => add(self.misuse.entry(line.misuse.clone()).or_default(), 1),
            Line::Lost(line) => add(&mut self.lost_events, line.entries),
        }
    }

    fn add_story(&mut self, story: &DescriptorLine) {
        add(&mut self.retries, story.retries);
        for injected in &story.injected {
            add(self.injected.entry(injected.clone()).or_default(), 1);
        }
        if story.end == "retry" {
            return;
        }
        if story.end == "lost" {
            add(&mut self.dropped, 1);
            return;
        }
        let field = |fields: &names::Fields, name: &str| {
            let found = fields.iter().find(|(known, _)| known == name);
            found.map(|(_, Value::Hex(value) | Value::Count(value))| *value)
        };
        let size = field(&story.operands, "size").or(field(&story.operands, "count")).unwrap_or(0);
        let status = story.status.map(|byte| Status::from_code(byte & 0x3f));
        let operation = self.operation(&story.operation);
        let end = match (status, story.end.as_str()) {
            (Some(_), "no record") | (None, "abandoned") => end_of(Status::None),
            (Some(status), _) => end_of(status),
            (None, end) => end.to_owned(),
        };
        add(operation.ends.entry(end).or_default(), 1);
        add(operation.sizes.entry(u64::BITS - size.leading_zeros()).or_default(), 1);
        let moves = !["nop", "batch", "drain"].contains(&story.operation.as_str());
        match status {
            Some(Status::Success | Status::SuccessPredicateFalse) if moves => add(&mut operation.bytes, size),
            Some(status) if status.has_direction() => {
                let done = field(&story.results, "bytes").filter(|_| moves && status.is_page_fault());
                add(&mut operation.bytes, done.unwrap_or(0));
                add(&mut self.faults, 1);
            }
            _ => {}
        }
    }

    fn operation(&mut self, name: &str) -> &mut Operation {
        self.operations.entry(name.to_owned()).or_default()
    }

    /// Counts an opened queue.
    pub fn count_file(&mut self, process: u32) {
        add(&mut self.files, 1);
        self.processes.insert(process);
    }

    /// Counts a finding of the check.
    pub fn count_misuse(&mut self, misuse: Misuse) {
        add(self.misuse.entry(misuse.name().to_owned()).or_default(), 1);
    }

    /// Counts an injected fault; the code is [`Injected`]'s.
    pub fn count_injected(&mut self, code: u32) {
        if let Some(injected) = Injected::from_code(code) {
            add(self.injected.entry(injected.name().to_owned()).or_default(), 1);
        }
    }

    /// Findings of the check.
    #[must_use]
    pub fn findings(&self) -> u64 {
        self.misuse.values().fold(0, |sum, number| sum.saturating_add(*number))
    }

    /// Events missing from the trace.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost_events
    }

    /// Descriptors that ended.
    #[must_use]
    pub fn descriptors(&self) -> u64 {
        self.operations.values().map(Operation::descriptors).fold(0, u64::saturating_add)
    }

    /// How often misuse was found, as a sentence; `None` if never.
    #[must_use]
    pub fn misuse_sentence(&self) -> Option<String> {
        let findings = self.findings();
        let kinds: Vec<String> = self.misuse.iter().map(|(name, number)| format!("{number} {name}")).collect();
        (findings > 0).then(|| format!("{}: {}", plural(findings, "finding"), kinds.join(", ")))
    }
}

impl Operation {
    /// Descriptors of this operation.
    #[must_use]
    pub fn descriptors(&self) -> u64 {
        self.ends.values().fold(0, |sum, number| sum.saturating_add(*number))
    }

    fn merge(&mut self, other: &Operation) {
        for (end, number) in &other.ends {
            add(self.ends.entry(end.clone()).or_default(), *number);
        }
        for (bits, number) in &other.sizes {
            add(self.sizes.entry(*bits).or_default(), *number);
        }
        add(&mut self.bytes, other.bytes);
    }
}

/// The name of an end; no status means that no record was written.
fn end_of(status: Status) -> String {
    match status {
        Status::None => "no record".into(),
        status => names::status(status),
    }
}

fn plural(number: u64, noun: &str) -> String {
    let ending = match (number, noun.strip_suffix('y')) {
        (1, _) => return format!("1 {noun}"),
        (_, Some(stem)) => return format!("{number} {stem}ies"),
        (_, None) if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {noun}{ending}")
}

/// Formats bytes in the smallest unit that leaves a number below 10,240.
fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut rest = number;
    let mut unit = None;
    for name in UNITS {
        if rest < 1024 * 10 {
            break;
        }
        rest = rest.div_ceil(1024);
        unit = Some(name);
    }
    unit.map_or_else(|| format!("{number} B"), |unit| format!("{rest} {unit}"))
}

/// The lower bound of the sizes with this many bits: `4k`.
fn size(bits: u32) -> String {
    match bits {
        0 => "0".into(),
        1..=10 => format!("{}", 1_u64 << (bits - 1)),
        11..=20 => format!("{}k", 1_u64 << (bits - 11)),
        21..=30 => format!("{}m", 1_u64 << (bits - 21)),
        _ => format!("{}g", 1_u64 << (bits - 31).min(33)),
    }
}

/// A list of numbers and names, the most frequent first.
fn list(numbers: impl Iterator<Item = (String, u64)>) -> String {
    let mut numbers: Vec<(String, u64)> = numbers.collect();
    numbers.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    numbers.iter().map(|(name, number)| format!("{number} {name}")).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let processes = plural(self.processes.len() as u64, "process");
        let total = self.operations.values().map(|operation| operation.bytes).fold(0, u64::saturating_add);
        write!(f, "{}, {} completed, by {processes}", plural(self.descriptors(), "descriptor"), bytes(total))?;
        if self.files > 0 {
            write!(f, " in {}", plural(self.files, "open queue"))?;
        }
        writeln!(f)?;
        if !self.operations.is_empty() {
            writeln!(f, "  {:<16} {:>11} {:>10}  ended / sizes from", "operation", "descriptors", "bytes")?;
        }
        for (name, operation) in &self.operations {
            let ends = list(operation.ends.iter().map(|(end, number)| (end.clone(), *number)));
            let moved = if operation.bytes == 0 { String::new() } else { bytes(operation.bytes) };
            writeln!(f, "  {name:<16} {:>11} {moved:>10}  {ends}", operation.descriptors())?;
            // Operations without a size have no line of sizes.
            if operation.sizes.keys().any(|bits| *bits > 0) {
                let sizes = operation.sizes.iter().map(|(bits, number)| format!("{}: {number}", size(*bits)));
                writeln!(f, "  {:<16} {:>11} {:>10}  {}", "", "", "", sizes.collect::<Vec<_>>().join(", "))?;
            }
        }
        let numbers = [
            (self.faults, "page fault"),
            (self.retries, "retry"),
            (self.dropped, "lost submission"),
            (self.traps, "trap"),
            (self.calls, "call of rewritten sites"),
        ];
        let parts: Vec<String> = numbers.iter().map(|(number, noun)| noun_of(*number, noun)).collect();
        writeln!(f, "  {}", parts.join(", "))?;
        if !self.injected.is_empty() {
            writeln!(f, "  injected: {}", list(self.injected.iter().map(|(name, number)| (name.clone(), *number))))?;
        }
        if let Some(sentence) = self.misuse_sentence() {
            writeln!(f, "  check: {sentence}")?;
        }
        if self.lost_events > 0 {
            writeln!(f, "  the trace misses {}", plural(self.lost_events, "event"))?;
        }
        Ok(())
    }
}

/// A number and its noun, which other words may follow.
fn noun_of(number: u64, noun: &str) -> String {
    match noun.split_once(' ') {
        Some((head, rest)) if rest.starts_with("of ") => format!("{} {rest}", plural(number, head)),
        _ => plural(number, noun),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn story(operation: &str, status: Option<u8>, end: &str) -> Line {
        let operands = vec![("src".to_owned(), Value::Hex(1)), ("size".to_owned(), Value::Count(4096))];
        Line::Descriptor(DescriptorLine {
            operation: operation.into(),
            operands,
            status,
            end: end.into(),
            results: vec![("bytes".to_owned(), Value::Count(1024))],
            ..DescriptorLine::default()
        })
    }

    #[test]
    fn lines_are_counted_by_operation_end_and_size() {
        let mut summary = Summary::default();
        for _ in 0..3 {
            summary.add_line(&story("memory-move", Some(1), "record"));
        }
        summary.add_line(&story("memory-move", Some(0x83), "record"));
        summary.add_line(&story("fill", Some(1), "no record"));
        summary.add_line(&story("fill", None, "lost"));
        summary.add_line(&story("fill", None, "not completed"));
        assert_eq!(
            summary.to_string(),
            "6 descriptors, 17 KiB completed, by 1 process
  operation        descriptors      bytes  ended / sizes from
  fill                       2     4096 B  1 no record, 1 not completed
                                           4k: 2
  memory-move                4     13 KiB  3 success, 1 page-fault
                                           4k: 4
  1 page fault, 0 retries, 1 lost submission, 0 traps, 0 calls of rewritten sites
"
        );
    }

    #[test]
    fn invalid_numbers_from_a_guest_do_not_overflow() {
        let mut summary = Summary { retries: u64::MAX, ..Summary::default() };
        summary.add_line(&Line::Descriptor(DescriptorLine { retries: u64::MAX, ..DescriptorLine::default() }));
        assert_eq!(summary.retries, u64::MAX);
        assert!(summary.to_string().contains("retries"));
    }

    #[test]
    fn sizes_and_plurals_are_formatted() {
        assert_eq!([0, 1, 10, 11, 13, 21, 31, 33].map(size), ["0", "1", "512", "1k", "4k", "1m", "1g", "4g"]);
        assert_eq!([0, 10_239, 10_240, 20 << 20].map(bytes), ["0 B", "10239 B", "10 KiB", "20 MiB"]);
        assert_eq!(
            [plural(1, "retry"), plural(2, "retry"), plural(2, "process")],
            ["1 retry", "2 retries", "2 processes"]
        );
        assert_eq!(list([("a".into(), 1), ("b".into(), 7)].into_iter()), "7 b, 1 a");
    }
}
