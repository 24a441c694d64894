//! Options of `telpher trace`.

use super::output::Printed;
use clap::Args;
use std::path::PathBuf;
use telpher_vdev::trace::{Filter, ResultFilter, parse_operation, parse_queue, parse_result, parse_time};

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
    #[arg(long, value_name = "QUEUE", value_delimiter = ',', value_parser = parse_queue)]
    pub(crate) queue: Vec<String>,
    /// Only these operations, such as memory-move or fill.
    #[arg(long, value_name = "OPS", value_delimiter = ',', value_parser = parse_operation)]
    pub(crate) op: Vec<String>,
    /// Only descriptors with this result: a status by name or code (page-fault, 0x03), failed (everything but success),
    /// or unfinished (no result).
    #[arg(long, value_name = "STATUS", value_delimiter = ',', value_parser = parse_result)]
    pub(crate) status: Vec<ResultFilter>,
    /// Only descriptors that took longer, such as 50us or 2ms.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) slower_than: Option<u64>,
    /// Print counts instead of lines: descriptors by operation, result and size.
    #[arg(long, help_heading = "Output")]
    pub(crate) summary: bool,
    #[command(flatten)]
    pub(crate) printed: Printed,
}

impl Trace {
    /// Which lines to keep.
    pub(crate) fn filter(&self) -> Filter {
        Filter {
            processes: self.process.clone(),
            queues: self.queue.clone(),
            operations: self.op.clone(),
            results: self.status.clone(),
            slower_than_ns: self.slower_than,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};

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
        for (options, words) in [
            (["--queue", "0.1"], "not a queue such as wq0.1"),
            (["--op", "x"], "use nop"),
            (["--status", "x"], "page-fault"),
            (["--slower-than", "5"], "50us"),
        ] {
            let words = [&["telpher", "trace", "f"], &options[..]].concat();
            let error = Cli::parse_from_words(words).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}
