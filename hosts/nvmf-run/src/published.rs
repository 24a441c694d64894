//! What other processes can read of a running server: sums over its loops and connections, as of the last second.

use telpher_metrics::{MetricSet, SharedCells};
use telpher_nvmf::server::LoopReport;
use telpher_nvmf::stats::{LoopStats, Stats};
use telpher_os::published_words;

/// The sums of a running server.
#[derive(Debug)]
pub(crate) struct Published {
    loops: SharedCells<LoopStats>,
    connections: SharedCells<Stats>,
}

fn cells<S: MetricSet>() -> Option<SharedCells<S>> {
    SharedCells::create(published_words(SharedCells::<S>::words(1)).ok()?, 1, "").ok()
}

impl Published {
    /// Creates the cells; `None` if the system refuses shared memory.
    pub(crate) fn new() -> Option<Published> {
        Some(Published { loops: cells()?, connections: cells()? })
    }

    /// Replaces the values by the sums of all loops, of ended connections, too.
    pub(crate) fn store(&self, reports: &[LoopReport]) {
        let open = |report: &LoopReport| report.queues.iter().map(|queue| queue.stats).sum::<Stats>();
        let ended = |report: &LoopReport| report.ended.values().copied().sum::<Stats>();
        self.loops.store(0, &reports.iter().map(|report| report.stats).sum());
        self.connections.store(0, &reports.iter().map(|report| open(report) + ended(report)).sum());
    }
}
