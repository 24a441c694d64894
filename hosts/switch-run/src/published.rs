//! What other processes can read of a running switch: sums over its ports and DMA queues, as of the last second.

use telpher_metrics::{MetricSet, SharedCells};
use telpher_os::published_words;
use telpher_switch::{NicStats, PortStats, Stages};
use telpher_vhost::{DmaQueueStats, Stats};

/// The sums of a running switch.
#[derive(Debug)]
pub(crate) struct Published {
    ports: SharedCells<PortStats>,
    stages: SharedCells<Stages>,
    rings: SharedCells<Stats>,
    dma_queues: SharedCells<DmaQueueStats>,
    nics: SharedCells<NicStats>,
}

fn cells<S: MetricSet>() -> Option<SharedCells<S>> {
    SharedCells::create(published_words(SharedCells::<S>::words(1)).ok()?, 1, "").ok()
}

impl Published {
    /// Creates the cells; `None` if the system refuses shared memory.
    pub(crate) fn new() -> Option<Published> {
        Some(Published { ports: cells()?, stages: cells()?, rings: cells()?, dma_queues: cells()?, nics: cells()? })
    }

    /// Replaces the values.
    pub(crate) fn store(
        &self,
        ports: &PortStats,
        stages: &Stages,
        rings: &Stats,
        dma_queues: &DmaQueueStats,
        nics: &NicStats,
    ) {
        self.ports.store(0, ports);
        self.stages.store(0, stages);
        self.rings.store(0, rings);
        self.dma_queues.store(0, dma_queues);
        self.nics.store(0, nics);
    }
}
