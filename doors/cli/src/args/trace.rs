//! Options of `telpher trace`.

use super::output::Printed;
use super::values::ValueError;
use clap::Args;
use std::path::PathBuf;
use std::str::FromStr;
use telpher_abi::{Opcode, Status};
use telpher_vdev::trace::{Filter, ResultFilter, names};

/// Filter and summarise a trace written by `telpher run --trace`.
///
/// Reads either format and writes the lines that pass every filter, in the same order. A batch and its members are
/// filtered separately.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Filters",
    after_help = "\
Examples:
  telpher run --hardware spr-1 --trace my.trace -- PROGRAM
  telpher trace my.trace --status failed               descriptors that failed
  telpher trace my.trace --op memory-move --slower-than 100us
  telpher trace my.trace --queue wq0.1 --summary       numbers of one queue
  telpher trace my.trace --format json                 a JSON object a line"
)]
pub(crate) struct Trace {
    /// The trace; - is standard input.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Only these processes.
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub(crate) process: Vec<u32>,
    /// Only these queues, such as wq0.1.
    #[arg(long, value_name = "QUEUE", value_delimiter = ',')]
    pub(crate) queue: Vec<QueueName>,
    /// Only these operations, such as memory-move or fill.
    #[arg(long, value_name = "OPS", value_delimiter = ',')]
    pub(crate) op: Vec<OperationName>,
    /// Only descriptors with this result: a status by name or code (page-fault, 0x03), failed (everything but success),
    /// or unfinished (no result).
    #[arg(long, value_name = "STATUS", value_delimiter = ',', value_parser = result)]
    pub(crate) status: Vec<ResultFilter>,
    /// Only descriptors that took longer, such as 50us or 2ms.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) slower_than: Option<u64>,
    /// Print counts instead of lines: descriptors by operation, result and size.
    #[arg(long, help_heading = "Output")]
    pub(crate) summary: bool,
    #[command(flatten)]
    pub(crate) printed: Printed,
}

/// A queue's name, `wqM.N`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct QueueName(String);

impl FromStr for QueueName {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let numbers = text.strip_prefix("wq").and_then(|rest| rest.split_once('.'));
        let known =
            numbers.is_some_and(|(device, queue)| device.parse::<u32>().is_ok() && queue.parse::<u32>().is_ok());
        if known {
            Ok(QueueName(text.into()))
        } else {
            Err(ValueError(format!("'{text}' is not a queue such as wq0.1")))
        }
    }
}

/// An operation by its name in traces.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OperationName(String);

impl FromStr for OperationName {
    type Err = ValueError;
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let names = || Opcode::ALL.iter().map(|known| known.name()).collect::<Vec<_>>().join(", ");
        names::opcode(text)
            .map(|opcode| OperationName(names::operation(opcode)))
            .ok_or_else(|| ValueError(format!("'{text}' is not an operation; use {}", names())))
    }
}

/// Parses a filter on a descriptor's result.
fn result(text: &str) -> Result<ResultFilter, ValueError> {
    match text {
        "failed" => return Ok(ResultFilter::Failed),
        "unfinished" => return Ok(ResultFilter::Unfinished),
        _ => {}
    }
    let named = Status::ALL.iter().find(|known| names::status(**known) == text).map(|known| known.code());
    let code = || text.strip_prefix("0x").and_then(|digits| u8::from_str_radix(digits, 16).ok());
    named.or_else(code).map(|code| ResultFilter::Code(code & 0x3f)).ok_or_else(|| {
        ValueError(format!(
            "'{text}' is not a status; use a name such as page-fault, a code such as 0x03, failed or unfinished"
        ))
    })
}

impl Trace {
    /// Which lines to keep.
    pub(crate) fn filter(&self) -> Filter {
        Filter {
            processes: self.process.clone(),
            queues: self.queue.iter().map(|queue| queue.0.clone()).collect(),
            operations: self.op.iter().map(|op| op.0.clone()).collect(),
            results: self.status.clone(),
            slower_than_ns: self.slower_than,
        }
    }
}

fn time(text: &str) -> Result<u64, ValueError> {
    names::nanoseconds(text)
        .ok_or_else(|| ValueError(format!("'{text}' is not a time; give one such as 500ns, 50us, 2ms or 1s")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};

    #[test]
    fn statuses_are_named_or_numbered() {
        assert_eq!(result("page-fault"), Ok(ResultFilter::Code(3)));
        assert_eq!(result("0x83"), Ok(ResultFilter::Code(3)));
        assert_eq!(result("failed"), Ok(ResultFilter::Failed));
        assert!(result("oops").unwrap_err().to_string().contains("page-fault"));
    }

    #[test]
    fn short_names_of_operations_are_accepted() {
        assert_eq!("move".parse(), Ok(OperationName("memory-move".into())));
        assert!("x".parse::<OperationName>().unwrap_err().to_string().contains("memory-move, fill"));
    }

    #[test]
    fn queues_and_times_are_parsed() {
        assert_eq!("wq0.1".parse(), Ok(QueueName("wq0.1".into())));
        assert!("wq0".parse::<QueueName>().is_err());
        assert!("0.1".parse::<QueueName>().is_err());
        assert_eq!(time("50us"), Ok(50_000));
        assert!(time("50").is_err());
    }

    #[test]
    fn the_options_are_filters() {
        let words = ["telpher", "trace", "f", "--queue", "wq0.0,wq9.9", "--op", "copy", "--slower-than", "4us"];
        let Command::Trace(args) = Cli::parse_from_words(words).unwrap().command else {
            panic!("`telpher trace` is the command")
        };
        let filter = Filter {
            queues: vec!["wq0.0".into(), "wq9.9".into()],
            operations: vec!["memory-move".into()],
            slower_than_ns: Some(4000),
            ..Filter::default()
        };
        assert_eq!(args.filter(), filter);
    }

    #[test]
    fn a_bad_filter_describes_valid_ones() {
        for (options, said) in [
            (["--queue", "0.1"], "not a queue such as wq0.1"),
            (["--op", "x"], "use nop"),
            (["--status", "x"], "page-fault"),
            (["--slower-than", "5"], "50us"),
        ] {
            let words = [&["telpher", "trace", "f"], &options[..]].concat();
            let error = Cli::parse_from_words(words).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
