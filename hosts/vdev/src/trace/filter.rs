//! Filters on the lines of a trace.

use super::line::{DescriptorLine, Line};
use super::names;
use telpher_abi::{Opcode, Status};

/// Which lines of a trace to keep. An empty list keeps all lines.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// Lines of these processes.
    pub processes: Vec<u32>,
    /// Lines of these queues, such as `wq0.1`.
    pub queues: Vec<String>,
    /// Lines about these operations, by their names in traces.
    pub operations: Vec<String>,
    /// Lines about descriptors with one of these results.
    pub results: Vec<ResultFilter>,
    /// Lines about descriptors that took more nanoseconds than this.
    pub slower_than_ns: Option<u64>,
}

/// A filter on a descriptor's result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResultFilter {
    /// This status code.
    Code(u8),
    /// Any status except success, or no result.
    Failed,
    /// No result.
    Unfinished,
}

impl Filter {
    /// Returns true if a line passes every given filter. Lines that are not about one descriptor's result pass only
    /// if no filter selects results.
    #[must_use]
    pub fn passes(&self, line: &Line) -> bool {
        let origin = line.origin();
        let any = |wanted: bool, given: bool| !given || wanted;
        if !any(self.processes.contains(&origin.process), !self.processes.is_empty())
            || !any(self.queues.contains(&origin.queue), !self.queues.is_empty())
        {
            return false;
        }
        let asks = !self.operations.is_empty() || !self.results.is_empty() || self.slower_than_ns.is_some();
        match line {
            Line::Descriptor(story) => {
                any(self.operations.contains(&story.operation), !self.operations.is_empty())
                    && any(self.results.iter().any(|result| result.is_of(story)), !self.results.is_empty())
                    && self.slower_than_ns.is_none_or(|limit| story.duration_ns.is_some_and(|time| time > limit))
            }
            Line::Misuse(misuse) => {
                // The operation is the text before the parenthesis.
                let operation = misuse.latest.descriptor.split('(').next().unwrap_or_default();
                self.results.is_empty()
                    && self.slower_than_ns.is_none()
                    && any(self.operations.iter().any(|op| op == operation), !self.operations.is_empty())
            }
            Line::Lost(_) => !asks,
        }
    }
}

impl ResultFilter {
    fn is_of(self, story: &DescriptorLine) -> bool {
        match (self, story.status) {
            (ResultFilter::Code(code), Some(status)) => status & 0x3f == code,
            (ResultFilter::Failed, Some(status)) => status & 0x3f != 1,
            // Refused, lost and abandoned descriptors did not succeed either.
            (ResultFilter::Failed, None) => true,
            (ResultFilter::Unfinished, status) => status.is_none(),
            (ResultFilter::Code(_), None) => false,
        }
    }
}

/// Why a text is no filter.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct FilterError(String);

/// Checks that a text is a queue's name, `wqM.N`, and returns it.
///
/// # Errors
/// If it is not.
pub fn parse_queue(text: &str) -> Result<String, FilterError> {
    let numbers = text.strip_prefix("wq").and_then(|rest| rest.split_once('.'));
    let is_queue = numbers.is_some_and(|(device, queue)| device.parse::<u32>().is_ok() && queue.parse::<u32>().is_ok());
    is_queue.then(|| text.to_owned()).ok_or_else(|| FilterError(format!("'{text}' is not a queue such as wq0.1")))
}

/// Returns an operation's name in traces; short names are accepted.
///
/// # Errors
/// If there is no such operation.
pub fn parse_operation(text: &str) -> Result<String, FilterError> {
    let known = || Opcode::ALL.iter().map(|known| known.name()).collect::<Vec<_>>().join(", ");
    let unknown = || FilterError(format!("'{text}' is not an operation; use {}", known()));
    names::opcode(text).map(names::operation).ok_or_else(unknown)
}

/// Parses a filter on a descriptor's result: a status by name or code, `failed` or `unfinished`.
///
/// # Errors
/// If it is none of these.
pub fn parse_result(text: &str) -> Result<ResultFilter, FilterError> {
    match text {
        "failed" => return Ok(ResultFilter::Failed),
        "unfinished" => return Ok(ResultFilter::Unfinished),
        _ => {}
    }
    let named = Status::ALL.iter().find(|known| names::status(**known) == text).map(|known| known.code());
    let code = || text.strip_prefix("0x").and_then(|digits| u8::from_str_radix(digits, 16).ok());
    named.or_else(code).map(|code| ResultFilter::Code(code & 0x3f)).ok_or_else(|| {
        FilterError(format!(
            "'{text}' is not a status; use a name such as page-fault, a code such as 0x03, failed or unfinished"
        ))
    })
}

