//! The result of a query, and the time of its stages.

use super::Answer;
use super::pipeline::Role;
use std::time::Duration;

/// The result of a query run.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The answer; it does not depend on prefetching or on the division of rows.
    pub answer: Answer,
    /// The time from when the first thread began, with all threads ready, until the last had ended and their partial
    /// results were merged.
    pub time: Duration,
    /// The stages in the order of [`Role`]: scan, fetch and aggregate.
    pub stages: [Stage; 3],
    /// What became of the blocks to prefetch.
    pub blocks: Blocks,
    /// The bytes that the stages touched, if [`Options::traffic`](super::Options::traffic) asks for them.
    pub traffic: Option<Traffic>,
}

impl Report {
    /// Returns the stage with this role.
    #[must_use]
    pub fn stage(&self, role: Role) -> &Stage {
        &self.stages[role as usize]
    }
}

/// The threads with one role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Stage {
    /// Their role.
    pub role: Role,
    /// Their number.
    pub threads: u32,
    /// The total time they worked. A thread that is preempted counts as working.
    pub busy: Duration,
    /// The longest time that one of them worked.
    pub longest: Duration,
    /// The total time they waited for others of their group, after beginning copies that had waited until then.
    pub waited: Duration,
}

impl Stage {
    pub(crate) fn of(role: Role) -> Self {
        Stage { role, threads: 0, busy: Duration::ZERO, longest: Duration::ZERO, waited: Duration::ZERO }
    }

    /// Adds a thread.
    pub(crate) fn add(&mut self, busy: Duration, waited: Duration) {
        self.threads += 1;
        self.busy += busy;
        self.longest = self.longest.max(busy);
        self.waited += waited;
    }
}

/// Bytes that the stages of a query read: whole cache lines of 64 bytes, counted from the first row of each part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Traffic {
    /// SCAN's: lines of a filter's column are not read where an earlier filter passed none of 64 rows.
    pub scanned: u64,
    /// AGGREGATE's, of columns that SCAN has read: the lines with selected rows.
    pub again: u64,
    /// AGGREGATE's, of the columns that can be prefetched: the lines with selected rows.
    pub fetched: u64,
}

impl Traffic {
    pub(crate) fn add(&mut self, more: Traffic) {
        self.scanned += more.scanned;
        self.again += more.again;
        self.fetched += more.fetched;
    }
}

/// Blocks of the columns that only the aggregation reads: requested ones and read ones. A block is requested once, and
/// read once by each aggregating thread of its group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Blocks {
    /// Blocks requested.
    pub requested: u64,
    /// Not requested, because they are on the same node as their copies would be
    /// ([`PrefetchWhen::WhereApart`](super::PrefetchWhen::WhereApart)).
    pub spared: u64,
    /// Not requested, because they had been read by then.
    pub passed: u64,
    /// Cancelled, because they were read before their copies had begun.
    pub called_off: u64,
    /// Read from the tier.
    pub hits: u64,
    /// Read from the source while their copies were in flight.
    pub late: u64,
    /// Read from the source, without a copy that was complete or in flight.
    pub absent: u64,
    /// Bytes read from the tier.
    pub bytes_fast: u64,
    /// Bytes read from the source.
    pub bytes_source: u64,
}

impl Blocks {
    /// Returns the fraction of reads that found the copy complete; none if no copies were requested.
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        let all = self.hits + self.late + self.absent;
        #[allow(clippy::cast_precision_loss, reason = "for people")]
        (self.requested > 0 && all > 0).then(|| self.hits as f64 / all as f64)
    }

    pub(crate) fn add(&mut self, more: &Blocks) {
        let Blocks { requested, spared, passed, called_off, hits, late, absent, bytes_fast, bytes_source } = more;
        for (sum, more) in [
            (&mut self.requested, requested),
            (&mut self.spared, spared),
            (&mut self.passed, passed),
            (&mut self.called_off, called_off),
            (&mut self.hits, hits),
            (&mut self.late, late),
            (&mut self.absent, absent),
            (&mut self.bytes_fast, bytes_fast),
            (&mut self.bytes_source, bytes_source),
        ] {
            *sum += more;
        }
    }
}
