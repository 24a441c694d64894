//! What a load has found.

use super::association::Geometry;
use super::error::LoadError;
use super::options::Pattern;
use hdrhistogram::Histogram;
use std::time::Duration;

/// The longest latency that a histogram distinguishes, in nanoseconds: more than an hour.
const LONGEST_NS: u64 = 1 << 42;

/// Latencies of commands in nanoseconds.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies(Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("legal bounds and precision"))
    }
}

impl Latencies {
    pub(super) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(super) fn merge(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    /// The latency that the fraction `share` of all commands did not exceed; 0 without commands.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(share))
    }

    /// The number of commands.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }
}

/// What the commands have done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Reads that succeeded.
    pub reads: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Bytes of the reads.
    pub bytes_read: u64,
    /// Bytes of the writes.
    pub bytes_written: u64,
    /// Blocks that were read and are as they were written.
    pub verified_blocks: u64,
    /// Blocks that were read, and that this run has not written. They have no checksum.
    pub unknown_blocks: u64,
    /// Writes that were sent again because the target received damaged data (status 00h/22h).
    pub repeated_writes: u64,
}

impl Counts {
    /// All commands.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.reads + self.writes + self.flushes
    }

    pub(super) fn add(&mut self, other: &Counts) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.verified_blocks += other.verified_blocks;
        self.unknown_blocks += other.unknown_blocks;
        self.repeated_writes += other.repeated_writes;
    }
}

/// A connection that ended early.
#[derive(Debug, thiserror::Error)]
#[error("{connection}")]
pub struct ConnectionError {
    /// The connection: "connection 3", "an admin queue", "an idle connection".
    pub connection: String,
    /// The reason.
    pub source: LoadError,
}

/// What a load has found.
#[derive(Debug)]
pub struct LoadResult {
    /// The pattern.
    pub pattern: Pattern,
    /// I/O queues.
    pub connections: u16,
    /// Threads.
    pub threads: u16,
    /// Commands in flight on each I/O queue; fewer than asked for if the target's queues are shorter.
    pub depth: u16,
    /// Controllers of the target that served the connections.
    pub controllers: usize,
    /// Connections that only stayed open.
    pub idle_connections: u16,
    /// The namespace.
    pub geometry: Geometry,
    /// From the first command to the last completion.
    pub elapsed: Duration,
    /// What the commands have done.
    pub counts: Counts,
    /// From a command's submission to its completion.
    pub latencies: Latencies,
    /// The CPU time of the load's threads.
    pub cpu: Duration,
    /// Connections that ended early.
    pub errors: Vec<ConnectionError>,
}

impl LoadResult {
    /// Commands per second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        per(self.counts.commands(), self.elapsed)
    }

    /// Bytes per second, in both directions together.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        per(self.counts.bytes_read + self.counts.bytes_written, self.elapsed)
    }

    /// CPU time of the load's threads for one command.
    #[must_use]
    pub fn cpu_per_command(&self) -> Duration {
        let commands = u32::try_from(self.counts.commands()).unwrap_or(u32::MAX);
        self.cpu.checked_div(commands).unwrap_or_default()
    }
}

#[allow(clippy::cast_precision_loss, reason = "rates are printed with three digits")]
fn per(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}
