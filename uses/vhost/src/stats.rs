//! Counters of virtqueues and DMA queues, and the reasons for dropped packets.

use crate::ring::Dropped;
use std::fmt;
use telpher_metrics::metrics;

/// Why a packet was dropped. Every drop is counted; no packet is lost silently.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum DropReason {
    /// The guest's chain could not be followed.
    Chain(Dropped),
    /// The guest's chain is shorter than the net header (CVE-2022-2132, CVE-2026-86566).
    Runt,
    /// The guest's packet is longer than the pool's buffers.
    Long,
    /// The guest does not merge buffers, and its buffer is too short for the packet.
    Short,
    /// It was in flight when its ring stopped, and its DMA queue did not complete it.
    Silent,
}

impl DropReason {
    /// All reasons, in their order.
    pub const ALL: [DropReason; 11] = {
        let chains = Dropped::ALL;
        let mut all = [DropReason::Runt; 11];
        let mut at = 0;
        while at < chains.len() {
            all[at] = DropReason::Chain(chains[at]);
            at += 1;
        }
        all[8] = DropReason::Long;
        all[9] = DropReason::Short;
        all[10] = DropReason::Silent;
        all
    };

    fn index(self) -> usize {
        match self {
            DropReason::Chain(reason) => reason as usize,
            DropReason::Runt => 7,
            DropReason::Long => 8,
            DropReason::Short => 9,
            DropReason::Silent => 10,
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DropReason::Chain(reason) => reason.fmt(f),
            DropReason::Runt => f.write_str("a chain is shorter than the header"),
            DropReason::Long => f.write_str("a packet is longer than the pool's buffers"),
            DropReason::Short => f.write_str("a packet does not fit the guest's buffer"),
            DropReason::Silent => f.write_str("a packet's DMA queue did not answer"),
        }
    }
}

/// The reasons as values of a label, in their order.
const REASONS: [&str; DropReason::ALL.len()] = [
    "next beyond table",
    "endless chain",
    "wrong direction",
    "address",
    "chain length",
    "indirect table not allowed",
    "indirect table length or address",
    "shorter than header",
    "longer than buffers of pool",
    "guest buffer too short",
    "no answer from DMA queue",
];

metrics! {
    /// The counters of one virtqueue since it was created.
    pub struct Stats {
        /// Packets that got through.
        pub packets: u64 = counter "telpher_vhost_packets_total",
        /// Bytes of packets that got through, without headers.
        pub bytes: u64 = counter(Bytes) "telpher_vhost_bytes_total",
        /// Packets whose copies were handed to a DMA queue.
        pub by_device: u64 = counter "telpher_vhost_offloaded_packets_total",
        /// Bytes of packets whose copies were handed to a DMA queue.
        pub bytes_by_device: u64 = counter(Bytes) "telpher_vhost_offloaded_bytes_total",
        /// How often the driver was called.
        pub calls: u64 = counter "telpher_vhost_calls_total",
        /// The time that copies cost the polling thread.
        pub clocked: CopyTiming = set,
        /// Copies that were meant for a DMA queue, and that the CPU made before one had them.
        pub fallbacks: Fallbacks = set,
        /// Packets, or chains, that were dropped, by reason.
        drops: [u64; DropReason::ALL.len()] = counter "telpher_vhost_dropped_packets_total" by reason REASONS,
    }
}

/// The help of copies that were meant for a DMA queue.
const FALLBACKS: &str = "Copies that were meant for a DMA queue and that the CPU made at once, by reason.";

metrics! {
    /// Copies that were meant for a DMA queue, and that the CPU made before one had them.
    pub struct Fallbacks {
        /// Every DMA queue was full, was held by another thread, or gets no more copies because it is silent.
        pub no_room: u64 = counter "telpher_vhost_fallbacks_total" by reason ["queues full"] => FALLBACKS,
        /// The packet had more pieces than a guest's packets have.
        pub many_pieces: u64 = counter "telpher_vhost_fallbacks_total" by reason ["many pieces"] => FALLBACKS,
    }
}

metrics! {
    /// The time that copies cost the polling thread, in ticks of its time stamp counter.
    pub struct CopyTiming {
        /// Packets copied by the CPU whose copies were timed: one in some dozens.
        pub packets: u64 = counter "telpher_vhost_timed_packets_total",
        /// The number of measurements of copies by the CPU; each reads the time stamp counter twice.
        pub times: u64 = counter "telpher_vhost_copy_measurements_total",
        /// The ticks that timed copies by the CPU took, including the two reads of each measurement.
        pub ticks: u64 = counter(Ticks) "telpher_vhost_timed_copy_ticks_total",
        /// The ticks for handing copies to DMA queues and polling for completed ones. With a modelled device that runs
        /// inline, they include the copies themselves.
        pub device_ticks: u64 = counter(Ticks) "telpher_vhost_offload_ticks_total",
    }
}

metrics! {
    /// Counters of one DMA queue.
    pub struct DmaQueueStats {
        /// Copies that the DMA queue made.
        pub copies: u64 = counter "telpher_vhost_dma_copies_total",
        /// Bytes of copies that the DMA queue made.
        pub bytes: u64 = counter(Bytes) "telpher_vhost_dma_bytes_total",
        /// Copies that the DMA queue accepted and left undone, in part or completely; the CPU redid them.
        pub redone: u64 = counter "telpher_vhost_dma_redone_copies_total",
        /// How often a thread found the DMA queue held by another thread.
        pub contended: u64 = counter "telpher_vhost_dma_contentions_total",
        /// Whether the queue reported that it works, but completed none of its copies for four seconds: it gets no
        /// more.
        pub silent: bool = gauge "telpher_vhost_dma_silent",
    }
}

impl Stats {
    /// The number of packets, or chains, dropped for this reason.
    #[must_use]
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason.index()]
    }

    /// The number of packets, or chains, dropped for any reason.
    #[must_use]
    pub fn all_drops(&self) -> u64 {
        self.drops.iter().sum()
    }

    pub(crate) fn drop_one(&mut self, reason: DropReason) {
        self.drop_some(reason, 1);
    }

    pub(crate) fn drop_some(&mut self, reason: DropReason, count: u64) {
        self.drops[reason.index()] += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_drop_reason_is_counted_separately() {
        let mut stats = Stats::default();
        for (count, reason) in DropReason::ALL.into_iter().enumerate() {
            (0..=count).for_each(|_| stats.drop_one(reason));
        }
        for (count, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(stats.drops(reason), count as u64 + 1, "{reason}");
        }
        assert_eq!(stats.all_drops(), 66);
    }
}
