//! What came of a query, and where the time went.

use super::Answer;
use super::pipeline::Role;
use std::time::Duration;

/// What came of running a query.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The same, whatever was fetched ahead, and however it was shared out.
    pub answer: Answer,
    /// From when the first thread began, all being there, until the last had ended and their parts were put together.
    pub time: Duration,
    /// By stage, in the order of [`Role`]: those that scan, fetch and aggregate.
    pub stages: [Stage; 3],
    /// What became of the blocks that were to be fetched ahead.
    pub blocks: Blocks,
}

impl Report {
    /// Those with that role.
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
    /// How many there were.
    pub threads: u32,
    /// How long they worked, all together. A thread that works while others have its CPU counts as working.
    pub busy: Duration,
    /// How long the one worked that worked longest.
    pub longest: Duration,
    /// How long they waited for others of their group, all together, having begun copies that had to wait until then.
    pub waited: Duration,
}

impl Stage {
    pub(crate) fn of(role: Role) -> Self {
        Stage { role, threads: 0, busy: Duration::ZERO, longest: Duration::ZERO, waited: Duration::ZERO }
    }

    /// One thread more.
    pub(crate) fn add(&mut self, busy: Duration, waited: Duration) {
        self.threads += 1;
        self.busy += busy;
        self.longest = self.longest.max(busy);
        self.waited += waited;
    }
}

/// Blocks of columns that only the aggregation reads: those asked for ahead of it, and those it read. A block is asked for once, and
/// read once by each thread of its group that aggregates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Blocks {
    /// Asked for.
    pub asked: u64,
    /// Not asked for because they lie where their copies would ([`Ahead::WhereApart`](super::Ahead::WhereApart)).
    pub spared: u64,
    /// Not asked for because they had been read by then.
    pub passed: u64,
    /// Called off, because they were read before their copies had begun.
    pub called_off: u64,
    /// Read from the tier.
    pub hits: u64,
    /// Read where they lay while their copies were on the way.
    pub late: u64,
    /// Read where they lay, without a copy that was there or on its way.
    pub absent: u64,
    /// Bytes read from the tier.
    pub bytes_fast: u64,
    /// Bytes read where they lay.
    pub bytes_source: u64,
}

impl Blocks {
    /// Reads that found the copy there, of all; nothing if no copies were asked for.
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        let all = self.hits + self.late + self.absent;
        #[allow(clippy::cast_precision_loss, reason = "for people")]
        (self.asked > 0 && all > 0).then(|| self.hits as f64 / all as f64)
    }

    pub(crate) fn add(&mut self, more: &Blocks) {
        let Blocks { asked, spared, passed, called_off, hits, late, absent, bytes_fast, bytes_source } = more;
        for (sum, more) in [
            (&mut self.asked, asked),
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
