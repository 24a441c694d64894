//! Calls by their size, as Intel's DTO counts them, if the user asks for them.
//!
//! Then all calls come to [`calls`](crate::calls), the short ones too. This library's own calls do not count.

use crate::counters::shared_words;
use crate::modules;
use crate::thread::cpu_ticks;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use telpher_interpose::signals::undeferred;
use telpher_mover::CallResult;
use telpher_offload_wire::statistics::{Failure, Group, Operation, Statistics, WORDS};
use telpher_os::ticks;

/// Whether the parts of calls that the CPU does are timed.
static TIMES_CPU: AtomicBool = AtomicBool::new(false);

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
        // Relaxed: no other thread runs yet.
        TIMES_CPU.store(true, Ordering::Relaxed);
        Ok(ProcessStatistics { words, own })
    }

    /// Returns whether calls from this address count.
    #[inline]
    pub(crate) fn has_caller(&self, caller: usize) -> bool {
        !self.own.contains(&caller)
    }

    /// Counts a call that took so many ticks. Without a result, the C library executed it.
    pub(crate) fn count(&self, operation: Operation, len: usize, ticks: u64, result: Option<CallResult>) {
        let words = &self.words;
        match result {
            Some(CallResult { device_bytes, cpu_bytes: 0, .. }) => {
                words.count(operation, len, Group::Device, device_bytes, ticks);
            }
            Some(CallResult { device_bytes, cpu_bytes, retries, faults })
                if device_bytes > 0 || retries + faults > 0 =>
            {
                let of_cpu = cpu_ticks().get().min(ticks);
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

/// Executes the CPU's part of a call outside of the call's deferral, since it may fault. Adds its time to that of the
/// call if calls are counted.
#[inline]
pub(crate) fn timed<T>(part: impl FnOnce() -> T) -> T {
    // Relaxed: set before the device is published.
    if !TIMES_CPU.load(Ordering::Relaxed) {
        return undeferred(part);
    }
    let begun = ticks();
    let result = undeferred(part);
    cpu_ticks().set(cpu_ticks().get() + ticks().wrapping_sub(begun));
    result
}

fn now_ns() -> u64 {
    telpher_os::clock_ns(rustix::time::ClockId::Boottime)
}