/// Parses a time such as `50us`, and returns nanoseconds.
///
/// # Errors
/// If it is not one.
pub fn parse_time(text: &str) -> Result<u64, FilterError> {
    names::nanoseconds(text)
        .ok_or_else(|| FilterError(format!("'{text}' is not a time; give one such as 500ns, 50us, 2ms or 1s")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "\
0.000001000 1/1 wq0.0 #1 enqcmd memory-move(src=0x10, dst=0x20, size=64, flags=crav|rcr) = 0x01 success <5.000us>
0.000002000 1/2 wq0.1 #1 movdir64b batch(list=0x40, count=2) = 0x05 batch-fail members=2 <9.000us>
0.000002000 1/2 wq0.1     #1[0] fill(pattern=0x0, dst=0x20, size=4096) = \
0x83 page-fault-write bytes=100 fault=0x84 <7.000us>
0.000003000 2/2 wq0.1 #2 movdir64b fill(pattern=0x0, dst=0x20, size=64) = (not completed)
0.000004000 2/2 wq0.1 #3 enqcmd nop() = (retry) retries=7
0.000005000 2/2 wq0.1 misuse read-after-write address=0x20 len=64: #2 source-1 of fill(dst=0x20)
0.000006000 2/2 wq0.1 lost entries=4
";

    /// Returns the numbers of the lines that pass, from 1.
    fn passed(filter: &Filter) -> Vec<u64> {
        let lines = (1..).zip(TRACE.lines());
        lines.filter(|(number, text)| filter.passes(&Line::parse(text, *number).unwrap())).map(|(n, _)| n).collect()
    }

    #[test]
    fn each_filter_keeps_its_lines() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let all = Filter::default;
        assert_eq!(passed(&all()), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(passed(&Filter { processes: vec![2], ..all() }), [4, 5, 6, 7]);
        assert_eq!(passed(&Filter { queues: names(&["wq0.0", "wq9.9"]), ..all() }), [1]);
        assert_eq!(passed(&Filter { operations: names(&["fill"]), ..all() }), [3, 4, 6]);
        assert_eq!(passed(&Filter { operations: names(&["memory-move", "batch"]), ..all() }), [1, 2]);
        assert_eq!(passed(&Filter { results: vec![ResultFilter::Failed], ..all() }), [2, 3, 4, 5]);
        assert_eq!(passed(&Filter { results: vec![ResultFilter::Code(3), ResultFilter::Code(1)], ..all() }), [1, 3]);
        let unfinished = Filter { results: vec![ResultFilter::Unfinished], ..all() };
        assert_eq!(passed(&Filter { operations: names(&["nop"]), ..unfinished }), [5]);
        let slow = Filter { slower_than_ns: Some(5000), ..all() };
        assert_eq!(passed(&slow), [2, 3]);
        assert_eq!(passed(&Filter { queues: names(&["wq0.0"]), ..slow }), [0; 0]);
    }

    #[test]
    fn statuses_are_named_or_numbered() {
        assert_eq!(parse_result("page-fault"), Ok(ResultFilter::Code(3)));
        assert_eq!(parse_result("0x83"), Ok(ResultFilter::Code(3)));
        assert_eq!(parse_result("failed"), Ok(ResultFilter::Failed));
        assert!(parse_result("oops").unwrap_err().to_string().contains("page-fault"));
    }

    #[test]
    fn short_names_of_operations_are_accepted() {
        assert_eq!(parse_operation("move"), Ok("memory-move".into()));
        assert!(parse_operation("x").unwrap_err().to_string().contains("memory-move, fill"));
    }

    #[test]
    fn queues_and_times_are_parsed() {
        assert_eq!(parse_queue("wq0.1"), Ok("wq0.1".into()));
        assert!(parse_queue("wq0").is_err() && parse_queue("0.1").is_err());
        assert_eq!(parse_time("50us"), Ok(50_000));
        assert!(parse_time("50").is_err());
    }
}
