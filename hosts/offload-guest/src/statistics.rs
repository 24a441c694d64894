//! Calls by their size, as Intel's DTO counts them, if the user asks for them.
//!
//! Then all calls come to [`calls`](crate::calls), the short ones too. This library's own calls do not count.

use crate::counters::shared_words;
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
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        let inside: fn(Option<&Path>) -> io::Result<ProcessStatistics> = ProcessStatistics::begin;
        let own = object_around(&maps, inside as usize);
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
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let [seconds, nanoseconds] = [now.tv_sec, now.tv_nsec].map(|part| u64::try_from(part).unwrap_or_default());
    seconds * 1_000_000_000 + nanoseconds
}

/// Returns the addresses of the loaded object that contains an address: all mappings of its file.
fn object_around(maps: &str, address: usize) -> Option<Range<usize>> {
    let mappings = || {
        maps.lines().filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let (start, end) = words.next()?.split_once('-')?;
            let [start, end] = [start, end].map(|digits| usize::from_str_radix(digits, 16).ok());
            // After the addresses: permissions, offset, device, inode, path.
            Some((start?..end?, words.nth(3)?))
        })
    };
    let (_, file) = mappings().find(|(range, _)| range.contains(&address))?;
    let mut of_file = mappings().filter(|(_, other)| *other == file).map(|(range, _)| range);
    let first = of_file.next()?;
    Some(first.start..of_file.next_back().map_or(first.end, |last| last.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_reaches_from_its_first_mapping_to_its_last() {
        let maps = "1000-2000 r--p 00000000 08:01 10 /lib/a.so\n\
                    2000-3000 r--p 00000000 08:01 11 /lib/b.so\n\
                    3000-5000 r-xp 00001000 08:01 11 /lib/b.so\n\
                    5000-6000 rw-p 00003000 08:01 11 /lib/b.so (deleted)\n\
                    6000-7000 rw-p 00000000 00:00 0\n";
        assert_eq!(object_around(maps, 0x3fff), Some(0x2000..0x6000));
        assert_eq!(object_around(maps, 0x1000), Some(0x1000..0x2000));
        assert_eq!(object_around(maps, 0x7000), None);
    }
}
