//! Calls by their size, as Intel's DTO counts them, if the user asks for them.
//!
//! Then all calls come to [`calls`](crate::calls), the short ones too. This library's own calls do not count.

use crate::counters::shared_words;
use crate::modules;
use std::io;
use std::ops::Range;
use std::path::Path;
use telpher_mover::CallResult;
use telpher_offload_wire::statistics::{Failure, Group, Operation, Statistics, WORDS};
use telpher_os::ticks;

/// The statistics of this process.
#[derive(Debug)]
pub(crate) struct ProcessStatistics {
    words: Statistics<'static>,
    /// The addresses of this library.
    own: Range<usize>,
}

impl ProcessStatistics {
    /// Begins them, in the file `PID.statistics` of a folder.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn begin(folder: Option<&Path>) -> io::Result<ProcessStatistics> {
        let words = shared_words(folder, "statistics", WORDS)?;
        let program = std::fs::read("/proc/self/comm")?;
        let words = Statistics::begin(words, program.trim_ascii_end(), ticks(), now_ns());
        let inside: fn(Option<&Path>) -> io::Result<ProcessStatistics> = ProcessStatistics::begin;
        let own = modules::with_module_of(inside as usize, |module| module.addresses.clone());
        let (Some(words), Some(own)) = (words, own) else {
            return Err(io::Error::other("this library is not in the list of mappings"));
        };
        Ok(ProcessStatistics { words, own })
    }

    /// Returns whether calls from this address count.
    #[inline]
    pub(crate) fn has_caller(&self, caller: usize) -> bool {
        !self.own.contains(&caller)
    }

    /// Counts a call that took so many ticks, of which the CPU worked `cpu_ticks`. Without a result, the C library
    /// executed it.
    pub(crate) fn count(
        &self,
        operation: Operation,
        len: usize,
        ticks: u64,
        cpu_ticks: u64,
        result: Option<CallResult>,
    ) {
        let words = &self.words;
        match result {
            Some(CallResult { device_bytes, cpu_bytes: 0, .. }) => {
                words.count(operation, len, Group::Device, device_bytes, ticks);
            }
            Some(CallResult { device_bytes, cpu_bytes, retries, faults })
                if device_bytes > 0 || retries + faults > 0 =>
            {
                let of_cpu = cpu_ticks.min(ticks);
                words.count(operation, len, Group::DeviceFailed, device_bytes, ticks - of_cpu);
                words.count(operation, len, Group::CLibrary, cpu_bytes, of_cpu);
                let failure = match (faults, retries) {
                    (0, 0) => Failure::Other,
                    (0, _) => Failure::Retry,
                    _ => Failure::PageFault,
                };
                words.count_failure(len, failure);
            }
            // No queue was asked.
            _ => words.count(operation, len, Group::CLibrary, len as u64, ticks),
        }
    }

    /// Notes that the process ends.
    pub(crate) fn end(&self) {
        self.words.end(now_ns());
    }
}

fn now_ns() -> u64 {
    telpher_os::clock_ns(rustix::time::ClockId::Boottime)
}
